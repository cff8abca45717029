"""What each WAN relay enforces, and the orders that bring it to the active policy."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import select

from control.domain.links import order_link
from control.domain.policy import parse_policy
from control.domain.policy_scopes import merge_policy
from control.domain.topology import Link
from control.orders import SHAPE_LINK, Order, site_queue
from control.services.fleet import load_links
from control.services.plane import ControlPlane
from control.services.reports import has_room, keep_report, load_active_policy, needs_push, report_facts
from control.store.tables import LinkReportRow


@dataclass(frozen=True, slots=True)
class LinkReport:
    """An agent's word on one link; `revision` is what the relay itself said it enforces."""

    order_id: str
    link: str
    revision: int | None
    state: str
    error: str
    observed_at: datetime

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> "LinkReport":
        """Read the arguments of the report task.

        Raises:
            KeyError, TypeError, ValueError: they are not a report's.
        """
        return cls(link=str(arguments["link"]), **report_facts(arguments))


def shape_orders(
    links: Iterable[Link], revision: int, document: Mapping[str, Any], *, force: bool = False
) -> list[Order]:
    """One order per link that a relay shapes, for the agent of its source site, whose policy holds for it.

    `force` lets a relay go back to a lower revision.
    """
    links = [link for link in links if link.admin_url]
    policies = {site: parse_policy(merge_policy(document, site).document) for site in {link.source for link in links}}
    return [
        Order(
            SHAPE_LINK,
            site_queue(link.source),
            {
                "order_id": uuid.uuid4().hex,
                "revision": revision,
                "link": link.name,
                "admin_url": link.admin_url,
                "shape": order_link(link, policies[link.source]).to_document(),
                "force": force,
            },
        )
        for link in links
    ]


def record_link_report(plane: ControlPlane, report: LinkReport) -> bool:
    """Keep a report of a link; see `keep_report`."""
    return keep_report(plane, LinkReportRow, report.link, report)


def sweep_links(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Send the active policy again to every relay that needs it; see `sweep_gateways`.

    Returns:
        Names of the links that an order was sent for.
    """
    with plane.database.reading() as session:
        active = load_active_policy(session)
        if active is None:
            return []
        links = load_links(session)
        reports = {row.link: row for row in session.exec(select(LinkReportRow))}
    due = [
        link
        for link in links
        if link.admin_url
        and needs_push(reports.get(link.name), active.number, plane.now())
        and has_room(waiting_orders, link.source)
    ]
    for link in due:
        is_foreign = active.is_foreign(reports.get(link.name))
        for order in shape_orders([link], active.number, active.document, force=is_foreign):
            plane.send(order)
    return [link.name for link in due]
