"""Tells every gateway and observer of a changed fleet."""

from collections.abc import Callable
from dataclasses import replace

from control.domain.topology import FleetSnapshot
from control.orders import WATCH_FLEET, Order, site_queue
from control.services.fleet import load_snapshot
from control.services.fleet_revision import raise_fleet_revision
from control.services.plane import ControlPlane
from control.services.policies import find_active_number, load_revision
from control.services.reports import MAX_WAITING_ORDERS
from control.services.rollout import push_orders
from control.store.session import UnitOfWork


def push_fleet(work: UnitOfWork, plane: ControlPlane, actor: str) -> int:
    """Send the fleet as this transaction leaves it, under a new revision; the sweep repeats what gets lost.

    Returns:
        The fleet's new revision.
    """
    revision = raise_fleet_revision(work.session, plane.now(), actor)
    send_fleet(work)
    return revision


def send_fleet(work: UnitOfWork) -> None:
    """Send the fleet as this transaction leaves it, under the revision that it has."""
    session = work.session
    session.flush()
    fleet = load_snapshot(session)
    for order in watch_orders(fleet):
        work.enqueue(order)
    number = find_active_number(session)
    if number is not None:
        for order in push_orders(fleet, fleet.gateways, number, load_revision(session, number).document):
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
