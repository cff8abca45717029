"""The record of who changed what and why."""

from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from control.store.tables import AuditEventRow


def record_event(
    session: Session,
    at: datetime,
    actor: str,
    action: str,
    target: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> None:
    """Add an event to the transaction of the change that it tells of."""
    session.add(
        AuditEventRow(at=at, actor=actor, action=action, target=target, before=before, after=after, reason=reason)
    )


def load_events(session: Session, limit: int, before_id: int | None = None) -> list[AuditEventRow]:
    """Events, newest first, older than the given one."""
    query = select(AuditEventRow).order_by(col(AuditEventRow.id).desc()).limit(limit)
    if before_id is not None:
        query = query.where(col(AuditEventRow.id) < before_id)
    return list(session.exec(query))
