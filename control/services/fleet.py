"""The fleet in SQL: seeded from a document, read back as the snapshot that gateways run on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sqlmodel import Session, select

from control.domain.fleet_plan import plan_fleet
from control.domain.fleet_seed import names_of, seeded_inventory
from control.domain.inventory import Kind
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Site, Tenant
from control.errors import NotFoundError
from control.services.audit import record_event
from control.services.fleet_revision import load_fleet_revision, raise_fleet_revision
from control.services.inventory_rows import load_inventory, load_items, save_plan
from control.services.plane import ControlPlane
from control.store.tables import SettingRow, TenantRow

_SEEDED_SETTING = "fleet.seeded"
_Item = TypeVar("_Item", Site, Node, Link, Gateway)


def load_snapshot(session: Session) -> FleetSnapshot:
    """The whole fleet, each kind in the order of its names; an empty one before the first seed."""
    snapshot = load_inventory(session).snapshot(tuple(load_tenants(session)))
    return replace(snapshot, revision=load_fleet_revision(session))


def load_sites(session: Session) -> list[Site]:
    """All sites by name."""
    return load_items(session, Kind.SITE)


def load_nodes(session: Session) -> list[Node]:
    """All nodes by name."""
    return load_items(session, Kind.NODE)


def load_links(session: Session) -> list[Link]:
    """All links by name."""
    return load_items(session, Kind.LINK)


def load_gateways(session: Session) -> list[Gateway]:
    """All gateways by name."""
    return load_items(session, Kind.GATEWAY)


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
    """Bring a document's fleet into the inventory, as `seeded_inventory` says.

    A change raises the fleet's revision, so that the next sweep tells the gateways of it.

    Returns:
        Whether anything changed.
    """
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        before = load_inventory(session)
        earlier = session.get(SettingRow, _SEEDED_SETTING)
        after = seeded_inventory(before, wanted, earlier.value if earlier else names_of(before))
        plan = plan_fleet(before, after)
        names = names_of(wanted)
        if plan.is_empty and (earlier is None or earlier.value == names):
            return False
        at = plane.now()
        save_plan(session, plan, after, at, actor)
        session.merge(SettingRow(key=_SEEDED_SETTING, value=names, updated_at=at, updated_by=actor))
        if plan.is_empty:
            return False
        if before.sites:
            raise_fleet_revision(session, at, actor)
        record_event(session, at, actor, "fleet.seed", "fleet", before=names_of(before), after=names_of(after))
    return True
