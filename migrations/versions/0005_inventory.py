"""Chip and model profiles, networks of sites, chips and labels of nodes; the one model becomes a profile."""

import json
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LOOPBACK = ("127.0.0.0/8", "::1/128")
SETTING = "fleet.model"

setting = sa.table("setting", sa.column("key", sa.String), sa.column("value", sa.JSON))
site = sa.table("site", sa.column("name", sa.String), sa.column("networks", sa.JSON))
node = sa.table("node", *(sa.column(name, sa.String) for name in ("site", "url", "model")))
gateway = sa.table("gateway", *(sa.column(name, sa.String) for name in ("site", "url")))
link = sa.table("link", *(sa.column(name, sa.String) for name in ("source", "relay_host", "admin_url")))
model_profile = sa.table(
    "model_profile",
    sa.column("name", sa.String),
    sa.column("kv_bytes_per_token", sa.Integer),
    sa.column("block_tokens", sa.Integer),
    sa.column("quantisation", sa.String),
    sa.column("labels", sa.JSON),
)


def upgrade() -> None:
    op.create_table(
        "chip_profile",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("peak_flops", sa.Float(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes_per_s", sa.Float(), nullable=False),
        sa.Column("interconnect_bytes_per_s", sa.Float(), nullable=False),
        sa.Column("price_per_hour", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_chip_profile")),
    )
    op.create_table(
        "model_profile",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kv_bytes_per_token", sa.Integer(), nullable=False),
        sa.Column("block_tokens", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=True),
        sa.Column("attention", sa.String(), nullable=True),
        sa.Column("quantisation", sa.String(), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_profile")),
    )
    op.add_column("site", sa.Column("networks", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("node", sa.Column("chip", sa.String(), nullable=False, server_default=""))
    op.add_column("node", sa.Column("labels", sa.JSON(), nullable=False, server_default="{}"))
    if not op.get_context().as_sql:
        _allow_known_addresses()
        _make_profiles()


def downgrade() -> None:
    if not op.get_context().as_sql:
        _make_setting()
    op.drop_column("node", "labels")
    op.drop_column("node", "chip")
    op.drop_column("site", "networks")
    op.drop_table("model_profile")
    op.drop_table("chip_profile")


def _allow_known_addresses() -> None:
    """Let each site have the addresses that it has, and this machine's own."""
    connection = op.get_bind()
    hosts: dict[str, set[str]] = {}
    for table in (node, gateway):
        for place, url in connection.execute(sa.select(table.c.site, table.c.url)):
            hosts.setdefault(place, set()).add(urlsplit(url).hostname or "")
    for place, host, url in connection.execute(sa.select(link.c.source, link.c.relay_host, link.c.admin_url)):
        hosts.setdefault(place, set()).update((host, urlsplit(url).hostname or ""))
    for (name,) in connection.execute(sa.select(site.c.name)).all():
        networks = [*LOOPBACK, *sorted(filter(None, map(_network_of, hosts.get(name, ()))))]
        connection.execute(site.update().where(site.c.name == name).values(networks=networks))


def _network_of(host: str) -> str:
    """The network of one address; empty for a name, and for what loopback covers."""
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    return "" if address.is_loopback else str(ip_network(address))


def _make_profiles() -> None:
    connection = op.get_bind()
    facts = connection.execute(sa.select(setting.c.value).where(setting.c.key == SETTING)).scalar()
    if not facts:
        return
    served = set(connection.execute(sa.select(node.c.model).distinct()).scalars())
    for name in sorted(({facts["model"]} | served) - {""}):
        labels = facts["labels"] if name == facts["model"] else {}
        figures = {"kv_bytes_per_token": facts["kv_bytes_per_token"], "block_tokens": facts["block_tokens"]}
        connection.execute(model_profile.insert().values(name=name, quantisation="", labels=labels, **figures))
    connection.execute(setting.update().where(setting.c.key == SETTING).values(value={"name": facts["model"]}))


def _make_setting() -> None:
    connection = op.get_bind()
    chosen = connection.execute(sa.select(setting.c.value).where(setting.c.key == SETTING)).scalar()
    if not chosen:
        return
    columns = (model_profile.c.kv_bytes_per_token, model_profile.c.block_tokens, model_profile.c.labels)
    found = connection.execute(sa.select(*columns).where(model_profile.c.name == chosen["name"])).first()
    kv_bytes_per_token, block_tokens, labels = found or (0, 64, {})
    facts = {
        "model": chosen["name"],
        "kv_bytes_per_token": kv_bytes_per_token,
        "block_tokens": block_tokens,
        "labels": labels if isinstance(labels, dict) else json.loads(labels),
    }
    connection.execute(setting.update().where(setting.c.key == SETTING).values(value=facts))
