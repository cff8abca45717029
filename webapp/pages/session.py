"""Signing in and out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.security import APIKeyCookie

from control.api.dependencies import SESSION_COOKIE, Plane, clear_session_cookie, set_session_cookie
from control.errors import ControlError, TooManyAttemptsError, UnauthenticatedError, face_of
from control.services.access import check_csrf, find_session, sign_in, sign_in_with_key, sign_out
from webapp.render import Pages, PagesDep

router = APIRouter(include_in_schema=False)
OPEN_PATHS = frozenset({"/login", "/logout"})

# What each field has at most, and what the form calls it.
_FIELDS = {
    "username": (200, "The name"),
    "password": (1000, "The password"),
    "key": (200, "The key of the sign-in link"),
    "next": (500, "The address to go on to"),
}

SessionSecret = Annotated[str | None, Depends(APIKeyCookie(name=SESSION_COOKIE, auto_error=False))]


def local_path(wanted: str) -> str:
    """Where to go after signing in: a path of this server, whatever the address bar asked for."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and "\\" not in wanted
    return wanted if is_local and wanted.isprintable() else "/"


@router.get("/login")
def login_page(
    request: Request,
    pages: PagesDep,
    key: Annotated[str, Query()] = "",
    next_path: Annotated[str, Query(alias="next")] = "/",
) -> Response:
    """The form; with a one-time key only a button, as following a link must not change anything."""
    if error := _length_problem(key=key, next=next_path):
        return _login_form(request, pages, error, 422)
    return pages.render(request, "login.html", key=key, next=local_path(next_path), username="", error="")


@router.post("/login")
def login(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    *,
    username: Annotated[str, Form()] = "",
    password: Annotated[str, Form()] = "",
    key: Annotated[str, Form()] = "",
    next_path: Annotated[str, Form(alias="next")] = "/",
) -> Response:
    """Open a session by password or key, and go on to where somebody wanted to be."""
    if problem := _length_problem(username=username, password=password, key=key, next=next_path):
        return _login_form(request, pages, problem, 422, username=username, next_path=next_path)
    address = request.client.host if request.client else ""
    try:
        signed_in = sign_in_with_key(plane, key) if key else sign_in(plane, username, password, address)
    except (UnauthenticatedError, TooManyAttemptsError) as error:
        refused = _login_form(
            request, pages, error.detail, face_of(error).status, username=username, next_path=next_path
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


def _length_problem(**typed: str) -> str:
    """Which field is too long; empty if none is."""
    for name, text in typed.items():
        limit, label = _FIELDS[name]
        if len(text) > limit:
            return f"{label} is too long: it has at most {limit} characters."
    return ""


def _login_form(
    request: Request, pages: Pages, error: str, status: int, *, username: str = "", next_path: str = "/"
) -> Response:
    """The form for name and password once more, with what was wrong."""
    next_path = local_path(next_path) if not _length_problem(next=next_path) else "/"
    username = username[: _FIELDS["username"][0]]
    return pages.render(request, "login.html", status=status, key="", next=next_path, username=username, error=error)
