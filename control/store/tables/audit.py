"""Who changed what."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, String
from sqlmodel import Field

from control.store.tables.base import Row, moment, only_add


class AuditEventRow(Row, table=True):
    """Who changed what, from what, to what, and why. Rows are only ever added."""

    __tablename__ = "audit_event"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = moment(index=True)
    actor: str
    action: str
    target: str = Field(sa_type=String, index=True)
    before: Any = Field(default=None, sa_type=JSON)
    after: Any = Field(default=None, sa_type=JSON)
    reason: str = ""


only_add(AuditEventRow)
