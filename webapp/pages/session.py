"""Signing in and out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.security import APIKeyCookie

from control.api.dependencies import SESSION_COOKIE, Plane, clear_session_cookie, set_session_cookie
from control.errors import ControlError, TooManyAttemptsError, UnauthenticatedError, face_of
from control.services.access import check_csrf, find_session, sign_in, sign_in_with_key, sign_out
from webapp.render import Pages, get_pages

router = APIRouter(include_in_schema=False)
OPEN_PATHS = frozenset({"/login", "/logout"})

PagesDep = Annotated[Pages, Depends(get_pages)]
SessionSecret = Annotated[str | None, Depends(APIKeyCookie(name=SESSION_COOKIE, auto_error=False))]


def local_path(wanted: str) -> str:
    """Where to go after signing in: a path of this server, whatever the address bar asked for."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and "\\" not in wanted
    return wanted if is_local and wanted.isprintable() else "/"


@router.get("/login")
def login_page(
    request: Request,
    pages: PagesDep,
    key: Annotated[str, Query(max_length=200)] = "",
    next_path: Annotated[str, Query(alias="next", max_length=500)] = "/",
) -> Response:
    """The form; with a one-time key only a button, as following a link must not change anything."""
    return pages.render(request, "login.html", key=key, next=local_path(next_path), username="", error="")


@router.post("/login")
def login(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    *,
    username: Annotated[str, Form(max_length=200)] = "",
    password: Annotated[str, Form(max_length=1000)] = "",
    key: Annotated[str, Form(max_length=200)] = "",
    next_path: Annotated[str, Form(alias="next", max_length=500)] = "/",
) -> Response:
    """Open a session by password or key, and go on to where somebody wanted to be."""
    address = request.client.host if request.client else ""
    try:
        signed_in = sign_in_with_key(plane, key) if key else sign_in(plane, username, password, address)
    except (UnauthenticatedError, TooManyAttemptsError) as error:
        refused = pages.render(
            request,
            "login.html",
            status=face_of(error).status,
            key="",
            next=local_path(next_path),
            username=username,
            error=error.detail,
        )
        if isinstance(error, TooManyAttemptsError):
            refused.headers["Retry-After"] = str(error.retry_after_s)
        return refused
    response = RedirectResponse(local_path(next_path), 303)
    set_session_cookie(response, signed_in, secure=request.url.scheme == "https")
    return response


@router.post("/logout")
def logout(plane: Plane, secret: SessionSecret, csrf: Annotated[str, Form(max_length=200)] = "") -> Response:
    """End the session; one that is over already ends here too."""
    response = RedirectResponse("/login", 303)
    clear_session_cookie(response)
    try:
        with plane.database.reading() as session:
            principal = find_session(session, secret or "", plane.now())
    except ControlError:
        return response
    check_csrf(principal, csrf)
    sign_out(plane, secret or "")
    return response
