"""Operations as pages show them: how far, how long still, what each step waits for, and a log. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from control.domain.operation_plans import TYPICAL_S
from control.domain.operations import (
    OperationState,
    Stage,
    Step,
    StepPlan,
    StepState,
    progress_ratio,
    remaining_s,
)
from control.services.operation_store import Stored

TONES: Final[Mapping[str, str]] = {
    OperationState.PENDING: "",
    OperationState.RUNNING: "accent",
    OperationState.UNDOING: "warn",
    OperationState.DONE: "ok",
    OperationState.FAILED: "bad",
    OperationState.CANCELLED: "warn",
}
STEP_TONES: Final[Mapping[str, str]] = {
    StepState.PENDING: "next",
    StepState.CLAIMED: "now",
    StepState.RUNNING: "now",
    StepState.DONE: "done",
    StepState.FAILED: "bad",
    StepState.CANCELLED: "off",
    StepState.UNDONE: "off",
}
SETTLED_ENDS: Final = frozenset({OperationState.FAILED, OperationState.CANCELLED})


@dataclass(frozen=True, slots=True)
class StepView:
    """One step; `in_flight` counts requests and handoffs that a node still works on, None where nobody counts."""

    number: int
    stage: str
    subject: str
    site: str
    state: str
    tone: str
    undoes: bool
    attempt: int
    elapsed_s: float | None
    left_s: float | None
    in_flight: tuple[int, int] | None
    waiting_for: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class OperationView:
    """One operation. `eta_s` is None once it is over, `in_flight` is the current step's."""

    id: int
    kind: str
    target: str
    state: str
    tone: str
    progress: float
    elapsed_s: float
    eta_s: float | None
    error: str
    result: Any
    reason: str
    actor: str
    created_at: datetime
    retry_of: int | None
    steps: tuple[StepView, ...]
    is_open: bool
    may_retry: bool

    @property
    def current(self) -> StepView | None:
        """The step that is under way."""
        return next((step for step in self.steps if step.tone == "now"), None)

    @property
    def subject(self) -> str:
        """What it is about without the noun."""
        return self.target.partition("/")[2]


@dataclass(frozen=True, slots=True)
class LogLine:
    """What happened when; `key` names the sentence, `values` fill it, `text` is what somebody or something said."""

    at: datetime
    key: str
    values: Mapping[str, Any]
    text: str = ""


def operation_view(stored: Stored, now: datetime, typical_s: Mapping[Stage, float]) -> OperationView:
    """An operation as it is now; `typical_s` is how long such steps took."""
    row, operation = stored.row, stored.operation
    end = row.finished_at or now
    return OperationView(
        id=stored.id,
        kind=operation.kind.value,
        target=row.target,
        state=operation.state.value,
        tone=TONES[operation.state],
        progress=progress_ratio(operation),
        elapsed_s=max(0.0, (end - row.created_at).total_seconds()),
        eta_s=remaining_s(operation, now.timestamp(), {**TYPICAL_S, **typical_s}),
        error=row.error,
        result=row.result,
        reason=row.reason,
        actor=row.actor,
        created_at=row.created_at,
        retry_of=row.retry_of,
        steps=tuple(step_view(number, step, now) for number, step in enumerate(operation.steps, 1)),
        is_open=operation.state.is_open,
        may_retry=operation.state in SETTLED_ENDS,
    )


def step_view(number: int, step: Step, now: datetime) -> StepView:
    """A step as it is now."""
    began_s = step.started_at_s
    elapsed_s = None if began_s is None else max(0.0, (step.finished_at_s or now.timestamp()) - began_s)
    progress = step.progress
    counted = "requests_in_flight" in progress and step.state.is_active
    return StepView(
        number=number,
        stage=step.plan.stage.value,
        subject=step.plan.subject,
        site=step.plan.site,
        state=step.state.value,
        tone=STEP_TONES[step.state],
        undoes=step.plan.undoes,
        attempt=step.attempt,
        elapsed_s=elapsed_s,
        left_s=max(0.0, step.plan.deadline_s - elapsed_s) if step.state.is_active and elapsed_s is not None else None,
        in_flight=(int(progress["requests_in_flight"]), int(progress["handoffs_in_flight"])) if counted else None,
        waiting_for=tuple(map(str, progress.get("waiting_for") or ())) if step.state.is_active else (),
        error=step.error,
    )


def planned_steps(plans: Sequence[StepPlan]) -> tuple[StepView, ...]:
    """Steps before anything happened."""
    return tuple(step_view(number, Step(plan), datetime.now(UTC)) for number, plan in enumerate(plans, 1))


def operation_log(stored: Stored, said: Iterable[tuple[datetime, str, str]]) -> list[LogLine]:
    """What happened, oldest first.

    Args:
        stored: the operation.
        said: moment, actor and reason of each time that somebody interfered with it.
    """
    row = stored.row
    lines = [LogLine(row.created_at, "asked", {"who": row.actor}, row.reason)]
    lines += [LogLine(at, "cancelled", {"who": who}, reason) for at, who, reason in said]
    for number, step in enumerate(stored.operation.steps, 1):
        label = {"number": number, "stage": step.plan.stage.value, "subject": step.plan.subject}
        if step.started_at_s is not None:
            lines.append(LogLine(_moment(step.started_at_s), "began", label))
        if step.finished_at_s is not None and step.state is not StepState.PENDING:
            lines.append(LogLine(_moment(step.finished_at_s), f"step_{step.state}", label, step.error))
        elif step.state.is_active:
            waiting = "; ".join(map(str, step.progress.get("waiting_for") or ()))
            if waiting:
                lines.append(LogLine(_moment(step.started_at_s or 0.0), "waits", label, waiting))
    if row.finished_at is not None:
        lines.append(LogLine(row.finished_at, f"ended_{row.state}", {}, row.error))
    return sorted(lines, key=lambda line: line.at)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
