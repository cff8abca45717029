"""Who is asking, what they may do, and how browsers sign in and out."""

import hashlib
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlmodel import Session, col, delete, func, or_, select, update

from control.domain.access import ROLE_SCOPES, Role, Scope
from control.errors import (
    CsrfError,
    DatabaseUnavailableError,
    ForbiddenError,
    TooManyAttemptsError,
    UnauthenticatedError,
)
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.named_lock import lock_name
from control.store.tables import ApiTokenRow, LoginFailureRow, LoginKeyRow, UserRow, WebSessionRow

__all__ = [
    "MAX_FAILURES_PER_ACCOUNT",
    "SESSION_ID_LENGTH",
    "Principal",
    "Role",
    "SignedIn",
    "begin_attempt",
    "check_csrf",
    "find_session",
    "find_token",
    "forgive_attempt",
    "hash_password",
    "hash_secret",
    "require_role",
    "require_scope",
    "session_id",
    "sign_in",
    "sign_in_with_key",
    "sign_out",
    "touch_token",
    "verify_password",
]

SESSION_LIFETIME = timedelta(days=7)
FAILURE_WINDOW = timedelta(minutes=5)
MAX_FAILURES_PER_ACCOUNT = 5
MAX_FAILURES_PER_ADDRESS = 20
SESSION_ID_LENGTH = 16
USE_RESOLUTION = timedelta(minutes=1)

_HASHER = PasswordHasher()


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody known.

    Attributes:
        name: as the audit trail writes it; a token's begins with `token:`.
        role: what they may do at most.
        csrf_token: set for browsers, whose unsafe requests must carry it.
        scopes: set for a token that may do less than its role.
        user_id: the account behind it; None for tokens that belong to the installation itself.
        session_id: set for browsers.
    """

    name: str
    role: Role
    csrf_token: str | None = field(default=None, repr=False)
    scopes: frozenset[Scope] | None = None
    user_id: int | None = None
    session_id: str | None = None

    @property
    def granted(self) -> frozenset[Scope]:
        """Every scope that it has."""
        return ROLE_SCOPES[self.role] if self.scopes is None else self.scopes

    @property
    def is_person(self) -> bool:
        """Whether somebody signed in, as against a program with a token."""
        return self.session_id is not None


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new browser session; `secret` belongs in the cookie and is kept nowhere else."""

    secret: str = field(repr=False)
    principal: Principal
    expires_at: datetime


def require_role(principal: Principal, role: Role) -> None:
    """Refuse whoever has less than a role.

    Raises:
        ForbiddenError: they have.
    """
    if _RANKS[principal.role] < _RANKS[role]:
        raise ForbiddenError(f"This needs the role {role}; yours is {principal.role}.")


def require_scope(principal: Principal, scope: Scope) -> None:
    """Refuse whoever lacks a scope.

    Raises:
        ForbiddenError: they do.
    """
    if scope not in principal.granted:
        raise ForbiddenError(f"This needs the scope {scope}.")


def check_csrf(principal: Principal, token: str | None) -> None:
    """Refuse an unsafe request of a browser that does not carry its session's token; programs need none.

    Raises:
        CsrfError: the token is missing or another one.
    """
    expected = principal.csrf_token
    if expected is not None and not hmac.compare_digest(expected.encode(), (token or "").encode()):
        raise CsrfError


def hash_password(password: str) -> str:
    """Argon2id hash with its own salt and parameters."""
    return _HASHER.hash(password)


