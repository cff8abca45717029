"""Operations with their steps, leases by name, and what was measured on links."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger
from sqlmodel import Field

from control.store.tables.base import Row, moment


class OperationRow(Row, table=True):
    """Something an operator asked for.

    `open_key` is the kind and target while it is open and null afterwards, so that an operation is open once.
    `subjects` are the nodes that it may touch.
    """

    __tablename__ = "operation"
    id: int | None = Field(default=None, primary_key=True)
    kind: str
    target: str = Field(index=True)
    open_key: str | None = Field(default=None, unique=True)
    subjects: list[str] = Field(sa_type=JSON)
    parameters: dict[str, Any] = Field(sa_type=JSON)
    state: str = Field(index=True)
    ending: str | None = None
    error: str = ""
    actor: str
    reason: str
    result: Any = Field(default=None, sa_type=JSON, nullable=True)
    retry_of: int | None = Field(default=None, foreign_key="operation.id")
    created_at: datetime = moment()
    finished_at: datetime | None = moment(nullable=True)


class OperationStepRow(Row, table=True):
    """One step; a result counts only under the token that the row holds."""

    __tablename__ = "operation_step"
    operation_id: int = Field(foreign_key="operation.id", primary_key=True)
    position: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    stage: str
    subject: str
    site: str
    deadline_s: float
    arguments: dict[str, Any] = Field(sa_type=JSON)
    undoes: bool = False
    state: str
    lease_token: str | None = Field(default=None, repr=False)
    fence: int = Field(default=0, sa_type=BigInteger)
    attempt: int = 0
    started_at: datetime | None = moment(nullable=True)
    lease_until: datetime | None = moment(nullable=True)
    finished_at: datetime | None = moment(nullable=True)
    progress: dict[str, Any] = Field(sa_type=JSON)
    error: str = ""


class LeaseRow(Row, table=True):
    """Who does by name what only one may do at a time; `fence` rises with every new holder."""

    __tablename__ = "lease"
    name: str = Field(primary_key=True)
    holder: str
    fence: int = Field(sa_type=BigInteger)
    expires_at: datetime = moment()


class LinkProbeRow(Row, table=True):
    """One measurement of a link; bytes per second and seconds."""

    __tablename__ = "link_probe"
    id: int | None = Field(default=None, primary_key=True)
    link: str = Field(index=True)
    operation_id: int = Field(foreign_key="operation.id", unique=True)
    measured_at: datetime = moment()
    size_bytes: int = Field(sa_type=BigInteger)
    duration_s: float
    bandwidth_bytes_per_s: float
    rtt_s: float
