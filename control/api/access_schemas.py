"""What the API takes and gives about people, tokens and sessions."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool

from control.api.moments import Moment
from control.api.schemas import FromDomain, Strict
from control.domain.access import Role, Scope
from control.store.tables import UserRow

_SHOWN_ONCE = "Shown in this answer only; null in a repeated one, as the server keeps no more than its hash."
Reason = Annotated[str, Field(max_length=500, description="Why; kept in the audit trail.")]


class WhoAmIOut(BaseModel):
    """Who the caller is to the server."""

    name: str = Field(examples=["olga"])
    role: Role
    scopes: list[Scope]
    session_id: str | None = Field(description="Set for browsers.", examples=["0123456789abcdef"])


class UserOut(BaseModel):
    """Somebody who can sign in."""

    username: str = Field(examples=["olga"])
    role: Role
    disabled: bool
    created_at: datetime
    disabled_at: datetime | None

    @classmethod
    def of(cls, row: UserRow) -> "UserOut":
        """A stored account."""
        return cls(
            username=row.username,
            role=Role(row.role),
            disabled=row.disabled_at is not None,
            created_at=row.created_at,
            disabled_at=row.disabled_at,
        )


class UserIn(Strict):
    """A wish for an account; its first password is made by the server."""

    username: str = Field(max_length=63, examples=["olga"])
    role: Role = Role.VIEWER


class UserCreatedOut(UserOut):
    """A new account with its first password."""

    password: str | None = Field(description=_SHOWN_ONCE, examples=["one-time-random-text"])


class UserChangeIn(Strict):
    """What is to become of an account; what is left out stays."""

    role: Role | None = None
    disabled: StrictBool | None = None
    reason: Reason = ""


class PasswordResetIn(Strict):
    """Why somebody needs a new password."""

    reason: Reason = ""


class PasswordOut(BaseModel):
    """A new password."""

    username: str
    password: str | None = Field(description=_SHOWN_ONCE, examples=["one-time-random-text"])


class PasswordIn(Strict):
    """One's own password, replaced."""

    current: str = Field(max_length=1000)
    new: str = Field(min_length=12, max_length=1000)


class TokenOut(FromDomain):
    """A program's way in, without its secret."""

    id: int
    name: str = Field(examples=["ci"])
    scopes: list[Scope]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class TokenIn(Strict):
    """A wish for a token; it may not do more than its maker."""

    name: str = Field(max_length=63, examples=["ci"])
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope), examples=[["read", "policies:write"]])
    expires_at: Moment | None = Field(default=None, description="None never expires.")


class TokenCreatedOut(TokenOut):
    """A new token with its secret."""

    secret: str | None = Field(description=_SHOWN_ONCE, examples=["pddt_one-time-random-text"])


class SessionOut(FromDomain):
    """A signed-in browser, without its secret."""

    id: str = Field(examples=["0123456789abcdef"])
    username: str
    created_at: datetime
    expires_at: datetime
    current: bool = Field(description="Whether this is the session that asks.")
