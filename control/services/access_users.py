"""Accounts of people: made, changed, shut out, and let in again with a new password."""

import secrets
from collections.abc import Collection, Sequence

from sqlmodel import Session, col, delete, select

from control.domain.access import ROLE_SCOPES, Role, Scope, in_order, is_username
from control.domain.versions import is_expected, version_of
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, StaleRevisionError
from control.services.access import (
    MAX_FAILURES_PER_ACCOUNT,
    Principal,
    begin_attempt,
    forgive_attempt,
    hash_password,
    require_scope,
    session_id,
    verify_password,
)
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.named_lock import lock_name
from control.store.tables import LoginKeyRow, UserRow, WebSessionRow

MIN_PASSWORD_LENGTH = 12
_PASSWORD_BYTES = 18
_ADMINS_LOCK = "active administrators"


def load_users(session: Session, limit: int, after_username: str = "") -> Sequence[UserRow]:
    """Accounts by name, behind the given one."""
    query = select(UserRow).where(col(UserRow.username) > after_username).order_by(col(UserRow.username))
    return session.exec(query.limit(limit)).all()


def load_user(session: Session, username: str) -> UserRow:
    """One account.

    Raises:
        NotFoundError: nobody has that name.
    """
    row = session.exec(select(UserRow).where(UserRow.username == username)).first()
    if row is None:
        raise NotFoundError(f"There is no account {username}.")
    return row


def user_version(row: UserRow) -> str:
    """Version of an account; its password is no part of it."""
    return version_of([row.id, row.role, row.disabled_at.isoformat() if row.disabled_at else None])


def create_user(plane: ControlPlane, principal: Principal, username: str, role: Role) -> tuple[UserRow, str]:
    """Let somebody sign in.

    Returns:
        The account, and its password, which nobody can read again.

    Raises:
        ForbiddenError: the principal may not, or may do less than the account could.
        InvalidError: the name is none.
        ConflictError: it is taken.
    """
    require_scope(principal, Scope.ACCESS_ADMIN)
    _require_no_more(principal, role)
    if not is_username(username):
        raise InvalidError(
            "A name has up to 63 lower-case letters, digits, `.`, `_`, `@` and `-`, and begins with a letter or digit."
        )
    password, password_hash = _new_password()
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, f"account {username}")
        if work.session.exec(select(UserRow.id).where(UserRow.username == username)).first() is not None:
            raise ConflictError(f"There is an account {username} already.")
        at = plane.now()
        row = UserRow(username=username, password_hash=password_hash, role=role.value, created_at=at)
        work.session.add(row)
        work.session.flush()
        after = {"role": role}
        record_event(work.session, at, principal.name, "access.create_user", f"user/{username}", after=after)
    return row, password


def change_user(
    plane: ControlPlane,
    principal: Principal,
    username: str,
    expected: Collection[str],
    *,
    role: Role | None = None,
    disabled: bool | None = None,
    reason: str = "",
) -> UserRow:
    """Give somebody another role, or shut them out or let them in; whoever is shut out loses sessions and keys.

    Args:
        plane: the edges.
        principal: who asks.
        username: whose account.
        expected: versions of the account that the change may have been made against.
        role: None keeps it.
        disabled: None keeps it.
        reason: why.

    Raises:
        ForbiddenError, NotFoundError: the principal may not, or may do less than the account could then; nobody has
            that name.
        StaleRevisionError: the account has changed since.
        ConflictError: no administrator would be left.
    """
    require_scope(principal, Scope.ACCESS_ADMIN)
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        lock_name(session, _ADMINS_LOCK)
        row = load_user(session, username)
        if not is_expected(user_version(row), expected):
            raise StaleRevisionError(f"The account {username} has changed since you read it.")
        before = _facts(row)
        if role is not None and role != row.role:
            _require_no_more(principal, role)
            row.role = role.value
        if disabled is not None and disabled != (row.disabled_at is not None):
            if not disabled:
                _require_no_more(principal, Role(row.role))
            row.disabled_at = plane.now() if disabled else None
        if _facts(row) == before:
            return row
        if before == {"role": Role.ADMIN.value, "disabled": False}:
            _require_an_admin(session)
        if row.disabled_at is not None:
            _end_ways_in(session, row)
        facts = _facts(row)
        record_event(
            session, plane.now(), principal.name, "access.change_user", f"user/{username}",
            before=before, after=facts, reason=reason,
        )  # fmt: skip
    return row


