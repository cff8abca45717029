"""A guarded roll-out as the Policies page shows it: its steps, its signals, and what can be done now. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from control.domain.guard_rules import SignalVerdict
from control.domain.rollout import Phase, progress_ratio
from control.services.rollout_store import StoredRollout, decision_of, readings_of
from control.services.rollouts import version_of

STEPS: Final = (Phase.DRAFT, Phase.CANARY, Phase.BAKING, Phase.PROMOTING)
_TONES: Final[Mapping[SignalVerdict, str]] = {
    SignalVerdict.OK: "ok",
    SignalVerdict.SUSPECT: "warn",
    SignalVerdict.BREACH: "bad",
    SignalVerdict.MISSING: "",
    SignalVerdict.OFF: "",
}


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step: `done`, `now`, `next` or `failed`."""

    key: str
    state: str


@dataclass(frozen=True, slots=True)
class SignalView:
    """One signal in the unit of people; None where there is nothing to compare."""

    name: str
    unit: str
    before: str
    control: str
    canary: str
    bound: str
    verdict: str
    tone: str


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A roll-out as it is now."""

    id: int
    version: str
    revision: int
    base_revision: int
    reverted_to: int | None
    phase: str
    is_open: bool
    site: str
    share: float
    bake_s: float
    baked_s: float
    progress: float
    decision: str
    waiting_for: tuple[str, ...]
    ending: str
    requests: Mapping[str, int]
    steps: tuple[RolloutStep, ...]
    signals: tuple[SignalView, ...]
    actor: str
    reason: str
    created_at: datetime
    may_promote: bool
    may_pause: bool
    may_resume: bool
    may_abort: bool


def rollout_view(stored: StoredRollout) -> RolloutView:
    """A stored roll-out."""
    row, rollout = stored.row, stored.rollout
    decision = decision_of(row.judgement)
    phase = rollout.phase
    return RolloutView(
        id=stored.id,
        version=version_of(stored),
        revision=row.revision,
        base_revision=row.base_revision,
        reverted_to=row.reverted_to,
        phase=phase.value,
        is_open=phase.is_open,
        site=row.canary_site or "",
        share=row.canary_share,
        bake_s=rollout.bake_s,
        baked_s=rollout.baked_s,
        progress=progress_ratio(rollout),
        decision=decision.value if decision else "",
        waiting_for=tuple(rollout.waiting_for),
        ending=rollout.ending,
        requests=row.judgement["requests"] if row.judgement else {"before": 0, "control": 0, "canary": 0},
        steps=rollout_steps(phase, rollout.paused_from),
        signals=tuple(_signal(reading) for reading in readings_of(row.judgement)),
        actor=row.actor,
        reason=row.reason,
        created_at=row.created_at,
        may_promote=rollout.has_canary,
        may_pause=phase in {Phase.DRAFT, Phase.CANARY, Phase.BAKING},
        may_resume=phase is Phase.PAUSED,
        may_abort=phase.is_open and phase is not Phase.ABORTING,
    )


def rollout_steps(phase: Phase, paused_from: Phase | None) -> tuple[RolloutStep, ...]:
    """The steps up to all requests; one that is paused stands at where it was, one that is over at its end."""
    here = paused_from or phase
    if phase in {Phase.ABORTING, Phase.ABORTED}:
        return tuple(RolloutStep(step.value, "failed" if step is STEPS[-1] else "done") for step in STEPS)
    if phase is Phase.DONE:
        return tuple(RolloutStep(step.value, "done") for step in STEPS)
    at = STEPS.index(here)
    states = ("done" if index < at else "now" if index == at else "next" for index in range(len(STEPS)))
    return tuple(RolloutStep(step.value, state) for step, state in zip(STEPS, states, strict=True))


def _signal(reading: Any) -> SignalView:
    scale, unit = (100.0, "%") if reading.unit == "ratio" else (1.0, reading.unit)

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value * scale:.3g}"

    return SignalView(
        name=reading.signal,
        unit=unit,
        before=shown(reading.before),
        control=shown(reading.control),
        canary=shown(reading.canary),
        bound=shown(reading.bound),
        verdict=reading.verdict.value,
        tone=_TONES[reading.verdict],
    )
