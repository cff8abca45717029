"""The demo traffic's switch and the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Query

from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import MAX_NUMBER, AuditEventOut, DemoTraffic, Page
from control.services import audit, demo

router = APIRouter()


@router.get("/demo-traffic", tags=["demo"])
def read_demo_traffic(plane: Plane, _: Viewer) -> DemoTraffic:
    """Whether the demo traffic should run."""
    with plane.database.reading() as session:
        return DemoTraffic(running=demo.is_demo_wanted(session))


@router.put("/demo-traffic", tags=["demo"])
def set_demo_traffic(body: DemoTraffic, plane: Plane, principal: Operator) -> DemoTraffic:
    """Start or stop the demo traffic."""
    demo.set_demo_wanted(plane, principal, running=body.running)
    return body


@router.get("/audit", tags=["audit"])
def list_audit(
    plane: Plane,
    _: Viewer,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[AuditEventOut]:
    """Events, newest first."""
    with plane.database.reading() as session:
        rows = audit.load_events(session, limit + 1, cursor)
    items = [AuditEventOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)
