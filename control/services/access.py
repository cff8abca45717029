"""Who is asking, what they may do, and how browsers sign in and out."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlmodel import Session, col, delete, func, select, update

from control.errors import CsrfError, ForbiddenError, TooManyAttemptsError, UnauthenticatedError
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import ApiTokenRow, LoginFailureRow, LoginKeyRow, UserRow, WebSessionRow

SESSION_LIFETIME = timedelta(days=7)
FAILURE_WINDOW = timedelta(minutes=5)
MAX_FAILURES_PER_ACCOUNT = 5
MAX_FAILURES_PER_ADDRESS = 20

_HASHER = PasswordHasher()


class Role(StrEnum):
    """What somebody may do; each role includes the ones before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody known. `csrf_token` is set for browsers: unsafe requests must carry it."""

    name: str
    role: Role
    csrf_token: str | None = None


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new browser session; `secret` belongs in the cookie and is kept nowhere else."""

    secret: str
    principal: Principal
    expires_at: datetime


def require_role(principal: Principal, role: Role) -> None:
    """Refuse whoever has less than a role.

    Raises:
        ForbiddenError: they have.
    """
    if _RANKS[principal.role] < _RANKS[role]:
        raise ForbiddenError(f"This needs the role {role}; yours is {principal.role}.")


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
    """Who holds an API token.

    Raises:
        UnauthenticatedError: it is unknown, revoked or expired.
    """
    row = session.exec(select(ApiTokenRow).where(ApiTokenRow.secret_hash == hash_secret(secret))).first()
    if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise UnauthenticatedError("The token is unknown, revoked or expired.")
    return Principal(f"token:{row.name}", Role(row.role))


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
    return Principal(found[1].username, Role(found[1].role), found[0].csrf_token)


def sign_in(plane: ControlPlane, username: str, password: str, address: str) -> SignedIn:
    """Open a session by password. `address` is the client's, for counting failures.

    Raises:
        UnauthenticatedError: unknown account or wrong password; it does not say which.
        TooManyAttemptsError: too many failures of this account from here, or from this address.
    """
    username = username[:100]
    subjects = {f"{username}@{address}": MAX_FAILURES_PER_ACCOUNT, f"@{address}": MAX_FAILURES_PER_ADDRESS}
    with plane.database.reading() as session:
        _check_failures(session, subjects, plane.now())
        user = session.exec(select(UserRow).where(UserRow.username == username)).first()
    is_right = _verify(user.password_hash if user else _nobodys_hash(), password)
    if user is None or user.disabled_at is not None or not is_right:
        with plane.database.unit_of_work(plane.send) as work:
            work.session.add_all(LoginFailureRow(subject=subject, at=plane.now()) for subject in subjects)
        raise UnauthenticatedError("Unknown account or wrong password.")
    with plane.database.unit_of_work(plane.send) as work:
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


def _verify(password_hash: str, password: str) -> bool:
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
    session.add(
        WebSessionRow(
            secret_hash=hash_secret(secret),
            user_id=user.id,
            csrf_token=csrf_token,
            created_at=now,
            expires_at=expires_at,
        )
    )
    record_event(session, now, user.username, "access.sign_in", f"user/{user.username}", after={"way": way})
    return SignedIn(secret, Principal(user.username, Role(user.role), csrf_token), expires_at)
