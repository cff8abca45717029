"""What handlers ask for: the control plane, and a caller who may do what is asked."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.security import APIKeyCookie, HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from control.domain.access import Scope, required_scope
from control.errors import ForbiddenError, UnauthenticatedError
from control.services.access import (
    Principal,
    Role,
    SignedIn,
    check_csrf,
    find_session,
    find_token,
    require_role,
    require_scope,
    touch_token,
)
from control.services.plane import ControlPlane

SESSION_COOKIE = "pdd_session"
CSRF_HEADER = "X-CSRF-Token"
PRINCIPAL_STATE = "principal"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_bearer = HTTPBearer(auto_error=False, description="An API token.")
_cookie = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, description=f"A browser's session; unsafe methods need {CSRF_HEADER} too."
)


def get_plane(request: Request) -> ControlPlane:
    """The control plane that the application was made with."""
    plane = request.app.state.plane
    if not isinstance(plane, ControlPlane):
        raise TypeError("the application was made without a control plane")
    return plane


Plane = Annotated[ControlPlane, Depends(get_plane)]


def identify_request(plane: ControlPlane, request: Request) -> Principal:
    """Whoever calls, by token or by session, if they have the scope that this request needs.

    Raises:
        UnauthenticatedError: nobody known.
        CsrfError: a browser's unsafe request without its session's token.
        ForbiddenError: the scope is missing.
    """
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    cookie = request.cookies.get(SESSION_COOKIE)
    if kind.lower() == "bearer":
        with plane.database.reading() as session:
            principal = find_token(session, secret.strip(), plane.now())
        touch_token(plane, secret.strip())
    elif cookie is not None:
        with plane.database.reading() as session:
            principal = find_session(session, cookie, plane.now())
        if request.method not in _SAFE_METHODS:
            check_csrf(principal, request.headers.get(CSRF_HEADER))
    else:
        raise UnauthenticatedError
    require_scope(principal, required_scope(request.method, request.url.path))
    return principal


def get_principal(
    request: Request,
    plane: Plane,
    _bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    _cookie: Annotated[str | None, Depends(_cookie)],
) -> Principal:
    """Whoever calls; where `Guard` has looked already, its answer.

    Raises:
        UnauthenticatedError, CsrfError, ForbiddenError: as `identify_request`.
    """
    known = getattr(request.state, PRINCIPAL_STATE, None)
    return known if isinstance(known, Principal) else identify_request(plane, request)


def allow(role: Role) -> Callable[[Principal], Principal]:
    """A dependency that lets a role in, and those above it."""

    def check(principal: Annotated[Principal, Depends(get_principal)]) -> Principal:
        require_role(principal, role)
        return principal

    return check


def _person_or_admin(principal: Annotated[Principal, Depends(get_principal)]) -> Principal:
    if not principal.is_person and Scope.ACCESS_ADMIN not in principal.granted:
        raise ForbiddenError("A program needs the scope access:admin for this.")
    return principal


Viewer = Annotated[Principal, Depends(allow(Role.VIEWER))]
Operator = Annotated[Principal, Depends(allow(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(allow(Role.ADMIN))]
# Somebody who signed in and looks after what is their own, or whoever administers access.
Person = Annotated[Principal, Depends(_person_or_admin)]


def set_session_cookie(response: Response, signed_in: SignedIn, *, secure: bool) -> None:
    """Hand a new session to a browser; `secure` where the page came over HTTPS."""
    response.set_cookie(
        SESSION_COOKIE, signed_in.secret, expires=signed_in.expires_at, httponly=True, samesite="lax", secure=secure
    )


def clear_session_cookie(response: Response) -> None:
    """Take the cookie back."""
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="lax")
