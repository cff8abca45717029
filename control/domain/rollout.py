"""The course of a guarded roll-out: draft, canary, baking, promoting, done, or back again. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum

from control.domain.guard_rules import Decision, Judgement

# Between two looks more time may pass than this, where control was away: what nobody watched counts no further.
MAX_LOOK_GAP_S = 10.0


class Phase(StrEnum):
    """Where a roll-out is."""

    DRAFT = "draft"
    CANARY = "canary"
    BAKING = "baking"
    PAUSED = "paused"
    PROMOTING = "promoting"
    ABORTING = "aborting"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def is_open(self) -> bool:
        """Whether something will still happen."""
        return self not in {Phase.DONE, Phase.ABORTED}

    @property
    def has_canary(self) -> bool:
        """Whether gateways should run the new revision beside the old one."""
        return self in {Phase.CANARY, Phase.BAKING}


class RolloutError(ValueError):
    """What was asked for cannot be done in this phase; its text says why."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Where a roll-out is. Times are Unix seconds; `baked_s` is how long its signals have been within their bounds.

    `known_until_s` is the moment up to which the last look had data, None where it was held. `paused_from` is where it
    goes on; a roll-out that is paused keeps its canary. `waiting_for` says what it waits for, `ending` why it ended or
    is about to.
    """

    bake_s: float
    suspect_s: float
    phase: Phase = Phase.DRAFT
    paused_from: Phase | None = None
    baked_s: float = 0.0
    looked_at_s: float | None = None
    known_until_s: float | None = None
    suspect_since_s: float | None = None
    waiting_for: tuple[str, ...] = ()
    ending: str = ""

    @property
    def has_canary(self) -> bool:
        """Whether gateways should run the new revision beside the old one."""
        return self.phase.has_canary or (self.paused_from is not None and self.paused_from.has_canary)


@dataclass(frozen=True, slots=True)
class Sight:
    """What control sees at one moment: gateways that do not run yet what they should, and the guard's word.

    `known_until_s` is the moment up to which all data are there; None for none. `before_lacks` says what the time
    before is short of; empty once it can be compared with.
    """

    now_s: float
    known_until_s: float | None
    behind: tuple[str, ...]
    judgement: Judgement
    before_lacks: tuple[str, ...] = ()


def advance(rollout: Rollout, sight: Sight) -> Rollout:
    """The roll-out after one look; the same look twice changes nothing more.

    It goes forward on the guard's word alone, so never on missing data; it goes back whatever else is missing.
    """
    seen = _watched(rollout, sight)
    phase = seen.phase
    if phase is Phase.DRAFT:
        lacks = (*sight.before_lacks, *sight.behind)
        return replace(seen, waiting_for=lacks) if lacks else replace(seen, phase=Phase.CANARY, waiting_for=())
    if phase is Phase.PROMOTING or phase is Phase.ABORTING:
        over = Phase.DONE if phase is Phase.PROMOTING else Phase.ABORTED
        return replace(seen, phase=phase if sight.behind else over, waiting_for=sight.behind)
    if not seen.has_canary:
        return seen
    reason = _why_abort(seen, sight)
    if reason:
        return abort(seen, reason)
    held_by = (*sight.behind, *sight.judgement.reasons)
    if phase is Phase.PAUSED or held_by or sight.judgement.decision is not Decision.FORWARD:
        return replace(seen, waiting_for=held_by)
    if phase is Phase.CANARY:
        return replace(seen, phase=Phase.BAKING, waiting_for=())
    baked_s = seen.baked_s + _watched_s(rollout, sight)
    if baked_s < seen.bake_s:
        return replace(seen, baked_s=baked_s, waiting_for=())
    return replace(
        seen, phase=Phase.PROMOTING, baked_s=seen.bake_s, waiting_for=(), ending="every signal was within its bounds"
    )


def pause(rollout: Rollout) -> Rollout:
    """Stop going forward. The canary stays, and so does the guard that may abort it.

    Raises:
        RolloutError: it is past that, or paused already.
    """
    if rollout.phase not in {Phase.DRAFT, Phase.CANARY, Phase.BAKING}:
        raise RolloutError(f"it is {rollout.phase}, and only one in draft, canary or baking can be paused")
    return replace(rollout, phase=Phase.PAUSED, paused_from=rollout.phase)


def resume(rollout: Rollout) -> Rollout:
    """Go on where it was paused.

    Raises:
        RolloutError: it is not paused.
    """
    if rollout.phase is not Phase.PAUSED or rollout.paused_from is None:
        raise RolloutError(f"it is {rollout.phase}, not paused")
    return replace(rollout, phase=rollout.paused_from, paused_from=None, known_until_s=None)


def promote(rollout: Rollout, judgement: Judgement, reason: str, *, force: bool = False) -> Rollout:
    """Give the revision to all without further baking; `force` does so against the guard's word, or without one.

    Raises:
        RolloutError: there is no canary, or the guard does not let it go forward and `force` is not set.
    """
    if not rollout.has_canary:
        raise RolloutError(f"it is {rollout.phase}, and only one whose canary runs can be promoted")
    if judgement.decision is not Decision.FORWARD and not force:
        raise RolloutError(f"the guard does not let it go forward: {'; '.join(judgement.reasons)}")
    return replace(rollout, phase=Phase.PROMOTING, paused_from=None, waiting_for=(), ending=reason)


def abort(rollout: Rollout, reason: str) -> Rollout:
    """Go back to the revision that was active before; where no request has run under the new one, it is over at once.

    Raises:
        RolloutError: it is over, or on its way back.
    """
    if rollout.phase is Phase.ABORTING or not rollout.phase.is_open:
        raise RolloutError(f"it is {rollout.phase}")
    has_begun = rollout.has_canary or rollout.phase is Phase.PROMOTING
    phase = Phase.ABORTING if has_begun else Phase.ABORTED
    return replace(rollout, phase=phase, paused_from=None, waiting_for=(), ending=reason)


def progress_ratio(rollout: Rollout) -> float:
    """Share of the baking that is behind it, 0 to 1."""
    if rollout.phase in {Phase.PROMOTING, Phase.DONE}:
        return 1.0
    return min(1.0, rollout.baked_s / rollout.bake_s) if rollout.bake_s else 0.0


def _watched(rollout: Rollout, sight: Sight) -> Rollout:
    """With the time of this look, and since when signals have been suspect without a break."""
    since_s = None
    if sight.judgement.is_suspect:
        since_s = sight.now_s if rollout.suspect_since_s is None else rollout.suspect_since_s
    is_good = sight.judgement.decision is Decision.FORWARD and not sight.behind
    known_until_s = sight.known_until_s if is_good else None
    return replace(rollout, looked_at_s=sight.now_s, known_until_s=known_until_s, suspect_since_s=since_s)


def _watched_s(before: Rollout, sight: Sight) -> float:
    """Seconds since the last good look as far as data tell of them: of the newest ones nobody knows anything yet."""
    if before.known_until_s is None or sight.known_until_s is None:
        return 0.0
    return min(max(sight.known_until_s - before.known_until_s, 0.0), MAX_LOOK_GAP_S)


def _why_abort(rollout: Rollout, sight: Sight) -> str:
    judgement = sight.judgement
    if judgement.decision is Decision.ABORT:
        return "; ".join(judgement.reasons)
    since_s = rollout.suspect_since_s
    if judgement.is_suspect and since_s is not None and sight.now_s - since_s >= rollout.suspect_s:
        return f"suspect for {sight.now_s - since_s:.0f} s: {'; '.join(judgement.reasons)}"
    return ""