def reset_password(plane: ControlPlane, principal: Principal, username: str, reason: str = "") -> str:
    """Replace somebody's password by a new random one, and end their sessions.

    Returns:
        The password, which nobody can read again.

    Raises:
        ForbiddenError, NotFoundError: the principal may not, or may do less than the account; nobody has that name.
    """
    require_scope(principal, Scope.ACCESS_ADMIN)
    password, password_hash = _new_password()
    with plane.database.unit_of_work(plane.send) as work:
        row = load_user(work.session, username)
        _require_no_more(principal, Role(row.role))
        row.password_hash = password_hash
        _end_ways_in(work.session, row)
        record_event(
            work.session, plane.now(), principal.name, "access.reset_password", f"user/{username}", reason=reason
        )
    return password


def change_own_password(plane: ControlPlane, principal: Principal, current: str, new: str) -> None:
    """Replace one's own password, and end all sessions but this one.

    Raises:
        ForbiddenError: a program asks, or the current password is another one.
        InvalidError: the new one is too short or the old one.
        TooManyAttemptsError: too many wrong guesses.
    """
    if not principal.is_person:
        raise ForbiddenError("Only somebody who signed in can change their password.")
    if len(new) < MIN_PASSWORD_LENGTH or new == current:
        raise InvalidError(f"A new password has at least {MIN_PASSWORD_LENGTH} characters and is not the old one.")
    attempt = begin_attempt(plane, {f"{principal.name}@password": MAX_FAILURES_PER_ACCOUNT})
    with plane.database.reading() as session:
        known = load_user(session, principal.name).password_hash
    if not verify_password(known, current):
        raise ForbiddenError("The current password is another one.")
    password_hash = hash_password(new)
    with plane.database.unit_of_work(plane.send) as work:
        row = load_user(work.session, principal.name)
        if row.password_hash != known:
            raise ConflictError("The password has just been changed by somebody else.")
        row.password_hash = password_hash
        forgive_attempt(work.session, attempt)
        _end_ways_in(work.session, row, but=principal.session_id)
        record_event(work.session, plane.now(), principal.name, "access.change_password", f"user/{principal.name}")


def _require_no_more(principal: Principal, role: Role) -> None:
    """Whoever could let an account in that may do more could let themselves in by it."""
    excess = in_order(ROLE_SCOPES[role] - principal.granted)
    if excess:
        raise ForbiddenError(f"The role {role} may do more than you may: {', '.join(excess)}.")


def _require_an_admin(session: Session) -> None:
    session.flush()
    active = select(UserRow.id).where(UserRow.role == Role.ADMIN.value, col(UserRow.disabled_at).is_(None))
    if session.exec(active).first() is None:
        raise ConflictError("This is the last active administrator: make another one first.")


def _end_ways_in(session: Session, row: UserRow, but: str | None = None) -> None:
    for kept in session.exec(select(WebSessionRow).where(WebSessionRow.user_id == row.id)).all():
        if session_id(kept.secret_hash) != but:
            session.delete(kept)
    session.exec(delete(LoginKeyRow).where(col(LoginKeyRow.user_id) == row.id))


def _new_password() -> tuple[str, str]:
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    return password, hash_password(password)


def _facts(row: UserRow) -> dict[str, object]:
    return {"role": row.role, "disabled": row.disabled_at is not None}
