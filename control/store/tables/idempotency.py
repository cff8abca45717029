"""Requests that may come twice."""

from datetime import datetime

from sqlalchemy import JSON
from sqlmodel import Field

from control.store.tables.base import Row, moment


class IdempotencyRow(Row, table=True):
    """A POST with an `Idempotency-Key`: who works on it, whether it has changed anything, and what was answered.

    `claim` belongs to whoever carries it out; `has_effect` is set in the same transaction as the first change.
    """

    __tablename__ = "idempotency_key"
    actor: str = Field(primary_key=True)
    key_hash: str = Field(primary_key=True)
    request_hash: str
    claim: str = Field(repr=False)
    claimed_at: datetime = moment()
    has_effect: bool = False
    status: int | None = None
    headers: dict[str, str] = Field(sa_type=JSON)
    body: str = Field(default="", repr=False)
    expires_at: datetime = moment(index=True)
