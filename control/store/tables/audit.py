"""Who changed what."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, String
from sqlmodel import Field

from control.store.tables.base import Row, moment, only_add


class AuditEventRow(Row, table=True):
    """Who changed what, from what, to what, and why. Rows are only ever added, by `control.store.audit_chain`."""

    __tablename__ = "audit_event"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = moment(index=True)
    actor: str
    action: str
    target: str = Field(sa_type=String, index=True)
    before: Any = Field(default=None, sa_type=JSON)
    after: Any = Field(default=None, sa_type=JSON)
    reason: str = ""
    previous_hash: str
    hash: str


class AuditHeadRow(Row, table=True):
    """The one row that names the newest event. Whoever adds an event holds its lock until the commit."""

    __tablename__ = "audit_head"
    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    event_id: int
    hash: str


only_add(AuditEventRow)
