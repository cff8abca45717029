"""Operations over REST: asked for, watched, cancelled, tried again."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.operation_schemas import (
    NO_CONTROLS,
    LinkProbeOut,
    NodeHealthOut,
    OperationIn,
    OperationOut,
    OperationPreviewOut,
)
from control.api.schemas import MAX_NUMBER, Page, ReasonIn
from control.domain.operations import Kind, OperationState
from control.domain.staleness import judge_health
from control.services import fleet, operations
from control.services.operation_store import Stored, load_operation, load_operations, load_typical_s
from control.services.plane import ControlPlane
from control.services.sightings import load_sightings

router = APIRouter(tags=["operations"])

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Cursor = Annotated[int | None, Query(ge=1, le=MAX_NUMBER)]
Limit = Annotated[int, Query(ge=1, le=200)]


@router.post(
    "/operations",
    status_code=202,
    responses={200: {"model": OperationPreviewOut, "description": "With dry_run: what would be done."}},
)
def open_operation(
    body: Annotated[OperationIn, Body()],
    plane: Plane,
    principal: Operator,
    response: Response,
    *,
    dry_run: bool = False,
) -> OperationOut | OperationPreviewOut:
    """Start an operation; the same one, while it is open, is not started twice. With `dry_run` it is only planned."""
    if dry_run:
        response.status_code = 200
        return OperationPreviewOut.of(operations.preview_operation(plane, body.kind, body.parameters()))
    opened = operations.open_operation(plane, principal, body.kind, body.parameters(), body.reason)
    return _accepted(plane, opened.stored, response)


@router.get("/operations")
def list_operations(
    plane: Plane,
    _: Viewer,
    *,
    kind: Annotated[list[Kind] | None, Query()] = None,
    state: Annotated[list[OperationState] | None, Query()] = None,
    target: Annotated[str | None, Query(max_length=300, pattern=NO_CONTROLS)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[OperationOut]:
    """Operations, newest first."""
    with plane.database.reading() as session:
        found = load_operations(
            session, limit=limit + 1, before=cursor, kinds=kind or (), states=state or (), target=target
        )
        typical_s = load_typical_s(session)
    items = [OperationOut.of(stored, plane.now(), typical_s) for stored in found[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None)


@router.get("/operations/{number}")
def read_operation(number: Number, plane: Plane, _: Viewer) -> OperationOut:
    """One operation with its steps."""
    with plane.database.reading() as session:
        return OperationOut.of(load_operation(session, number), plane.now(), load_typical_s(session))


@router.post("/operations/{number}/cancel", status_code=202)
def cancel_operation(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response
) -> OperationOut:
    """Stop an operation, and undo what would leave a node unused."""
    return _accepted(plane, operations.cancel_operation(plane, principal, number, body.reason), response)


@router.post("/operations/{number}/retry", status_code=202)
def retry_operation(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response
) -> OperationOut:
    """Start anew what failed or was cancelled, planned on the fleet as it is; the answer is the new operation."""
    opened = operations.retry_operation(plane, principal, number, body.reason)
    return _accepted(plane, opened.stored, response)


@router.get("/links/{name}/probes")
def list_probes(
    name: Annotated[str, Path(max_length=200)], plane: Plane, _: Viewer, cursor: Cursor = None, limit: Limit = 50
) -> Page[LinkProbeOut]:
    """What was measured on a link, newest first."""
    with plane.database.reading() as session:
        fleet.find(fleet.load_links(session), "link", name)
        rows = operations.load_probes(session, name, limit + 1, cursor)
    items = [LinkProbeOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


@router.get("/node-health")
def list_node_health(plane: Plane, _: Viewer) -> Page[NodeHealthOut]:
    """What observers last saw of every node: healthy, stalled, unreachable, or stale, which is none of these."""
    sightings = load_sightings(plane)
    with plane.database.reading() as session:
        nodes = fleet.load_nodes(session)
    return Page(
        items=[
            NodeHealthOut(
                node=node.name,
                site=node.site,
                health=judge_health(sightings.get(node.name)),
                age_s=sightings[node.name].age_s if node.name in sightings else None,
            )
            for node in nodes
        ]
    )


def _accepted(plane: ControlPlane, stored: Stored, response: Response) -> OperationOut:
    response.headers["Location"] = f"/api/v1/operations/{stored.id}"
    with plane.database.reading() as session:
        return OperationOut.of(load_operation(session, stored.id), plane.now(), load_typical_s(session))
