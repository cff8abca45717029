"""API tokens: made with no more rights than their maker has, listed, revoked."""

import secrets
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, false, or_, select

from control.domain.access import Scope, in_order, is_token_name, role_for
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from control.services.access import Principal, hash_secret
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.named_lock import lock_name
from control.store.tables import ApiTokenRow

TOKEN_PREFIX = "pddt_"  # noqa: S105 - a prefix by which scanners for leaked secrets can know it


def create_token(
    plane: ControlPlane, principal: Principal, name: str, scopes: Collection[Scope], expires_at: datetime | None
) -> tuple[ApiTokenRow, str]:
    """Let a program in, in the name of whoever makes the token.

    Returns:
        The token's facts, and its secret, which nobody can read again.

    Raises:
        ForbiddenError: a scope that the principal does not have, or a program that may not administer access.
        InvalidError: the name is none, no scope is given, or the end has passed.
        ConflictError: a token of that name is valid.
    """
    _require_maker(principal, scopes)
    if not is_token_name(name):
        raise InvalidError("A name has up to 63 lower-case letters, digits, `.`, `_` and `-`.")
    if not scopes:
        raise InvalidError("A token needs at least one scope.")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with plane.database.unit_of_work(plane.send) as work:
        at = plane.now()
        if expires_at is not None and expires_at <= at:
            raise InvalidError("The token would have expired already.")
        lock_name(work.session, f"token {name}")
        if work.session.exec(select(ApiTokenRow.id).where(ApiTokenRow.name == name, _is_valid_at(at))).first():
            raise ConflictError(f"There is a token {name} already: revoke it first.")
        row = ApiTokenRow(
            name=name,
            secret_hash=hash_secret(secret),
            role=role_for(scopes).value,
            scopes=[*in_order(scopes)],
            user_id=principal.user_id,
            created_by=principal.name,
            created_at=at,
            expires_at=expires_at,
        )
        work.session.add(row)
        work.session.flush()
        after = {"scopes": row.scopes, "expires_at": expires_at.isoformat() if expires_at else None}
        record_event(work.session, at, principal.name, "access.create_token", f"token/{name}", after=after)
    return row, secret


def load_tokens(
    session: Session,
    principal: Principal,
    now: datetime,
    limit: int,
    before_id: int | None = None,
    *,
    with_invalid: bool = False,
) -> Sequence[ApiTokenRow]:
    """Tokens, newest first: everybody's for whoever administers access, else one's own."""
    query = select(ApiTokenRow).where(*_visible(principal)).order_by(col(ApiTokenRow.id).desc()).limit(limit)
    if before_id is not None:
        query = query.where(col(ApiTokenRow.id) < before_id)
    if not with_invalid:
        query = query.where(_is_valid_at(now))
    return session.exec(query).all()


def load_token(session: Session, principal: Principal, token_id: int) -> ApiTokenRow:
    """One token.

    Raises:
        NotFoundError: there is none of that number, or it is somebody else's and the principal may not see it.
    """
    row = session.exec(select(ApiTokenRow).where(ApiTokenRow.id == token_id, *_visible(principal))).first()
    if row is None:
        raise NotFoundError(f"There is no token {token_id}.")
    return row


def revoke_token(plane: ControlPlane, principal: Principal, token_id: int, reason: str = "") -> None:
    """Shut a program out; one that is revoked already stays so.

    Raises:
        NotFoundError: as `load_token`.
    """
    with plane.database.unit_of_work(plane.send) as work:
        row = load_token(work.session, principal, token_id)
        if row.revoked_at is not None:
            return
        row.revoked_at = plane.now()
        target = f"token/{row.name}"
        record_event(work.session, plane.now(), principal.name, "access.revoke_token", target, reason=reason)


def _require_maker(principal: Principal, scopes: Collection[Scope]) -> None:
    if not principal.is_person and Scope.ACCESS_ADMIN not in principal.granted:
        raise ForbiddenError("A program needs the scope access:admin to make tokens.")
    excess = in_order(set(scopes) - principal.granted)
    if excess:
        raise ForbiddenError(f"A token may not do more than you may: {', '.join(excess)}.")


def _visible(principal: Principal) -> list[ColumnElement[bool]]:
    if Scope.ACCESS_ADMIN in principal.granted:
        return []
    return [false() if principal.user_id is None else col(ApiTokenRow.user_id) == principal.user_id]


def _is_valid_at(now: datetime) -> ColumnElement[bool]:
    return col(ApiTokenRow.revoked_at).is_(None) & or_(
        col(ApiTokenRow.expires_at).is_(None), col(ApiTokenRow.expires_at) > now
    )
