"""The course of one operation: steps that are claimed, reported, timed out, cancelled and undone. Pure.

A step is worked on under a token. Whoever reports under another one is late, and nothing comes of it; so a task may run
twice, and its result counts once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What an operator may ask for."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    SWITCH_ROLE = "switch_role"
    RESTART = "restart"
    REBALANCE = "rebalance"
    SHAPE_LINK = "shape_link"
    PROBE_LINK = "probe_link"
    APPLY_POLICY = "apply_policy"


class OperationState(StrEnum):
    """How far an operation is; the last three are ends."""

    PENDING = "pending"
    RUNNING = "running"
    UNDOING = "undoing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether something may still happen."""
        return self in {OperationState.PENDING, OperationState.RUNNING, OperationState.UNDOING}


class Stage(StrEnum):
    """What a step does.

    `hold` takes a node from the gateways, `converge` waits until all have said so, `empty` until it is at rest;
    `switch` gives it another role, `assign` tells the node, `warm` sends it a first request, `admit` gives it back.
    `restore` and a second `assign` undo.
    """

    HOLD = "hold"
    CONVERGE = "converge"
    EMPTY = "empty"
    SWITCH = "switch"
    ASSIGN = "assign"
    RESTART = "restart"
    WARM = "warm"
    ADMIT = "admit"
    RESTORE = "restore"
    ENFORCE = "enforce"
    PROBE = "probe"


class StepState(StrEnum):
    """How far a step is. Claimed: an order has left, nothing was heard yet. Running: it was heard of."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNDONE = "undone"

    @property
    def is_active(self) -> bool:
        """Whether somebody works on it."""
        return self in {StepState.CLAIMED, StepState.RUNNING}

    @property
    def is_settled(self) -> bool:
        """Whether it is over."""
        return self is not StepState.PENDING and not self.is_active


class Verdict(StrEnum):
    """What became of one look at a step: `again` is progress, not an end."""

    DONE = "done"
    AGAIN = "again"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step before anything happened. `site` is empty where control does it itself; `deadline_s` bounds it."""

    stage: Stage
    subject: str
    site: str
    deadline_s: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A step and what became of it; times are seconds of one clock."""

    plan: StepPlan
    state: StepState = StepState.PENDING
    token: str | None = None
    fence: int = 0
    attempt: int = 0
    started_at_s: float | None = None
    lease_until_s: float | None = None
    finished_at_s: float | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def label(self) -> str:
        """The step in an error's words."""
        return f"{self.plan.stage} of {self.plan.subject}" if self.plan.subject else str(self.plan.stage)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a step under a token."""

    verdict: Verdict
    progress: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as its steps tell it. `ending` is what it ends as once all that must be undone is."""

    kind: Kind
    steps: tuple[Step, ...]
    state: OperationState = OperationState.PENDING
    ending: OperationState | None = None
    error: str = ""

    @property
    def current(self) -> Step | None:
        """The step that is due; None when all are settled."""
        return next((step for step in self.steps if not step.state.is_settled), None)

    @property
    def position(self) -> int:
        """Where `current` stands."""
        return next((i for i, step in enumerate(self.steps) if not step.state.is_settled), len(self.steps))


def start(kind: Kind, plans: tuple[StepPlan, ...]) -> Operation:
    """An operation of which nothing has happened yet."""
    return Operation(kind, tuple(Step(plan) for plan in plans))


def can_claim(operation: Operation, now_s: float) -> bool:
    """Whether the current step waits for somebody, or whoever had it has been silent for too long."""
    step = operation.current
    if step is None or not operation.state.is_open:
        return False
    if step.state is StepState.PENDING:
        return True
    return step.lease_until_s is not None and now_s >= step.lease_until_s


def claim(operation: Operation, now_s: float, *, token: str, fence: int, lease_s: float) -> Operation:
    """Give the current step to a new holder; every earlier token is void.

    Raises:
        ValueError: nothing can be claimed, or the fence does not rise.
    """
    step = operation.current
    if step is None or not can_claim(operation, now_s):
        raise ValueError("no step can be claimed")
    if fence <= max(other.fence for other in operation.steps):
        raise ValueError("a fence only rises")
    claimed = replace(
        step,
        state=StepState.CLAIMED,
        token=token,
        fence=fence,
        attempt=step.attempt + 1,
        started_at_s=now_s if step.started_at_s is None else step.started_at_s,
        lease_until_s=now_s + lease_s,
    )
    state = OperationState.RUNNING if operation.state is OperationState.PENDING else operation.state
    return replace(_with(operation, operation.position, claimed), state=state)


def settle(
    operation: Operation, position: int, token: str, report: Report, now_s: float, *, lease_s: float | None = None
) -> Operation | None:
    """The operation after a report; None where the token is not, or no longer, the step's.

    `lease_s` is for how long progress keeps the step with its holder; None leaves the lease as it was.
    """
    if not 0 <= position < len(operation.steps):
        return None
    step = operation.steps[position]
    if not step.state.is_active or step.token != token:
        return None
    heard = replace(step, state=StepState.RUNNING, progress={**step.progress, **report.progress})
    match report.verdict:
        case Verdict.AGAIN:
            until_s = step.lease_until_s if lease_s is None else now_s + lease_s
            return _with(operation, position, replace(heard, lease_until_s=until_s))
        case Verdict.FAILED:
            return _failed(operation, position, heard, f"{step.label}: {report.error}", now_s)
        case Verdict.DONE:
            done = replace(heard, state=StepState.DONE, token=None, lease_until_s=None, finished_at_s=now_s)
            return _finish_if_over(_mark_undone(_with(operation, position, done), done))


