"""Accounts over REST: a password is in the answer that makes it, and never again."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from control.api.access_schemas import (
    PasswordIn,
    PasswordOut,
    PasswordResetIn,
    UserChangeIn,
    UserCreatedOut,
    UserIn,
    UserOut,
    WhoAmIOut,
)
from control.api.dependencies import Admin, Person, Plane, Viewer
from control.api.paging import Paged
from control.api.preconditions import Expected, set_etag
from control.api.schemas import Page
from control.api.show_once import show_once
from control.domain.access import in_order
from control.errors import PreconditionRequiredError
from control.services import access_users

router = APIRouter(tags=["access"])

Username = Annotated[str, Path(max_length=63, examples=["olga"])]


@router.get("/me")
def who_am_i(principal: Viewer) -> WhoAmIOut:
    """Who you are to the server, and what you may do."""
    scopes = in_order(principal.granted)
    return WhoAmIOut(name=principal.name, role=principal.role, scopes=scopes, session_id=principal.session_id)


@router.get("/users")
def list_users(
    plane: Plane,
    _: Admin,
    paging: Paged,
) -> Page[UserOut]:
    """Accounts by name."""
    with plane.database.reading() as session:
        rows = access_users.load_users(session, paging.fetch, paging.after or "")
    return paging.page(rows, lambda row: row.username, UserOut.of)


@router.post("/users", status_code=201)
def create_user(body: UserIn, plane: Plane, principal: Admin, request: Request, response: Response) -> UserCreatedOut:
    """Let somebody sign in. Hand the password over now: it cannot be read again."""
    row, password = access_users.create_user(plane, principal, body.username, body.role)
    response.headers["Location"] = f"/api/v1/users/{row.username}"
    set_etag(response, access_users.user_version(row))
    show_once(request, response, "password")
    return UserCreatedOut(**UserOut.of(row).model_dump(), password=password)


@router.put("/users/me/password", status_code=204)
def change_own_password(body: PasswordIn, plane: Plane, principal: Person) -> None:
    """Replace your own password; your other sessions end."""
    access_users.change_own_password(plane, principal, body.current, body.new)


@router.get("/users/{username}")
def read_user(username: Username, plane: Plane, _: Admin, response: Response) -> UserOut:
    """One account."""
    with plane.database.reading() as session:
        row = access_users.load_user(session, username)
    set_etag(response, access_users.user_version(row))
    return UserOut.of(row)


@router.patch("/users/{username}")
def change_user(
    username: Username,
    body: UserChangeIn,
    plane: Plane,
    principal: Admin,
    response: Response,
    *,
    expected: Expected,
) -> UserOut:
    """Change somebody's role, shut them out or let them in; whoever is shut out is signed out everywhere."""
    if expected is None:
        raise PreconditionRequiredError("Say which state of the account you saw: If-Match with its ETag.")
    row = access_users.change_user(
        plane,
        principal,
        username,
        expected,
        role=body.role,
        disabled=body.disabled,
        reason=body.reason,
    )
    set_etag(response, access_users.user_version(row))
    return UserOut.of(row)


@router.post("/users/{username}/password")
def reset_password(
    username: Username, body: PasswordResetIn, plane: Plane, principal: Admin, *, request: Request, response: Response
) -> PasswordOut:
    """Replace somebody's password by a new one and sign them out everywhere. Hand it over now."""
    password = access_users.reset_password(plane, principal, username, body.reason)
    show_once(request, response, "password")
    return PasswordOut(username=username, password=password)
