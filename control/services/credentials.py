"""Makes the ways in: the first administrator, API tokens and one-time sign-in keys."""

import secrets
from datetime import timedelta

from sqlmodel import col, select, update

from control.domain.access import ROLE_SCOPES, in_order
from control.errors import NotFoundError
from control.services.access import Role, hash_password, hash_secret
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import ApiTokenRow, LoginKeyRow, UserRow

ADMIN = "admin"
LOGIN_KEY_LIFETIME = timedelta(hours=12)


def ensure_admin(plane: ControlPlane) -> str | None:
    """Create the administrator where nobody can sign in yet.

    Returns:
        The password, to be shown once; None where accounts exist.
    """
    password = secrets.token_urlsafe(15)
    password_hash = hash_password(password)
    with plane.database.unit_of_work(plane.send) as work:
        if work.session.exec(select(UserRow.id)).first() is not None:
            return None
        at = plane.now()
        work.session.add(UserRow(username=ADMIN, password_hash=password_hash, role=Role.ADMIN.value, created_at=at))
        record_event(work.session, at, "system", "access.create_user", f"user/{ADMIN}", after={"role": Role.ADMIN})
    return password


def ensure_token(
    plane: ControlPlane,
    name: str,
    role: Role,
    secret: str,
    *,
    created_by: str = "system",
    lifetime: timedelta | None = None,
) -> None:
    """Let a secret in under a name and role, in place of whatever else had that name.

    The secret must be random: only its plain hash is kept.
    """
    with plane.database.unit_of_work(plane.send) as work:
        at = plane.now()
        same_name = select(ApiTokenRow).where(ApiTokenRow.name == name, col(ApiTokenRow.revoked_at).is_(None))
        stored = work.session.exec(same_name).all()
        if [(row.secret_hash, row.role, row.expires_at) for row in stored] == [(hash_secret(secret), role, None)]:
            return
        # A secret that was let in under another role or lifetime must not keep it.
        work.session.exec(
            update(ApiTokenRow)
            .where(col(ApiTokenRow.name) == name, col(ApiTokenRow.revoked_at).is_(None))
            .values(revoked_at=at)
        )
        work.session.add(
            ApiTokenRow(
                name=name,
                secret_hash=hash_secret(secret),
                role=role.value,
                scopes=[*in_order(ROLE_SCOPES[role])],
                created_by=created_by,
                created_at=at,
                expires_at=at + lifetime if lifetime else None,
            )
        )
        record_event(work.session, at, created_by, "access.create_token", f"token/{name}", after={"role": role})


def issue_login_key(plane: ControlPlane, username: str = ADMIN) -> str:
    """A key that signs one browser in as this account, once, within twelve hours.

    Raises:
        NotFoundError: there is no such account.
    """
    key = secrets.token_urlsafe(32)
    with plane.database.unit_of_work(plane.send) as work:
        user = work.session.exec(select(UserRow).where(UserRow.username == username)).first()
        if user is None or user.id is None:
            raise NotFoundError(f"There is no account {username}.")
        at = plane.now()
        work.session.add(
            LoginKeyRow(
                secret_hash=hash_secret(key), user_id=user.id, created_at=at, expires_at=at + LOGIN_KEY_LIFETIME
            )
        )
    return key
