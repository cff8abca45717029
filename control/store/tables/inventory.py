"""What stands where: sites, nodes, links, gateways, and the facts about the whole fleet."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, UniqueConstraint
from sqlmodel import Field

from control.store.tables.base import Row, moment


class SiteRow(Row, table=True):
    """A datacenter."""

    __tablename__ = "site"
    name: str = Field(primary_key=True)
    label: str = ""
    networks: list[str] = Field(default_factory=list, sa_type=JSON)


class ChipProfileRow(Row, table=True):
    """The figures of one kind of chip."""

    __tablename__ = "chip_profile"
    name: str = Field(primary_key=True)
    peak_flops: float
    memory_bytes: int = Field(sa_type=BigInteger)
    memory_bytes_per_s: float
    interconnect_bytes_per_s: float
    price_per_hour: float


class ModelProfileRow(Row, table=True):
    """The figures of one model."""

    __tablename__ = "model_profile"
    name: str = Field(primary_key=True)
    kv_bytes_per_token: int
    block_tokens: int
    layers: int | None = None
    attention: str | None = None
    quantisation: str = ""
    context_tokens: int | None = None
    labels: dict[str, str] = Field(default_factory=dict, sa_type=JSON)


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
    chip: str = ""
    labels: dict[str, str] = Field(default_factory=dict, sa_type=JSON)


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
    created_at: datetime = moment()
    created_by: str = ""


class SettingRow(Row, table=True):
    """A small fact about the whole fleet, as JSON."""

    __tablename__ = "setting"
    key: str = Field(primary_key=True)
    value: Any = Field(sa_type=JSON)
    updated_at: datetime = moment()
    updated_by: str = ""
