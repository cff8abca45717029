"""Tells every gateway and observer of a changed fleet."""

from collections.abc import Callable
from dataclasses import replace

from sqlmodel import Session

from control.domain.topology import FleetSnapshot
from control.orders import WATCH_FLEET, Order, site_queue
from control.services.canaries import load_canary
from control.services.fleet import load_snapshot
from control.services.plane import ControlPlane
from control.services.policies import find_active_number, load_revision
from control.services.reports import MAX_WAITING_ORDERS
from control.services.rollout import push_orders
from control.store.session import UnitOfWork


def send_fleet(work: UnitOfWork) -> None:
    """Send the fleet as this transaction leaves it, under the revision it has; the sweep repeats what gets lost."""
    fleet = _changed_fleet(work)
    for order in (*watch_orders(fleet), *_gateway_orders(work.session, fleet)):
        work.enqueue(order)


def tell_gateways(work: UnitOfWork) -> None:
    """The same for a change that observers need not know of."""
    for order in _gateway_orders(work.session, _changed_fleet(work)):
        work.enqueue(order)


def sweep_observers(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Tell every site that takes orders which nodes to observe: an observer that knows it already changes nothing.

    Returns:
        Names of the sites that were told.
    """
    with plane.database.reading() as session:
        fleet = load_snapshot(session)
    told = []
    for order in watch_orders(fleet):
        if waiting_orders(order.queue) < MAX_WAITING_ORDERS:
            plane.send(order)
            told.append(str(order.arguments["site"]))
    return told


def watch_orders(fleet: FleetSnapshot) -> list[Order]:
    """One order per site, to observe its part of this fleet; nothing in it is secret."""
    orders = []
    for site in fleet.sites:
        nodes = tuple(node for node in fleet.nodes if node.site == site.name)
        links = tuple(link for link in fleet.links if link.source == site.name)
        part = replace(fleet, nodes=nodes, links=links, gateways=(), tenants=())
        orders.append(Order(WATCH_FLEET, site_queue(site.name), {"site": site.name, "fleet": part.to_document()}))
    return orders


def _changed_fleet(work: UnitOfWork) -> FleetSnapshot:
    work.session.flush()
    return load_snapshot(work.session)


def _gateway_orders(session: Session, fleet: FleetSnapshot) -> list[Order]:
    number = find_active_number(session)
    if number is None:
        return []
    document = load_revision(session, number).document
    return push_orders(fleet, fleet.gateways, number, document, canary=load_canary(session))
