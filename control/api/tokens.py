"""API tokens and browser sessions over REST: everybody their own, administrators all."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from control.api.access_schemas import SessionOut, TokenCreatedOut, TokenIn, TokenOut
from control.api.dependencies import Person, Plane
from control.api.paging import Paged
from control.api.schemas import MAX_NUMBER, Page
from control.api.show_once import show_once
from control.services import access_sessions, access_tokens

router = APIRouter(tags=["access"])

TokenId = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
SessionId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", examples=["0123456789abcdef"])]
Reason = Annotated[str, Query(max_length=500, description="Why; kept in the audit trail.")]


@router.get("/tokens")
def list_tokens(
    plane: Plane,
    principal: Person,
    *,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    with_invalid: Annotated[bool, Query(description="Also those that are revoked or have expired.")] = False,
) -> Page[TokenOut]:
    """Tokens, newest first."""
    with plane.database.reading() as session:
        rows = access_tokens.load_tokens(session, principal, plane.now(), limit + 1, cursor, with_invalid=with_invalid)
    items = [TokenOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


@router.post("/tokens", status_code=201)
def create_token(
    body: TokenIn, plane: Plane, principal: Person, request: Request, response: Response
) -> TokenCreatedOut:
    """Let a program in, with no more rights than yours. Keep the secret: it cannot be read again."""
    row, secret = access_tokens.create_token(plane, principal, body.name, body.scopes, body.expires_at)
    response.headers["Location"] = f"/api/v1/tokens/{row.id}"
    show_once(request, response, "secret")
    return TokenCreatedOut(**TokenOut.model_validate(row).model_dump(), secret=secret)


@router.get("/tokens/{token_id}")
def read_token(token_id: TokenId, plane: Plane, principal: Person) -> TokenOut:
    """One token."""
    with plane.database.reading() as session:
        return TokenOut.model_validate(access_tokens.load_token(session, principal, token_id))


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(token_id: TokenId, plane: Plane, principal: Person, reason: Reason = "") -> None:
    """Shut a program out."""
    access_tokens.revoke_token(plane, principal, token_id, reason)


@router.get("/sessions")
def list_sessions(
    plane: Plane,
    principal: Person,
    paging: Paged,
    user: Annotated[str | None, Query(max_length=63, description="Only this account's.")] = None,
) -> Page[SessionOut]:
    """Signed-in browsers."""
    with plane.database.reading() as session:
        rows = access_sessions.load_sessions(
            session, principal, plane.now(), paging.fetch, after_id=paging.after or "", username=user
        )
    return paging.page(rows, lambda row: row.id, SessionOut.model_validate)


@router.delete("/sessions/{session_id}", status_code=204)
def end_session(session_id: SessionId, plane: Plane, principal: Person, reason: Reason = "") -> None:
    """Sign a browser out."""
    access_sessions.end_session(plane, principal, session_id, reason)
