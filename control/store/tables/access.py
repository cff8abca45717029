"""Who may come in: accounts, sessions, tokens, and failed attempts."""

from datetime import datetime

from sqlalchemy import JSON
from sqlmodel import Field

from control.store.tables.base import Row, moment


class UserRow(Row, table=True):
    """Somebody who can sign in."""

    __tablename__ = "app_user"
    id: int | None = Field(default=None, primary_key=True)
    username: str = Field(unique=True)
    password_hash: str = Field(repr=False)
    role: str
    created_at: datetime = moment()
    disabled_at: datetime | None = moment(nullable=True)


class WebSessionRow(Row, table=True):
    """A signed-in browser; the cookie holds the secret, the table only its hash."""

    __tablename__ = "web_session"
    secret_hash: str = Field(primary_key=True, repr=False)
    user_id: int = Field(foreign_key="app_user.id", index=True)
    csrf_token: str = Field(repr=False)
    created_at: datetime = moment()
    expires_at: datetime = moment(index=True)


class ApiTokenRow(Row, table=True):
    """A program's way in; only the hash is kept. One without an account belongs to the installation itself."""

    __tablename__ = "api_token"
    id: int | None = Field(default=None, primary_key=True)
    name: str
    secret_hash: str = Field(unique=True, repr=False)
    role: str
    scopes: list[str] = Field(sa_type=JSON)
    user_id: int | None = Field(default=None, foreign_key="app_user.id", index=True)
    created_by: str
    created_at: datetime = moment()
    expires_at: datetime | None = moment(nullable=True)
    revoked_at: datetime | None = moment(nullable=True)
    last_used_at: datetime | None = moment(nullable=True)


class LoginKeyRow(Row, table=True):
    """A key that signs one browser in once."""

    __tablename__ = "login_key"
    secret_hash: str = Field(primary_key=True, repr=False)
    user_id: int = Field(foreign_key="app_user.id", index=True)
    created_at: datetime = moment()
    expires_at: datetime = moment()
    used_at: datetime | None = moment(nullable=True)


class LoginFailureRow(Row, table=True):
    """A failed sign-in, counted per account and per address until it is old."""

    __tablename__ = "login_failure"
    id: int | None = Field(default=None, primary_key=True)
    subject: str = Field(index=True)
    at: datetime = moment(index=True)
