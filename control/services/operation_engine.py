"""Moves operations on: from what is stored, as often as anybody asks, with the same effect."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control.domain.lifecycle import evidence_of, judge_rest
from control.domain.operations import (
    Operation,
    OperationState,
    Report,
    Stage,
    Step,
    Verdict,
    can_claim,
    claim,
    expire,
    settle,
)
from control.errors import NotFoundError
from control.orders import ADVANCE_OPERATION, CONTROL_QUEUE, Order
from control.services.audit import record_event
from control.services.operation_orders import order_again, orders_of
from control.services.operation_stages import Scene, perform
from control.services.operation_store import Stored, load_open_rows, load_operation, next_fence, save_operation
from control.services.plane import ControlPlane
from control.services.sightings import load_sightings
from control.store.session import UnitOfWork
from control.store.tables import LinkProbeRow

# An agent's task may take ten seconds; one that has not been heard for longer than that and its way is given up.
STEP_LEASE_S = 15.0
_MOVES_AT_ONCE = 100

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """An agent's word on a step."""

    operation_id: int
    position: int
    token: str
    source: str
    verdict: Verdict
    progress: Mapping[str, Any]
    error: str

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> "StepReport":
        """Read the arguments of the report task.

        Raises:
            KeyError, TypeError, ValueError: they are not a report's.
        """
        return cls(
            operation_id=int(arguments["operation_id"]),
            position=int(arguments["position"]),
            token=str(arguments["token"]),
            source=str(arguments["source"]),
            verdict=Verdict(arguments["verdict"]),
            progress=dict(arguments.get("progress") or {}),
            error=str(arguments.get("error") or "")[:500],
        )


def advance_operation(plane: ControlPlane, number: int) -> bool:
    """Do all that can be done now for one operation.

    Returns:
        Whether it is open still.
    """
    sightings = load_sightings(plane)
    with plane.database.unit_of_work(plane.send) as work:
        try:
            stored = load_operation(work.session, number, lock=True)
        except NotFoundError:
            return False
        scene = Scene(work, plane, stored, sightings)
        if stored.operation.state.is_open:
            _save(scene, _advance(scene, stored.operation))
        return stored.operation.state.is_open


def sweep_operations(plane: ControlPlane) -> list[int]:
    """Move every open operation on: finds what a lost message missed.

    Returns:
        Numbers of the operations that are open still.
    """
    with plane.database.reading() as session:
        numbers = [row.id for row in load_open_rows(session) if row.id is not None]
    return [number for number in numbers if advance_operation(plane, number)]


def record_step_report(plane: ControlPlane, report: StepReport) -> bool:
    """Take an agent's report, unless it comes under a token that is no longer the step's, and move on.

    Returns:
        Whether it was taken.
    """
    sightings = load_sightings(plane)
    with plane.database.unit_of_work(plane.send) as work:
        try:
            stored = load_operation(work.session, report.operation_id, lock=True)
        except NotFoundError:
            return False
        scene = Scene(work, plane, stored, sightings)
        settled = _settle(scene, report)
        if settled is None:
            log.info("dropped a late report of %s on operation %d", report.source, report.operation_id)
            return False
        _keep_measurement(scene, report)
        _save(scene, _advance(scene, settled))
    return True


def cancel_stored(scene: Scene, change: Callable[[Operation, float], Operation]) -> None:
    """Change an operation from outside and do what follows from it at once."""
    operation = change(scene.stored.operation, scene.plane.now().timestamp())
    _save(scene, _advance(scene, operation))


def _advance(scene: Scene, operation: Operation) -> Operation:
    """Claim and perform until somebody else is needed."""
    plane = scene.plane
    for _ in range(_MOVES_AT_ONCE):
        now_s = plane.now().timestamp()
        step = operation.current
        if step is None or not operation.state.is_open:
            break
        expired = expire(operation, now_s, evidence_of(step))
        if expired is not operation:
            operation = expired
            continue
        if step.plan.site:
            if can_claim(operation, now_s):
                operation = _order_step(scene, operation, now_s)
            break
        moved = _perform_step(scene, operation, now_s)
        if moved is None:
            break
        operation = moved[0]
        if moved[1] is Verdict.AGAIN:
            break
    return operation


def _perform_step(scene: Scene, operation: Operation, now_s: float) -> tuple[Operation, Verdict] | None:
    step = operation.current
    if step is None:
        return None
    if not step.state.is_active:
        operation = _claimed(scene, operation, now_s, step.plan.deadline_s)
        step = operation.steps[operation.position]
    report = perform(scene, step)
    settled = settle(operation, operation.position, step.token or "", report, now_s)
    return None if settled is None else (settled, report.verdict)


