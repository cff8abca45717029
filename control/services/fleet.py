"""The fleet in SQL: seeded from a document, read back as the snapshot that gateways run on."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from sqlmodel import Session, col, delete, select

from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site, Tenant
from control.errors import NotFoundError
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import GatewayReportRow, GatewayRow, LinkRow, NodeRow, SettingRow, SiteRow, TenantRow

_MODEL_SETTING = "fleet.model"
_Item = TypeVar("_Item", Site, Node, Link, Gateway)
_Named = TypeVar("_Named", LinkRow, NodeRow, GatewayRow)


def load_snapshot(session: Session) -> FleetSnapshot:
    """The whole fleet, each kind in the order of its names; an empty one before the first seed."""
    setting = session.get(SettingRow, _MODEL_SETTING)
    model: dict[str, Any] = setting.value if setting else {}
    return FleetSnapshot(
        sites=tuple(load_sites(session)),
        nodes=tuple(load_nodes(session)),
        links=tuple(load_links(session)),
        gateways=tuple(load_gateways(session)),
        tenants=tuple(load_tenants(session)),
        **model,
    )


def load_sites(session: Session) -> list[Site]:
    """All sites by name."""
    return [Site(**row.model_dump()) for row in session.exec(select(SiteRow).order_by(SiteRow.name))]


def load_nodes(session: Session) -> list[Node]:
    """All nodes by name."""
    rows = session.exec(select(NodeRow).order_by(NodeRow.name))
    return [Node(**{**row.model_dump(), "role": Role(row.role), "state": NodeState(row.state)}) for row in rows]


def load_links(session: Session) -> list[Link]:
    """All links by name."""
    return [Link(**row.model_dump()) for row in session.exec(select(LinkRow).order_by(LinkRow.name))]


def load_gateways(session: Session) -> list[Gateway]:
    """All gateways by name."""
    return [Gateway(**row.model_dump()) for row in session.exec(select(GatewayRow).order_by(GatewayRow.name))]


def load_tenants(session: Session) -> list[Tenant]:
    """All tenants by name."""
    rows = session.exec(select(TenantRow).order_by(TenantRow.name))
    return [Tenant(row.name, row.key_sha256, tuple(row.classes), row.salt) for row in rows]


def find(items: Sequence[_Item], kind: str, name: str) -> _Item:
    """The one of that name.

    Raises:
        NotFoundError: there is none.
    """
    for item in items:
        if item.name == name:
            return item
    raise NotFoundError(f"There is no {kind} {name}.")


def seed_fleet(plane: ControlPlane, wanted: FleetSnapshot, actor: str) -> bool:
    """Make the stored fleet equal to a document; the state an operator gave a node that stays is kept.

    Gateways count as silent after a change, so that the next sweep tells them of it.

    Returns:
        Whether anything changed.
    """
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        before = load_snapshot(session)
        states = {node.name: node.state.value for node in before.nodes}
        session.exec(delete(GatewayReportRow))
        for site in wanted.sites:
            session.merge(SiteRow(**asdict(site)))
        session.flush()
        _replace_all(session, LinkRow, [LinkRow(**asdict(link)) for link in wanted.links])
        _replace_all(session, NodeRow, [_node_row(node, states) for node in wanted.nodes])
        _replace_all(session, GatewayRow, [GatewayRow(**asdict(gateway)) for gateway in wanted.gateways])
        session.exec(delete(SiteRow).where(col(SiteRow.name).not_in([site.name for site in wanted.sites])))
        at = plane.now()
        session.merge(SettingRow(key=_MODEL_SETTING, value=_model_facts(wanted), updated_at=at, updated_by=actor))
        session.flush()
        session.expire_all()
        after = load_snapshot(session)
        if after == before:
            session.rollback()
            return False
        record_event(session, at, actor, "fleet.seed", "fleet", before=_names(before), after=_names(after))
    return True


def _replace_all(session: Session, table: type[_Named], rows: Sequence[_Named]) -> None:
    # Deleted first: a renamed link would otherwise meet its old row, which joins the same two sites.
    session.exec(delete(table).where(col(table.name).not_in([row.name for row in rows])))
    for row in rows:
        session.merge(row)
    session.flush()


def _model_facts(fleet: FleetSnapshot) -> dict[str, Any]:
    return {
        "model": fleet.model,
        "kv_bytes_per_token": fleet.kv_bytes_per_token,
        "block_tokens": fleet.block_tokens,
        "labels": fleet.labels,
    }


def _node_row(node: Node, states: dict[str, str]) -> NodeRow:
    state = states.get(node.name, node.state.value)
    return NodeRow(**{**asdict(node), "role": node.role.value, "state": state})


def _names(fleet: FleetSnapshot) -> dict[str, list[str]]:
    return {
        "sites": [site.name for site in fleet.sites],
        "nodes": [node.name for node in fleet.nodes],
        "links": [link.name for link in fleet.links],
        "gateways": [gateway.name for gateway in fleet.gateways],
    }
