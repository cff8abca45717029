"""The inventory in SQL: read as a whole or in part, and brought from one state to another by a plan."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col, delete, or_, update

from control.domain.fleet_plan import Action, FleetPlan, ItemChange
from control.domain.inventory import (
    AttentionKind,
    ChipProfile,
    Inventory,
    Item,
    Kind,
    ModelProfile,
    item_facts,
)
from control.domain.topology import Gateway, Link, Node, NodeState, Role, Site
from control.store.tables import (
    ChipProfileRow,
    GatewayReportRow,
    GatewayRow,
    LinkReportRow,
    LinkRow,
    ModelProfileRow,
    NodeRow,
    SettingRow,
    SiteRow,
)

MODEL_SETTING = "fleet.model"

NamedRow = SiteRow | ChipProfileRow | ModelProfileRow | NodeRow | LinkRow | GatewayRow


@dataclass(frozen=True, slots=True)
class Mapped:
    """How one kind is stored: its table, and how the columns of a row are read, which are its arguments by name."""

    table: type[NamedRow]
    read: Callable[..., Item]


def _read_site(name: str, label: str, networks: list[str]) -> Site:
    return Site(name, label, tuple(networks))


def _read_model(attention: str | None, **facts: Any) -> ModelProfile:
    return ModelProfile(**facts, attention=None if attention is None else AttentionKind(attention))


def _read_node(role: str, state: str, **facts: Any) -> Node:
    return Node(**facts, role=Role(role), state=NodeState(state))


MAPPED: Mapping[Kind, Mapped] = {
    Kind.SITE: Mapped(SiteRow, _read_site),
    Kind.CHIP: Mapped(ChipProfileRow, ChipProfile),
    Kind.MODEL: Mapped(ModelProfileRow, _read_model),
    Kind.NODE: Mapped(NodeRow, _read_node),
    Kind.LINK: Mapped(LinkRow, Link),
    Kind.GATEWAY: Mapped(GatewayRow, Gateway),
}
# What others point to comes first, and goes last.
_ORDER = (Kind.SITE, Kind.CHIP, Kind.MODEL, Kind.NODE, Kind.LINK, Kind.GATEWAY)


def load_items(session: Session, kind: Kind, *conditions: Any, limit: int | None = None) -> list[Any]:
    """Items of one kind by name, all or those that meet conditions on their table, at most `limit`."""
    mapped = MAPPED[kind]
    names = list(mapped.table.model_fields)
    # Plain columns: rows that a session keeps track of took three times as long, and nobody changes these.
    columns = [getattr(mapped.table, name) for name in names]
    rows = session.execute(select(*columns).where(*conditions).order_by(col(mapped.table.name)).limit(limit))
    return [mapped.read(**dict(zip(names, row, strict=True))) for row in rows]


def load_default_model(session: Session) -> str:
    """Name of the model that the gateways serve first; empty before the first seed."""
    row = session.get(SettingRow, MODEL_SETTING)
    return str(row.value["name"]) if row else ""


def load_inventory(session: Session, around: Item | None = None) -> Inventory:
    """The whole inventory; `around` a node leaves out the other nodes, which are the many, but for those at its URL."""
    conditions = []
    if isinstance(around, Node):
        url = around.url.rstrip("/")
        conditions.append(or_(col(NodeRow.name) == around.name, col(NodeRow.url).in_([url, f"{url}/"])))
    found = {kind.value: tuple(load_items(session, kind, *(conditions if kind is Kind.NODE else ()))) for kind in Kind}
    return Inventory(**found, model=load_default_model(session))


def save_plan(session: Session, plan: FleetPlan, wanted: Inventory, at: datetime, actor: str) -> None:
    """Bring the stored inventory to the wanted one, which the plan leads to."""
    # A link that joins other sites than before gives its place up first: its successor may be in this plan.
    moved = [change.ref for change in plan.of(Action.CHANGED, Kind.LINK) if _has_moved(change)]
    gone = [change.ref for change in plan.of(Action.REMOVED)]
    for kind in (Kind.LINK, Kind.GATEWAY, Kind.NODE):
        _delete(session, kind, [ref.name for ref in (*gone, *moved) if ref.kind is kind])
    for kind in _ORDER:
        items = wanted.by_name(kind)
        names = [change.ref.name for change in plan.of(Action.ADDED, kind)]
        names += [ref.name for ref in moved if ref.kind is kind]
        session.add_all(MAPPED[kind].table(**item_facts(items[name])) for name in names)
        for change in plan.of(Action.CHANGED, kind):
            if change.ref not in moved:
                table = MAPPED[kind].table
                facts = item_facts(items[change.ref.name])
                session.exec(update(table).where(col(table.name) == change.ref.name).values(**facts))
        session.flush()
    for kind in (Kind.SITE, Kind.CHIP, Kind.MODEL):
        _delete(session, kind, [ref.name for ref in gone if ref.kind is kind])
    if plan.facts:
        row = SettingRow(key=MODEL_SETTING, value={"name": wanted.model}, updated_at=at, updated_by=actor)
        session.merge(row)
    session.flush()
    session.expire_all()


def _has_moved(change: ItemChange) -> bool:
    return any(field.path in {"source", "target"} for field in change.changes)


def _delete(session: Session, kind: Kind, names: Iterable[str]) -> None:
    table = MAPPED[kind].table
    for name in names:
        if kind is Kind.LINK:
            session.exec(delete(LinkReportRow).where(col(LinkReportRow.link) == name))
        if kind is Kind.GATEWAY:
            session.exec(delete(GatewayReportRow).where(col(GatewayReportRow.gateway) == name))
        session.exec(delete(table).where(col(table.name) == name))
