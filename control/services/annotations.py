"""Remarks on moments, such as a change that no revision tells of; charts show them as marks."""

from datetime import datetime

from sqlmodel import Session, col, select

from control.errors import NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import AnnotationRow


def load_annotations(
    session: Session,
    limit: int,
    before_id: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[AnnotationRow]:
    """Remarks on the moments from `since` up to `until`, the one made last first, older than the given one."""
    query = select(AnnotationRow).order_by(col(AnnotationRow.id).desc()).limit(limit)
    if before_id is not None:
        query = query.where(col(AnnotationRow.id) < before_id)
    if since is not None:
        query = query.where(col(AnnotationRow.at) >= since)
    if until is not None:
        query = query.where(col(AnnotationRow.at) < until)
    return list(session.exec(query))


def load_annotation(session: Session, number: int) -> AnnotationRow:
    """One remark.

    Raises:
        NotFoundError: there is none of that number.
    """
    row = session.get(AnnotationRow, number)
    if row is None:
        raise NotFoundError(f"There is no annotation {number}.")
    return row


def add_annotation(plane: ControlPlane, principal: Principal, text: str, at: datetime | None = None) -> AnnotationRow:
    """Remark on a moment, now where none is given.

    Raises:
        ForbiddenError: the principal is no operator.
    """
    require_role(principal, Role.OPERATOR)
    now = plane.now()
    with plane.database.unit_of_work(plane.send) as work:
        row = AnnotationRow(at=at or now, text=text, actor=principal.name, created_at=now)
        work.session.add(row)
        work.session.flush()
        after = {"at": row.at.isoformat(), "text": text}
        record_event(work.session, now, principal.name, "annotation.create", f"annotation/{row.id}", after=after)
    return row


def delete_annotation(plane: ControlPlane, principal: Principal, number: int) -> None:
    """Take a remark back; the audit trail keeps it.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that number.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = load_annotation(work.session, number)
        before = {"at": row.at.isoformat(), "text": row.text, "actor": row.actor}
        work.session.delete(row)
        target = f"annotation/{number}"
        record_event(work.session, plane.now(), principal.name, "annotation.delete", target, before=before)