def _order_step(scene: Scene, operation: Operation, now_s: float) -> Operation:
    """Give a step to the agents that it needs; whoever had it before is late from now on."""
    operation = _claimed(scene, operation, now_s, STEP_LEASE_S)
    position = operation.position
    step = operation.steps[position]
    scene.stored.operation, before = operation, scene.stored.operation
    try:
        orders = orders_of(scene.work.session, scene.stored, step, position)
    except NotFoundError as error:
        lost = settle(operation, position, step.token or "", Report(Verdict.FAILED, error=error.detail), now_s)
        return operation if lost is None else lost
    finally:
        scene.stored.operation = before
    for known in orders:
        scene.work.enqueue(known.order)
    if step.plan.stage is Stage.EMPTY:
        sources = [known.source for known in orders]
        _, countdown = judge_rest(sources, {})
        asked = {"sources": sources, "seen": {}, "waiting_for": countdown["waiting_for"]}
        begun = settle(operation, position, step.token or "", Report(Verdict.AGAIN, asked), now_s)
        return operation if begun is None else begun
    return operation


def _claimed(scene: Scene, operation: Operation, now_s: float, lease_s: float) -> Operation:
    fence = next_fence(scene.work.session, scene.plane.now())
    return claim(operation, now_s, token=secrets.token_hex(16), fence=fence, lease_s=lease_s)


def _settle(scene: Scene, report: StepReport) -> Operation | None:
    """The operation after a report; one that says `again` is answered with the same order."""
    operation, position = scene.stored.operation, report.position
    if not 0 <= position < len(operation.steps):
        return None
    step = operation.steps[position]
    outcome, ask = Report(report.verdict, report.progress, report.error), report.source
    # The lease of `empty` is not prolonged: a new claim asks all sources again, also one whose answer got lost.
    lease_s = None if step.plan.stage is Stage.EMPTY else STEP_LEASE_S
    if step.plan.stage is Stage.EMPTY:
        outcome, ask = _rest(step, report)
    now_s = scene.plane.now().timestamp()
    settled = settle(operation, position, report.token, outcome, now_s, lease_s=lease_s)
    if settled is not None and outcome.verdict is Verdict.AGAIN and ask:
        orders = orders_of(scene.work.session, scene.stored, step, position)
        scene.work.enqueue(order_again(orders, ask))
    return settled


def _rest(step: Step, report: StepReport) -> tuple[Report, str]:
    """What all sources say together, and which one to ask again; empty for none.

    The node is asked last, once no gateway has anything on it: what a gateway had planned may have reached the node
    after it was looked at.
    """
    node = step.plan.subject
    seen = {**step.progress.get("seen", {}), report.source: dict(report.progress)}
    sources = step.progress.get("sources", ())
    ask = report.source if report.verdict is Verdict.AGAIN else ""
    gateways = [source for source in sources if source != node]
    if report.source != node and node in seen and judge_rest(gateways, seen)[0] is Verdict.DONE:
        del seen[node]
        ask = node
    verdict, countdown = judge_rest(sources, seen)
    return Report(verdict, {"seen": seen, **countdown}), ask


def _keep_measurement(scene: Scene, report: StepReport) -> None:
    """The probe's figures become the operation's result, and a row of the link's history."""
    step = scene.stored.operation.steps[report.position]
    if step.plan.stage is not Stage.PROBE or report.verdict is not Verdict.DONE:
        return
    measured = report.progress
    row = LinkProbeRow(
        link=step.plan.subject,
        operation_id=scene.stored.id,
        measured_at=scene.plane.now(),
        size_bytes=int(measured["size_bytes"]),
        duration_s=float(measured["duration_s"]),
        bandwidth_bytes_per_s=float(measured["bandwidth_bytes_per_s"]),
        rtt_s=float(measured["rtt_s"]),
    )
    scene.stored.row.result = row.model_dump(include={"size_bytes", "duration_s", "bandwidth_bytes_per_s", "rtt_s"})
    scene.work.session.add(row)


def _save(scene: Scene, operation: Operation) -> None:
    was_open = scene.stored.row.open_key is not None
    now = scene.plane.now()
    save_operation(scene.work.session, scene.stored, operation, now)
    if was_open and not operation.state.is_open:
        _audit_end(scene.work, scene.stored, now)


def _audit_end(work: UnitOfWork, stored: Stored, now: datetime) -> None:
    state = OperationState(stored.row.state)
    record_event(
        work.session,
        now,
        stored.row.actor,
        f"operation.{state.value}",
        f"operation/{stored.id}",
        after={"kind": stored.row.kind, "target": stored.row.target, "error": stored.row.error},
        reason=stored.row.reason,
    )


def advance_order(number: int) -> Order:
    """The order that has a worker of control look at an operation at once."""
    return Order(ADVANCE_OPERATION, CONTROL_QUEUE, {"operation_id": number})
