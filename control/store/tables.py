"""The tables of the control plane."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, Connection, DateTime, MetaData, String, UniqueConstraint, event
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC; SQLite, which keeps no zone, gives it back with one all the same."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a moment without a zone.

        Raises:
            ValueError: `value` is naive.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs a time zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the moment its zone back."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Row(SQLModel):
    """Base of all tables."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING_CONVENTION)


def _moment(*, nullable: bool = False, index: bool = False) -> Any:
    if nullable:
        return Field(default=None, sa_type=UtcDateTime, nullable=True, index=index)
    return Field(sa_type=UtcDateTime, nullable=False, index=index)


class SiteRow(Row, table=True):
    """A datacenter."""

    __tablename__ = "site"
    name: str = Field(primary_key=True)
    label: str = ""


class NodeRow(Row, table=True):
    """One engine process, and what the operator wants of it."""

    __tablename__ = "node"
    name: str = Field(primary_key=True)
    site: str = Field(foreign_key="site.name", index=True)
    role: str
    url: str
    engine: str
    model: str
    slots: int
    state: str


class LinkRow(Row, table=True):
    """A directed WAN path."""

    __tablename__ = "link"
    __table_args__ = (UniqueConstraint("source", "target"),)
    name: str = Field(primary_key=True)
    source: str = Field(foreign_key="site.name")
    target: str = Field(foreign_key="site.name")
    capacity_bytes_per_s: float
    rtt_s: float
    flow_cap_bytes_per_s: float | None = None
    relay_host: str = ""
    relay_port: int = 0
    admin_url: str = ""


class GatewayRow(Row, table=True):
    """One OpenAI-compatible entrance."""

    __tablename__ = "gateway"
    name: str = Field(primary_key=True)
    site: str = Field(foreign_key="site.name", index=True)
    url: str


class TenantRow(Row, table=True):
    """Who may use the gateways; of its API key only the hash is kept."""

    __tablename__ = "tenant"
    name: str = Field(primary_key=True)
    key_sha256: str = Field(unique=True)
    classes: list[str] = Field(sa_type=JSON)
    salt: bool | None = None
    created_at: datetime = _moment()
    created_by: str = ""


class SettingRow(Row, table=True):
    """A small fact about the whole fleet, as JSON."""

    __tablename__ = "setting"
    key: str = Field(primary_key=True)
    value: Any = Field(sa_type=JSON)
    updated_at: datetime = _moment()
    updated_by: str = ""


class PolicyRevisionRow(Row, table=True):
    """One immutable policy document."""

    __tablename__ = "policy_revision"
    __table_args__ = (UniqueConstraint("actor", "idempotency_key"),)
    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    document: dict[str, Any] = Field(sa_type=JSON)
    reason: str
    actor: str
    created_at: datetime = _moment()
    base_number: int | None = Field(default=None, foreign_key="policy_revision.number")
    idempotency_key: str | None = None
    request_digest: str | None = None


class PolicyActivationRow(Row, table=True):
    """Which revision was applied when, by whom and why; the newest row is what should run."""

    __tablename__ = "policy_activation"
    id: int | None = Field(default=None, primary_key=True)
    revision: int = Field(foreign_key="policy_revision.number")
    actor: str
    reason: str
    activated_at: datetime = _moment()


class GatewayReportRow(Row, table=True):
    """What a gateway was last seen to run.

    `observed_at` is the agent's clock and orders reports of one gateway; `received_at` is ours and gives their age.
    """

    __tablename__ = "gateway_report"
    gateway: str = Field(primary_key=True, foreign_key="gateway.name")
    order_id: str
    revision: int | None = None
    state: str
    error: str = ""
    observed_at: datetime = _moment()
    received_at: datetime = _moment()


class LinkReportRow(Row, table=True):
    """What the relay of a link was last seen to enforce; moments as in a gateway's report."""

    __tablename__ = "link_report"
    link: str = Field(primary_key=True, foreign_key="link.name")
    order_id: str
    revision: int | None = None
    state: str
    error: str = ""
    observed_at: datetime = _moment()
    received_at: datetime = _moment()


class UserRow(Row, table=True):
    """Somebody who can sign in."""

    __tablename__ = "app_user"
    id: int | None = Field(default=None, primary_key=True)
    username: str = Field(unique=True)
    password_hash: str = Field(repr=False)
    role: str
    created_at: datetime = _moment()
    disabled_at: datetime | None = _moment(nullable=True)


class WebSessionRow(Row, table=True):
    """A signed-in browser; the cookie holds the secret, the table only its hash."""

    __tablename__ = "web_session"
    secret_hash: str = Field(primary_key=True, repr=False)
    user_id: int = Field(foreign_key="app_user.id", index=True)
    csrf_token: str = Field(repr=False)
    created_at: datetime = _moment()
    expires_at: datetime = _moment(index=True)


class ApiTokenRow(Row, table=True):
    """A program's way in; only the hash is kept."""

    __tablename__ = "api_token"
    id: int | None = Field(default=None, primary_key=True)
    name: str
    secret_hash: str = Field(unique=True, repr=False)
    role: str
    created_by: str
    created_at: datetime = _moment()
    expires_at: datetime | None = _moment(nullable=True)
    revoked_at: datetime | None = _moment(nullable=True)


class LoginKeyRow(Row, table=True):
    """A key that signs one browser in once."""

    __tablename__ = "login_key"
    secret_hash: str = Field(primary_key=True, repr=False)
    user_id: int = Field(foreign_key="app_user.id", index=True)
    created_at: datetime = _moment()
    expires_at: datetime = _moment()
    used_at: datetime | None = _moment(nullable=True)


class LoginFailureRow(Row, table=True):
    """A failed sign-in, counted per account and per address until it is old."""

    __tablename__ = "login_failure"
    id: int | None = Field(default=None, primary_key=True)
    subject: str = Field(index=True)
    at: datetime = _moment(index=True)


class AuditEventRow(Row, table=True):
    """Who changed what, from what, to what, and why. Rows are only ever added."""

    __tablename__ = "audit_event"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = _moment(index=True)
    actor: str
    action: str
    target: str = Field(sa_type=String, index=True)
    before: Any = Field(default=None, sa_type=JSON)
    after: Any = Field(default=None, sa_type=JSON)
    reason: str = ""


class ImmutableRowError(RuntimeError):
    """Somebody tried to change or delete a row that may only be added."""


def _refuse_change(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    del mapper, connection
    raise ImmutableRowError(f"{type(target).__name__} rows are never changed or deleted")


for _table in (PolicyRevisionRow, PolicyActivationRow, AuditEventRow):
    event.listen(_table, "before_update", _refuse_change)
    event.listen(_table, "before_delete", _refuse_change)
