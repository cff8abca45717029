"""Roll-outs in SQL: found, read as values, written back."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from control.domain.guard_rules import Decision, GroupFigures, Groups, Guard, Judgement, SignalReading, SignalVerdict
from control.domain.rollout import Phase, Rollout
from control.errors import NotFoundError, RolloutOpenError
from control.store.tables import RolloutRow

OPEN_KEY = "rollout"


@dataclass(slots=True)
class StoredRollout:
    """A roll-out's row and what it says."""

    row: RolloutRow
    rollout: Rollout

    @property
    def id(self) -> int:
        """Its number."""
        if self.row.id is None:
            raise ValueError("a stored roll-out has a number")
        return self.row.id

    @property
    def guard(self) -> Guard:
        """What it obeys."""
        return Guard.from_values(self.row.guard)

    @property
    def before(self) -> GroupFigures | None:
        """The time before; None until the canary began."""
        return GroupFigures.from_values(self.row.before)


def load_rollout(session: Session, number: int, *, lock: bool = False) -> StoredRollout:
    """One roll-out; with `lock` as nobody else can change it before this transaction ends.

    Raises:
        NotFoundError: none has that number.
    """
    row = session.get(RolloutRow, number, with_for_update=lock, populate_existing=True)
    if row is None:
        raise NotFoundError(f"There is no roll-out {number}.")
    return StoredRollout(row, rollout_of(row))


def load_rollouts(
    session: Session,
    limit: int,
    before: int | None = None,
    phases: Iterable[str] = (),
    revision: int | None = None,
) -> list[StoredRollout]:
    """Roll-outs, newest first, older than the given one, as far as they match."""
    query = select(RolloutRow).order_by(col(RolloutRow.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(RolloutRow.id) < before)
    if wanted := list(phases):
        query = query.where(col(RolloutRow.phase).in_(wanted))
    if revision is not None:
        query = query.where(RolloutRow.revision == revision)
    return [StoredRollout(row, rollout_of(row)) for row in session.exec(query)]


def find_open_rollout(session: Session) -> StoredRollout | None:
    """The one that is under way; None where there is none."""
    row = session.exec(select(RolloutRow).where(RolloutRow.open_key == OPEN_KEY)).first()
    return None if row is None else StoredRollout(row, rollout_of(row))


def refuse_during_rollout(session: Session, *, also_ending: bool = False) -> None:
    """See that no roll-out is under way whose fate another policy would decide.

    One that only waits for gateways to confirm its end, of which one may be gone for good, stands in nobody's way but,
    with `also_ending`, the next roll-out's.

    Raises:
        RolloutOpenError: one is.
    """
    stored = find_open_rollout(session)
    if stored is not None and (also_ending or stored.rollout.phase not in {Phase.PROMOTING, Phase.ABORTING}):
        raise RolloutOpenError(
            f"Roll-out {stored.id} of r{stored.row.revision} is {stored.row.phase}:"
            " wait for its end, or promote or abort it first."
        )


def rollout_of(row: RolloutRow) -> Rollout:
    """What a row says."""
    guard = Guard.from_values(row.guard)
    return Rollout(
        bake_s=guard.bake_s,
        suspect_s=guard.suspect_s,
        phase=Phase(row.phase),
        paused_from=Phase(row.paused_from) if row.paused_from else None,
        baked_s=row.baked_s,
        looked_at_s=row.looked_at_s,
        known_until_s=row.known_until_s,
        suspect_since_s=row.suspect_since_s,
        waiting_for=tuple(row.waiting_for),
        ending=row.ending,
    )


def save_rollout(session: Session, stored: StoredRollout, rollout: Rollout, now: datetime) -> None:
    """Write where a roll-out is now; its version rises where that is another phase."""
    row = stored.row
    if rollout.phase is not stored.rollout.phase:
        row.version += 1
    row.phase = rollout.phase.value
    row.paused_from = rollout.paused_from.value if rollout.paused_from else None
    row.baked_s = rollout.baked_s
    row.looked_at_s = rollout.looked_at_s
    row.known_until_s = rollout.known_until_s
    row.suspect_since_s = rollout.suspect_since_s
    row.waiting_for = list(rollout.waiting_for)
    row.ending = rollout.ending
    if not rollout.phase.is_open and row.open_key is not None:
        row.open_key = None
        row.finished_at = now
    session.add(row)
    session.flush()
    stored.rollout = rollout


def judgement_document(judgement: Judgement, groups: Groups) -> dict[str, Any]:
    """A judgement as JSON, with how many requests it rests on."""
    return {
        "decision": judgement.decision.value,
        "reasons": list(judgement.reasons),
        "is_suspect": judgement.is_suspect,
        "readings": [asdict(reading) for reading in judgement.readings],
        "requests": {
            "before": groups.before.requests if groups.before else 0,
            "control": groups.control.requests,
            "canary": groups.canary.requests,
        },
    }


def readings_of(document: dict[str, Any] | None) -> list[SignalReading]:
    """The signals of a stored judgement; none before the first."""
    found = document["readings"] if document else []
    return [SignalReading(**{**one, "verdict": SignalVerdict(one["verdict"])}) for one in found]


def decision_of(document: dict[str, Any] | None) -> Decision | None:
    """The decision of a stored judgement; None before the first."""
    return None if document is None else Decision(document["decision"])
