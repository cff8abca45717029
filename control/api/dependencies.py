"""What handlers ask for: the control plane, and a caller who may do what is asked."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.security import APIKeyCookie, HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from control.errors import UnauthenticatedError
from control.services.access import Principal, Role, SignedIn, check_csrf, find_session, find_token, require_role
from control.services.plane import ControlPlane

SESSION_COOKIE = "pdd_session"
CSRF_HEADER = "X-CSRF-Token"
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


def get_principal(
    request: Request,
    plane: Plane,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> Principal:
    """Whoever calls, by token or by session; a session's unsafe requests must carry its CSRF token.

    Raises:
        UnauthenticatedError: nobody known.
        CsrfError: a browser's unsafe request without its token.
    """
    if bearer is None and cookie is None:
        raise UnauthenticatedError
    with plane.database.reading() as session:
        if bearer is not None:
            return find_token(session, bearer.credentials, plane.now())
        principal = find_session(session, cookie or "", plane.now())
    if request.method not in _SAFE_METHODS:
        check_csrf(principal, request.headers.get(CSRF_HEADER))
    return principal


def allow(role: Role) -> Callable[[Principal], Principal]:
    """A dependency that lets a role in, and those above it."""

    def check(principal: Annotated[Principal, Depends(get_principal)]) -> Principal:
        require_role(principal, role)
        return principal

    return check


Viewer = Annotated[Principal, Depends(allow(Role.VIEWER))]
Operator = Annotated[Principal, Depends(allow(Role.OPERATOR))]


def set_session_cookie(response: Response, signed_in: SignedIn, *, secure: bool) -> None:
    """Hand a new session to a browser; `secure` where the page came over HTTPS."""
    response.set_cookie(
        SESSION_COOKIE, signed_in.secret, expires=signed_in.expires_at, httponly=True, samesite="lax", secure=secure
    )


def clear_session_cookie(response: Response) -> None:
    """Take the cookie back."""
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="lax")
