"""Operations as they are asked for: planned, opened once, cancelled, tried again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from control.domain.operations import Kind, OperationState, StepPlan, cancel, start
from control.errors import ConflictError, InvalidError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.operation_engine import advance_order, cancel_stored
from control.services.operation_requests import Request, open_key_of, plan_request, target_of
from control.services.operation_stages import Scene
from control.services.operation_store import (
    Stored,
    load_open_rows,
    load_operation,
    lock_operations,
    save_operation,
)
from control.services.plane import ControlPlane
from control.services.sightings import load_sightings
from control.store.tables import LinkProbeRow, OperationRow


@dataclass(frozen=True, slots=True)
class Opened:
    """An operation; `joined` where the same one was open already."""

    stored: Stored
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """What an operation would do."""

    request: Request
    steps: tuple[StepPlan, ...]
    result: Any = None


def preview_operation(plane: ControlPlane, kind: Kind, parameters: Mapping[str, Any]) -> Preview:
    """The steps of an operation; changes nothing.

    Raises:
        InvalidError, NotFoundError, ConflictError: as `open_operation`.
    """
    request = plan_request(plane, kind, parameters)
    return Preview(request, request.steps, request.result)


def open_operation(
    plane: ControlPlane,
    principal: Principal,
    kind: Kind,
    parameters: Mapping[str, Any],
    reason: str,
    *,
    retry_of: int | None = None,
) -> Opened:
    """Start an operation. The same one, asked for again while it is open, is that one.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: it cannot be obeyed.
        NotFoundError: its node, link, site or revision is unknown.
        ConflictError: another operation has its target or one of its nodes, or the fleet does not allow it now.
    """
    require_role(principal, Role.OPERATOR)
    if not reason.strip():
        raise InvalidError("Give a reason.")
    with plane.database.reading() as session:
        known = _find_open(session, kind, parameters)
    if known is not None:
        return known
    request = plan_request(plane, kind, parameters).prepare(plane, principal, reason)
    with plane.database.unit_of_work(plane.send) as work:
        lock_operations(work.session, plane.now())
        known = _find_open(work.session, kind, parameters)
        if known is not None:
            return known
        _refuse_overlap(work.session, request)
        stored = _insert(work.session, plane, principal, request, reason=reason, retry_of=retry_of)
        work.enqueue(advance_order(stored.id))
    return Opened(stored)


def cancel_operation(plane: ControlPlane, principal: Principal, number: int, reason: str) -> Stored:
    """Stop an operation and undo what leaves a node unused; one that is over stays as it is.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that number.
        ConflictError: it is over.
    """
    require_role(principal, Role.OPERATOR)
    sightings = load_sightings(plane)
    with plane.database.unit_of_work(plane.send) as work:
        stored = load_operation(work.session, number, lock=True)
        if not stored.operation.state.is_open:
            raise ConflictError(f"Operation {number} is over: {stored.operation.state}.")
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "operation.cancel",
            f"operation/{number}",
            before={"state": stored.row.state},
            reason=reason,
        )
        cancel_stored(Scene(work, plane, stored, sightings), cancel)
    return stored


def retry_operation(plane: ControlPlane, principal: Principal, number: int, reason: str) -> Opened:
    """Ask again for what failed or was cancelled, planned anew on the fleet as it is.

    Raises:
        ForbiddenError, InvalidError, NotFoundError: as `open_operation`.
        ConflictError: as there, or the operation is open or done.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.reading() as session:
        stored = load_operation(session, number)
    if stored.operation.state not in {OperationState.FAILED, OperationState.CANCELLED}:
        raise ConflictError(
            f"Operation {number} is {stored.operation.state}; only a failed or cancelled one is retried."
        )
    return open_operation(
        plane, principal, stored.operation.kind, stored.row.parameters, reason or stored.row.reason, retry_of=number
    )


def load_probes(session: Session, link: str, limit: int, before: int | None = None) -> list[LinkProbeRow]:
    """What was measured on a link, newest first, older than the given one."""
    query = select(LinkProbeRow).where(LinkProbeRow.link == link).order_by(col(LinkProbeRow.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(LinkProbeRow.id) < before)
    return list(session.exec(query))


def _find_open(session: Session, kind: Kind, parameters: Mapping[str, Any]) -> Opened | None:
    key = open_key_of(kind, target_of(kind, parameters))
    row = session.exec(select(OperationRow).where(OperationRow.open_key == key)).first()
    if row is None or row.id is None:
        return None
    if row.parameters != dict(parameters):
        raise ConflictError(f"Operation {row.id} ({row.kind} of {row.target}) is open with other parameters.")
    return Opened(load_operation(session, row.id), joined=True)


def _refuse_overlap(session: Session, request: Request) -> None:
    for row in load_open_rows(session):
        shared = sorted(set(row.subjects) & set(request.subjects))
        if shared:
            raise ConflictError(f"Operation {row.id} ({row.kind} of {row.target}) is open on {', '.join(shared)}.")


def _insert(
    session: Session,
    plane: ControlPlane,
    principal: Principal,
    request: Request,
    *,
    reason: str,
    retry_of: int | None,
) -> Stored:
    now = plane.now()
    row = OperationRow(
        kind=request.kind.value,
        target=request.target,
        open_key=request.open_key,
        subjects=list(request.subjects),
        parameters=dict(request.parameters),
        state=OperationState.PENDING.value,
        actor=principal.name,
        reason=reason,
        result=request.result,
        retry_of=retry_of,
        created_at=now,
    )
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise ConflictError("The same operation was opened at this moment; ask again.") from error
    empty = start(request.kind, ())
    stored = Stored(row, empty)
    save_operation(session, stored, start(request.kind, request.steps), now)
    record_event(
        session,
        now,
        principal.name,
        "operation.open",
        f"operation/{stored.id}",
        after={"kind": row.kind, "target": row.target, "parameters": row.parameters},
        reason=reason,
    )
    return stored