def hash_secret(secret: str) -> str:
    """SHA-256 of a random secret; enough, as nothing with 256 random bits can be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def find_token(session: Session, secret: str, now: datetime) -> Principal:
    """Who holds an API token. A token never outdoes its owner: it shrinks and ends with the account's rights.

    Raises:
        UnauthenticatedError: it is unknown, revoked or expired, or its owner is disabled.
    """
    found = session.exec(
        select(ApiTokenRow, UserRow)
        .join(UserRow, col(UserRow.id) == col(ApiTokenRow.user_id), isouter=True)
        .where(ApiTokenRow.secret_hash == hash_secret(secret))
    ).first()
    if found is None or not _is_valid(found[0], found[1], now):
        raise UnauthenticatedError("The token is unknown, revoked or expired.")
    row, owner = found
    granted = frozenset(Scope(scope) for scope in row.scopes)
    role = Role(row.role)
    if owner is not None:
        granted &= ROLE_SCOPES[Role(owner.role)]
        role = min(role, Role(owner.role), key=_RANKS.__getitem__)
    scopes = None if granted == ROLE_SCOPES[role] else granted
    return Principal(f"token:{row.name}", role, scopes=scopes, user_id=row.user_id)


def _is_valid(row: ApiTokenRow, owner: UserRow | None, now: datetime) -> bool:
    is_over = row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now)
    return not is_over and (owner is None or owner.disabled_at is None)


def touch_token(plane: ControlPlane, secret: str) -> None:
    """Note that a token was used, to the minute: more would be a write per request."""
    now = plane.now()
    stale = or_(col(ApiTokenRow.last_used_at).is_(None), col(ApiTokenRow.last_used_at) <= now - USE_RESOLUTION)
    mine = col(ApiTokenRow.secret_hash) == hash_secret(secret)
    with plane.database.reading() as session:
        if session.exec(select(ApiTokenRow.id).where(mine, stale)).first() is None:
            return
    # A busy database is no reason to turn somebody away whose token is good.
    with suppress(DatabaseUnavailableError), plane.database.unit_of_work(plane.send) as work:
        work.session.exec(update(ApiTokenRow).where(mine, stale).values(last_used_at=now))


def find_session(session: Session, secret: str, now: datetime) -> Principal:
    """Who a browser session belongs to.

    Raises:
        UnauthenticatedError: it is unknown, over, or of a disabled account.
    """
    found = session.exec(
        select(WebSessionRow, UserRow)
        .join(UserRow, col(UserRow.id) == col(WebSessionRow.user_id))
        .where(WebSessionRow.secret_hash == hash_secret(secret))
    ).first()
    if found is None or found[0].expires_at <= now or found[1].disabled_at is not None:
        raise UnauthenticatedError("The session is over.")
    return _browser(found[1], found[0].csrf_token, found[0].secret_hash)


def sign_in(plane: ControlPlane, username: str, password: str, address: str) -> SignedIn:
    """Open a session by password. `address` is the client's, for counting failures.

    Raises:
        UnauthenticatedError: unknown account or wrong password; it does not say which.
        TooManyAttemptsError: too many failures of this account from here, or from this address.
    """
    username = username[:100]
    subjects = {f"{username}@{address}": MAX_FAILURES_PER_ACCOUNT, f"@{address}": MAX_FAILURES_PER_ADDRESS}
    attempt = begin_attempt(plane, subjects)
    with plane.database.reading() as session:
        user = session.exec(select(UserRow).where(UserRow.username == username)).first()
    is_right = verify_password(user.password_hash if user else _nobodys_hash(), password)
    if user is None or user.disabled_at is not None or not is_right:
        raise UnauthenticatedError("Unknown account or wrong password.")
    with plane.database.unit_of_work(plane.send) as work:
        forgive_attempt(work.session, attempt)
        return _open_session(work.session, user, plane.now(), "password")


def sign_in_with_key(plane: ControlPlane, key: str) -> SignedIn:
    """Open a session by a one-time key.

    Raises:
        UnauthenticatedError: the key is unknown, used or expired.
    """
    now = plane.now()
    with plane.database.unit_of_work(plane.send) as work:
        claimed = work.session.exec(
            update(LoginKeyRow)
            .where(col(LoginKeyRow.secret_hash) == hash_secret(key))
            .where(col(LoginKeyRow.used_at).is_(None), col(LoginKeyRow.expires_at) > now)
            .values(used_at=now)
            .returning(col(LoginKeyRow.user_id))
        ).first()
        user = work.session.get(UserRow, claimed[0]) if claimed else None
        if user is None or user.disabled_at is not None:
            raise UnauthenticatedError("This sign-in link was used or has expired.")
        return _open_session(work.session, user, now, "key")


def sign_out(plane: ControlPlane, secret: str) -> None:
    """End a session; an unknown one is over already."""
    with plane.database.unit_of_work(plane.send) as work:
        work.session.exec(delete(WebSessionRow).where(col(WebSessionRow.secret_hash) == hash_secret(secret)))


def begin_attempt(plane: ControlPlane, limits: dict[str, int]) -> list[int | None]:
    """Count an attempt as failed before it is made, so that many at the same moment cannot all pass the check.

    Args:
        plane: the edges.
        limits: how many attempts each subject has in five minutes.

    Returns:
        What `forgive_attempt` takes once the attempt was right.

    Raises:
        TooManyAttemptsError: a subject has none left.
    """
    with plane.database.unit_of_work(plane.send) as work:
        for subject in sorted(limits):
            lock_name(work.session, f"sign-in {subject}")
        _check_failures(work.session, limits, plane.now())
        rows = [LoginFailureRow(subject=subject, at=plane.now()) for subject in limits]
        work.session.add_all(rows)
        work.session.flush()
        return [row.id for row in rows]


def forgive_attempt(session: Session, attempt: list[int | None]) -> None:
    """Take back that an attempt counts as failed."""
    session.exec(delete(LoginFailureRow).where(col(LoginFailureRow.id).in_(attempt)))


def _check_failures(session: Session, limits: dict[str, int], now: datetime) -> None:
    since = now - FAILURE_WINDOW
    for subject, limit in limits.items():
        count, first = session.exec(
            select(func.count(), func.min(LoginFailureRow.at)).where(
                LoginFailureRow.subject == subject, col(LoginFailureRow.at) > since
            )
        ).one()
        if count >= limit:
            raise TooManyAttemptsError(max(1, round((first + FAILURE_WINDOW - now).total_seconds())))


@cache
def _nobodys_hash() -> str:
    # Checked when the account is unknown, so that an answer takes as long as for a known one.
    return _HASHER.hash(secrets.token_urlsafe(16))


def verify_password(password_hash: str, password: str) -> bool:
    """Whether a password belongs to a hash; takes some 50 ms by design."""
    try:
        return _HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


def _open_session(session: Session, user: UserRow, now: datetime, way: str) -> SignedIn:
    if user.id is None:
        raise RuntimeError("the account was never stored")
    session.exec(delete(WebSessionRow).where(col(WebSessionRow.expires_at) <= now))
    session.exec(delete(LoginKeyRow).where(col(LoginKeyRow.expires_at) <= now))
    session.exec(delete(LoginFailureRow).where(col(LoginFailureRow.at) <= now - FAILURE_WINDOW))
    secret, csrf_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    expires_at = now + SESSION_LIFETIME
    secret_hash = hash_secret(secret)
    session.add(
        WebSessionRow(
            secret_hash=secret_hash,
            user_id=user.id,
            csrf_token=csrf_token,
            created_at=now,
            expires_at=expires_at,
        )
    )
    record_event(session, now, user.username, "access.sign_in", f"user/{user.username}", after={"way": way})
    return SignedIn(secret, _browser(user, csrf_token, secret_hash), expires_at)


def session_id(secret_hash: str) -> str:
    """What a session is called in lists: enough of its hash to be the only one, and no way back to the secret."""
    return secret_hash[:SESSION_ID_LENGTH]


def _browser(user: UserRow, csrf_token: str, secret_hash: str) -> Principal:
    return Principal(user.username, Role(user.role), csrf_token, user_id=user.id, session_id=session_id(secret_hash))
