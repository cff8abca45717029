"""Signed-in browsers: listed, and ended from elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from control.domain.access import Scope
from control.errors import NotFoundError
from control.services.access import SESSION_ID_LENGTH, Principal, session_id
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import UserRow, WebSessionRow


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A signed-in browser, without its secret."""

    id: str
    username: str
    created_at: datetime
    expires_at: datetime
    current: bool


def load_sessions(
    session: Session,
    principal: Principal,
    now: datetime,
    limit: int,
    *,
    after_id: str = "",
    username: str | None = None,
) -> Sequence[SessionFacts]:
    """Sessions that are not over, by id: everybody's for whoever administers access, else one's own."""
    query = (
        select(WebSessionRow, UserRow)
        .join(UserRow, col(UserRow.id) == col(WebSessionRow.user_id))
        .where(col(WebSessionRow.expires_at) > now)
        .order_by(col(WebSessionRow.secret_hash))
        .limit(limit)
    )
    if after_id:
        # Behind every hash that begins with the id: "g" is above all hexadecimal digits.
        query = query.where(col(WebSessionRow.secret_hash) > f"{after_id}g")
    if Scope.ACCESS_ADMIN not in principal.granted:
        query = query.where(col(WebSessionRow.user_id) == principal.user_id)
    if username is not None:
        query = query.where(UserRow.username == username)
    return [_facts(row, user, principal) for row, user in session.exec(query)]


def end_session(plane: ControlPlane, principal: Principal, wanted_id: str, reason: str = "") -> None:
    """Sign a browser out.

    Raises:
        NotFoundError: there is no such session, or it is somebody else's and the principal may not touch it.
    """
    with plane.database.unit_of_work(plane.send) as work:
        query = (
            select(WebSessionRow, UserRow)
            .join(UserRow, col(UserRow.id) == col(WebSessionRow.user_id))
            .where(col(WebSessionRow.secret_hash).startswith(wanted_id, autoescape=True))
        )
        found = work.session.exec(query).first() if len(wanted_id) == SESSION_ID_LENGTH else None
        may_end = Scope.ACCESS_ADMIN in principal.granted or (found and found[0].user_id == principal.user_id)
        if found is None or not may_end:
            raise NotFoundError("There is no such session.")
        work.session.delete(found[0])
        target = f"user/{found[1].username}"
        after = {"session": wanted_id}
        record_event(
            work.session, plane.now(), principal.name, "access.end_session", target, after=after, reason=reason
        )


def _facts(row: WebSessionRow, user: UserRow, principal: Principal) -> SessionFacts:
    own_id = session_id(row.secret_hash)
    return SessionFacts(own_id, user.username, row.created_at, row.expires_at, own_id == principal.session_id)
