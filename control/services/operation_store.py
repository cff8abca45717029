"""Operations between SQL and the state machine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlmodel import Session, col, select

from control.domain.operations import (
    Kind,
    Operation,
    OperationState,
    Stage,
    Step,
    StepPlan,
    StepState,
)
from control.errors import NotFoundError
from control.store.counters import lock_counter, raise_counter
from control.store.tables import OperationRow, OperationStepRow, SettingRow

_FENCE_SETTING = "operations.fence"
_MEASURED_STEPS = 200


@dataclass(slots=True)
class Stored:
    """An operation's row and the operation that its steps make."""

    row: OperationRow
    operation: Operation

    @property
    def id(self) -> int:
        """Number of the operation."""
        if self.row.id is None:
            raise RuntimeError("the operation was never stored")
        return self.row.id


def load_operation(session: Session, number: int, *, lock: bool = False) -> Stored:
    """One operation; `lock` keeps others from changing it until the commit.

    Raises:
        NotFoundError: there is none of that number.
    """
    row = session.get(OperationRow, number, with_for_update=lock or None, populate_existing=lock)
    if row is None:
        raise NotFoundError(f"There is no operation {number}.")
    return Stored(row, _operation_of(row, _load_steps(session, [number])))


def load_operations(
    session: Session,
    *,
    limit: int,
    before: int | None = None,
    kinds: Iterable[str] = (),
    states: Iterable[str] = (),
    target: str | None = None,
) -> list[Stored]:
    """Operations, newest first, older than the given one, as far as they match."""
    query = select(OperationRow).order_by(col(OperationRow.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(OperationRow.id) < before)
    if wanted := list(kinds):
        query = query.where(col(OperationRow.kind).in_(wanted))
    if wanted := list(states):
        query = query.where(col(OperationRow.state).in_(wanted))
    if target is not None:
        query = query.where(OperationRow.target == target)
    rows = session.exec(query).all()
    steps = _load_steps(session, [row.id for row in rows if row.id is not None])
    return [Stored(row, _operation_of(row, [step for step in steps if step.operation_id == row.id])) for row in rows]


def load_open_rows(session: Session) -> list[OperationRow]:
    """Rows of operations that are not over, oldest first."""
    query = select(OperationRow).where(col(OperationRow.open_key).is_not(None)).order_by(col(OperationRow.id))
    return list(session.exec(query))


def save_operation(session: Session, stored: Stored, operation: Operation, now: datetime) -> None:
    """Write what has changed."""
    row, before = stored.row, stored.operation
    for position, step in enumerate(operation.steps):
        if position >= len(before.steps) or step != before.steps[position]:
            session.merge(step_row(stored.id, position, step))
    row.state = operation.state.value
    row.ending = operation.ending.value if operation.ending else None
    row.error = operation.error
    if not operation.state.is_open and row.open_key is not None:
        row.open_key = None
        row.finished_at = now
    session.add(row)
    session.flush()
    stored.operation = operation


def step_row(number: int, position: int, step: Step) -> OperationStepRow:
    """A step as a row."""
    return OperationStepRow(
        operation_id=number,
        position=position,
        stage=step.plan.stage.value,
        subject=step.plan.subject,
        site=step.plan.site,
        deadline_s=step.plan.deadline_s,
        arguments=dict(step.plan.arguments),
        undoes=step.plan.undoes,
        state=step.state.value,
        lease_token=step.token,
        fence=step.fence,
        attempt=step.attempt,
        started_at=_moment(step.started_at_s),
        lease_until=_moment(step.lease_until_s),
        finished_at=_moment(step.finished_at_s),
        progress=dict(step.progress),
        error=step.error,
    )


def lock_operations(session: Session, now: datetime) -> SettingRow:
    """The row that whoever opens an operation or claims a step holds until the commit."""
    return lock_counter(session, _FENCE_SETTING, now, "system")


def next_fence(session: Session, now: datetime) -> int:
    """A fencing token above all earlier ones, also those of a database that is gone: it follows the clock."""
    row = lock_operations(session, now)
    return raise_counter(session, row, max(int(row.value) + 1, int(now.timestamp() * 1000)), now, "system")


def load_typical_s(session: Session) -> dict[Stage, float]:
    """Mean duration of the last steps of each stage that were done, seconds."""
    query = (
        select(OperationStepRow)
        .where(OperationStepRow.state == StepState.DONE.value)
        .order_by(col(OperationStepRow.operation_id).desc())
        .limit(_MEASURED_STEPS)
    )
    durations: dict[Stage, list[float]] = {}
    for row in session.exec(query):
        if row.started_at and row.finished_at:
            durations.setdefault(Stage(row.stage), []).append((row.finished_at - row.started_at).total_seconds())
    return {stage: sum(values) / len(values) for stage, values in durations.items()}


def _load_steps(session: Session, numbers: Sequence[int]) -> list[OperationStepRow]:
    query = (
        select(OperationStepRow)
        .where(col(OperationStepRow.operation_id).in_(numbers))
        .order_by(col(OperationStepRow.operation_id), col(OperationStepRow.position))
        .execution_options(populate_existing=True)
    )
    return list(session.exec(query))


def _operation_of(row: OperationRow, steps: Sequence[OperationStepRow]) -> Operation:
    return Operation(
        kind=Kind(row.kind),
        steps=tuple(_step_of(step) for step in steps),
        state=OperationState(row.state),
        ending=OperationState(row.ending) if row.ending else None,
        error=row.error,
    )


def _step_of(row: OperationStepRow) -> Step:
    plan = StepPlan(Stage(row.stage), row.subject, row.site, row.deadline_s, dict(row.arguments), row.undoes)
    return Step(
        plan=plan,
        state=StepState(row.state),
        token=row.lease_token,
        fence=row.fence,
        attempt=row.attempt,
        started_at_s=_seconds(row.started_at),
        lease_until_s=_seconds(row.lease_until),
        finished_at_s=_seconds(row.finished_at),
        progress=dict(row.progress),
        error=row.error,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: Any) -> float | None:
    return None if moment is None else float(moment.timestamp())
