"""Alerts as people see them: listed with their history, acknowledged, and closed by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from control.domain.alerts import AlertEvent, AlertState
from control.errors import ConflictError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.alert_notices import is_silenced
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.services.silences import load_silences_at, matchers_of
from control.store.tables import AlertEventRow, AlertRow

CLOSED = "closed by hand"


@dataclass(frozen=True, slots=True)
class AlertFilter:
    """Which alerts: None or nothing stands for all."""

    states: Sequence[AlertState] = ()
    rule: str | None = None
    severity: str | None = None


@dataclass(frozen=True, slots=True)
class SeenAlert:
    """An alert, and the silences that hold for it now."""

    row: AlertRow
    silenced_by: tuple[int, ...]


def load_alerts(
    session: Session, now: datetime, wanted: AlertFilter, limit: int, before_id: int | None = None
) -> list[SeenAlert]:
    """Alerts, newest first, older than the given one."""
    query = select(AlertRow).order_by(col(AlertRow.id).desc()).limit(limit)
    if wanted.states:
        query = query.where(col(AlertRow.state).in_([state.value for state in wanted.states]))
    if wanted.rule is not None:
        query = query.where(AlertRow.rule == wanted.rule)
    if wanted.severity is not None:
        query = query.where(AlertRow.severity == wanted.severity)
    if before_id is not None:
        query = query.where(col(AlertRow.id) < before_id)
    return _seen(session, now, session.exec(query).all())


def load_alert(session: Session, now: datetime, alert_id: int) -> SeenAlert:
    """One alert.

    Raises:
        NotFoundError: there is no such alert.
    """
    return _seen(session, now, [_row(session, alert_id)])[0]


def load_history(session: Session, alert_id: int) -> list[AlertEventRow]:
    """What happened to an alert, oldest first."""
    return list(
        session.exec(select(AlertEventRow).where(AlertEventRow.alert_id == alert_id).order_by(col(AlertEventRow.id)))
    )


def acknowledge_alert(plane: ControlPlane, principal: Principal, alert_id: int, comment: str) -> AlertRow:
    """Say that somebody looks after it: it is not told again until it is over. Again: another comment.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is no such alert.
        ConflictError: it does not fire.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = _firing_row(work.session, alert_id)
        row.acknowledged_at, row.acknowledged_by, row.comment = plane.now(), principal.name, comment
        _trace(work.session, row, AlertEvent.ACKNOWLEDGED, principal=principal, at=plane.now(), comment=comment)
    return row


def close_alert(plane: ControlPlane, principal: Principal, alert_id: int, comment: str) -> AlertRow:
    """End an alert whose data will not come back. Where its cause lasts, the next evaluation begins a new one.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is no such alert.
        ConflictError: it does not fire.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = _firing_row(work.session, alert_id)
        row.state, row.open_key = AlertState.RESOLVED.value, None
        row.resolved_at, row.resolution = plane.now(), CLOSED
        _trace(work.session, row, AlertEvent.CLOSED, principal=principal, at=plane.now(), comment=comment)
    return row


def _firing_row(session: Session, alert_id: int) -> AlertRow:
    row = _row(session, alert_id, for_update=True)
    if row.state != AlertState.FIRING:
        raise ConflictError(f"The alert is {row.state}, not firing.")
    return row


def _row(session: Session, alert_id: int, *, for_update: bool = False) -> AlertRow:
    row = session.get(AlertRow, alert_id, with_for_update=for_update or None)
    if row is None:
        raise NotFoundError(f"There is no alert {alert_id}.")
    return row


def _trace(
    session: Session, row: AlertRow, event: AlertEvent, *, principal: Principal, at: datetime, comment: str
) -> None:
    session.add(row)
    if row.id is None:
        raise RuntimeError("a stored row has an id")
    session.add(AlertEventRow(alert_id=row.id, at=at, kind=event.value, actor=principal.name, comment=comment))
    after = {"state": row.state, "rule": row.rule, "labels": row.labels}
    record_event(session, at, principal.name, f"alert.{event.value}", f"alert/{row.id}", after=after, reason=comment)


def _seen(session: Session, now: datetime, rows: Sequence[AlertRow]) -> list[SeenAlert]:
    silences = [(row.id or 0, matchers_of(row.matchers)) for row in load_silences_at(session, now)]
    return [
        SeenAlert(
            row,
            tuple(number for number, matchers in silences if is_silenced(row, [matchers]))
            if row.state != AlertState.RESOLVED
            else (),
        )
        for row in rows
    ]
