"""Policy revisions, what was applied when, and what gateways and relays report."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON
from sqlmodel import Field

from control.store.tables.base import Row, moment, only_add


class PolicyRevisionRow(Row, table=True):
    """One immutable policy document."""

    __tablename__ = "policy_revision"
    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    document: dict[str, Any] = Field(sa_type=JSON)
    reason: str
    actor: str
    created_at: datetime = moment()
    base_number: int | None = Field(default=None, foreign_key="policy_revision.number")


class PolicyActivationRow(Row, table=True):
    """Which revision was applied when, by whom and why; the newest row is what should run."""

    __tablename__ = "policy_activation"
    id: int | None = Field(default=None, primary_key=True)
    revision: int = Field(foreign_key="policy_revision.number")
    actor: str
    reason: str
    activated_at: datetime = moment()


class GatewayReportRow(Row, table=True):
    """What a gateway was last seen to run.

    `observed_at` is the agent's clock and orders reports of one gateway; `received_at` is ours and gives their age.
    `confirmed_at` is since when they have shown this revision; null where the last one does not. `canary_revision` is
    the one that some requests run under, null for none.
    """

    __tablename__ = "gateway_report"
    gateway: str = Field(primary_key=True, foreign_key="gateway.name")
    order_id: str
    revision: int | None = None
    fleet_revision: int | None = None
    canary_revision: int | None = None
    state: str
    error: str = ""
    observed_at: datetime = moment()
    received_at: datetime = moment()
    confirmed_at: datetime | None = moment(nullable=True)


class LinkReportRow(Row, table=True):
    """What the relay of a link was last seen to enforce; moments as in a gateway's report."""

    __tablename__ = "link_report"
    link: str = Field(primary_key=True, foreign_key="link.name")
    order_id: str
    revision: int | None = None
    state: str
    error: str = ""
    observed_at: datetime = moment()
    received_at: datetime = moment()
    confirmed_at: datetime | None = moment(nullable=True)


class AnnotationRow(Row, table=True):
    """A remark on a moment; charts show it as a mark."""

    __tablename__ = "annotation"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = moment(index=True)
    text: str
    actor: str
    created_at: datetime = moment()


only_add(PolicyRevisionRow)
only_add(PolicyActivationRow)