def expire(operation: Operation, now_s: float, evidence: str = "") -> Operation:
    """Fail the current step if it has taken longer than it may. `evidence` says what is known of why."""
    step = operation.current
    if step is None or step.started_at_s is None or not step.state.is_active:
        return operation
    if now_s - step.started_at_s < step.plan.deadline_s:
        return operation
    why = f"{step.label} took longer than {step.plan.deadline_s:.0f} s" + (f": {evidence}" if evidence else "")
    return _failed(operation, operation.position, step, why, now_s)


def cancel(operation: Operation, now_s: float) -> Operation:
    """Stop, and undo what leaves a node unused; what is being undone already goes on being undone."""
    if operation.state in {OperationState.PENDING, OperationState.RUNNING}:
        return _turn_back(operation, OperationState.CANCELLED, "cancelled", now_s)
    return operation


def remaining_s(operation: Operation, now_s: float, typical_s: Mapping[Stage, float]) -> float | None:
    """Seconds until the end if every step takes as long as such steps usually do; None when it is over."""
    if not operation.state.is_open:
        return None
    total_s = 0.0
    for step in operation.steps:
        if not step.state.is_settled:
            usual_s = typical_s.get(step.plan.stage, step.plan.deadline_s)
            spent_s = 0.0 if step.started_at_s is None else now_s - step.started_at_s
            total_s += max(0.0, usual_s - spent_s)
    return total_s


def progress_ratio(operation: Operation) -> float:
    """Share of the steps that are settled, 0 to 1."""
    settled = sum(step.state.is_settled for step in operation.steps)
    return settled / len(operation.steps) if operation.steps else 1.0


def _with(operation: Operation, position: int, step: Step) -> Operation:
    return replace(operation, steps=(*operation.steps[:position], step, *operation.steps[position + 1 :]))


def _failed(operation: Operation, position: int, step: Step, error: str, now_s: float) -> Operation:
    failed = replace(step, state=StepState.FAILED, token=None, lease_until_s=None, finished_at_s=now_s, error=error)
    operation = _with(operation, position, failed)
    if step.plan.undoes:  # the other steps that undo are tried all the same
        return _finish_if_over(replace(operation, error=f"{operation.error}; undoing it: {error}"))
    return _turn_back(operation, OperationState.FAILED, error, now_s)


def _turn_back(operation: Operation, ending: OperationState, error: str, now_s: float) -> Operation:
    """Settle what is not, then undo what has to be, then end."""
    undoing = _undo_plans(operation, ending)
    steps = tuple(
        step
        if step.state.is_settled
        else replace(
            step,
            state=StepState.CANCELLED,
            token=None,
            lease_until_s=None,
            finished_at_s=None if step.state is StepState.PENDING else now_s,
        )
        for step in operation.steps
    )
    turned = replace(
        operation,
        steps=(*steps, *(Step(plan) for plan in undoing)),
        state=OperationState.UNDOING,
        ending=ending,
        error=error if ending is OperationState.FAILED else "",
    )
    return _finish_if_over(turned)


# A node that failed to drain stays drained: that is what was asked for, and it may be on its way to being taken out.
_KEPT_ON_FAILURE = frozenset({Kind.DRAIN})
UNDO_DEADLINE_S = 20.0


def _undo_plans(operation: Operation, ending: OperationState) -> list[StepPlan]:
    """What gives the node in hand back: only a node that was held and not admitted since is in hand."""
    if ending is OperationState.FAILED and operation.kind in _KEPT_ON_FAILURE:
        return []
    held: Step | None = None
    assigned: Step | None = None
    for step in operation.steps:
        is_touched = step.state is not StepState.PENDING
        if step.plan.stage is Stage.HOLD and step.state is StepState.DONE:
            held, assigned = step, None
        elif step.plan.stage is Stage.ASSIGN and is_touched:
            assigned = step
        elif step.plan.stage is Stage.ADMIT and step.state is StepState.DONE:
            held = None
    if held is None:
        return []
    before = dict(held.progress)
    plans = [StepPlan(Stage.RESTORE, held.plan.subject, "", UNDO_DEADLINE_S, before, undoes=True)]
    if assigned is not None:
        back = {**assigned.plan.arguments, "role": before.get("role"), "draining": False}
        site = assigned.plan.site
        plans.append(StepPlan(Stage.ASSIGN, assigned.plan.subject, site, UNDO_DEADLINE_S, back, undoes=True))
    return plans


_UNDONE_BY = {
    Stage.RESTORE: frozenset({Stage.HOLD, Stage.SWITCH}),
    Stage.ASSIGN: frozenset({Stage.ASSIGN}),
}


def _mark_undone(operation: Operation, by: Step) -> Operation:
    if not by.plan.undoes:
        return operation
    undone = _UNDONE_BY[by.plan.stage]
    return replace(
        operation,
        steps=tuple(
            replace(step, state=StepState.UNDONE)
            if not step.plan.undoes
            and step.plan.stage in undone
            and step.plan.subject == by.plan.subject
            and step.state is StepState.DONE
            else step
            for step in operation.steps
        ),
    )


def _finish_if_over(operation: Operation) -> Operation:
    if operation.current is not None:
        return operation
    return replace(operation, state=operation.ending or OperationState.DONE)
