"""Alerts over REST: what fires, what happened to it, and who looks after it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from control.api.alerts_schemas import AlertDetailOut, AlertEventOut, AlertOut, CommentIn, MetricOut, Word
from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import MAX_NUMBER, Page
from control.domain.alert_metrics import METRICS
from control.domain.alert_rules import Severity
from control.domain.alerts import AlertState
from control.services import alerts
from control.services.alerts import AlertFilter
from control.services.plane import ControlPlane

router = APIRouter(tags=["alerts"])

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Before = Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="`next_cursor` of the part before.")]
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many items.")]


@router.get("/alert-metrics")
def list_metrics(_: Viewer) -> Page[MetricOut]:
    """The figures that rules may watch."""
    return Page(items=[MetricOut.model_validate(metric) for metric in METRICS])


@router.get("/alerts")
def list_alerts(
    plane: Plane,
    _: Viewer,
    *,
    state: Annotated[list[AlertState] | None, Query(description="Several: any of them.")] = None,
    rule: Annotated[Word | None, Query()] = None,
    severity: Severity | None = None,
    cursor: Before = None,
    limit: Limit = 50,
) -> Page[AlertOut]:
    """Alerts, newest first."""
    wanted = AlertFilter(tuple(state or ()), rule, severity)
    with plane.database.reading() as session:
        seen = alerts.load_alerts(session, plane.now(), wanted, limit + 1, cursor)
    items = [AlertOut.of(one) for one in seen[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(seen) > limit else None)


@router.get("/alerts/{number}")
def read_alert(number: Number, plane: Plane, _: Viewer) -> AlertDetailOut:
    """One alert with its history."""
    return _detail(plane, number)


@router.post("/alerts/{number}/acknowledge")
def acknowledge_alert(number: Number, body: CommentIn, plane: Plane, principal: Operator) -> AlertDetailOut:
    """Say that somebody looks after it; it is not told again until it is over."""
    alerts.acknowledge_alert(plane, principal, number, body.comment)
    return _detail(plane, number)


@router.post("/alerts/{number}/close")
def close_alert(number: Number, body: CommentIn, plane: Plane, principal: Operator) -> AlertDetailOut:
    """End an alert whose data will not come back. Where its cause lasts, a new one begins."""
    alerts.close_alert(plane, principal, number, body.comment)
    return _detail(plane, number)


def _detail(plane: ControlPlane, number: int) -> AlertDetailOut:
    with plane.database.reading() as session:
        seen = alerts.load_alert(session, plane.now(), number)
        history = [AlertEventOut.model_validate(row) for row in alerts.load_history(session, number)]
    return AlertDetailOut(**AlertOut.of(seen).model_dump(), history=history)
