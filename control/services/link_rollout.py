"""What each WAN relay enforces, and the orders that bring it to the active policy."""

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlmodel import col, func, select, update

from control.domain.links import order_link
from control.domain.policy import parse_policy
from control.domain.topology import Link
from control.orders import SHAPE_LINK, Order, site_queue
from control.services.fleet import load_links
from control.services.plane import ControlPlane
from control.services.rollout import MAX_WAITING_ORDERS, needs_push
from control.store.tables import LinkReportRow, LinkRow, PolicyActivationRow, PolicyRevisionRow

log = logging.getLogger(__name__)


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
        revision = arguments["revision"]
        return cls(
            order_id=str(arguments["order_id"]),
            link=str(arguments["link"]),
            revision=None if revision is None else int(revision),
            state=str(arguments["state"]),
            error=str(arguments.get("error") or ""),
            observed_at=datetime.fromtimestamp(float(arguments["applied_at_s"]), UTC),
        )


def shape_orders(
    links: Iterable[Link], revision: int, document: Mapping[str, Any], *, force: bool = False
) -> list[Order]:
    """One order per link that a relay shapes, for the agent of its source site.

    `force` lets a relay go back to a lower revision.
    """
    policy = parse_policy(document)
    return [
        Order(
            SHAPE_LINK,
            site_queue(link.source),
            {
                "order_id": uuid.uuid4().hex,
                "revision": revision,
                "link": link.name,
                "admin_url": link.admin_url,
                "shape": order_link(link, policy).to_document(),
                "force": force,
            },
        )
        for link in links
        if link.admin_url
    ]


def record_link_report(plane: ControlPlane, report: LinkReport) -> bool:
    """Keep a report unless a newer one of the same link is known, or the link is not.

    Returns:
        Whether it was kept.
    """
    values: dict[str, Any] = {
        "order_id": report.order_id,
        "revision": report.revision,
        "state": report.state,
        "error": report.error[:500],
        "observed_at": report.observed_at,
        "received_at": plane.now(),
    }
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        if session.get(LinkRow, report.link) is None:
            log.warning("dropped a report of unknown link %s", report.link)
            return False
        if session.get(LinkReportRow, report.link) is None:
            session.add(LinkReportRow(link=report.link, **values))
            return True
        written = session.exec(
            update(LinkReportRow)
            .where(col(LinkReportRow.link) == report.link)
            .where(col(LinkReportRow.observed_at) < report.observed_at)
            .values(**values)
        )
        return bool(written.rowcount)


def sweep_links(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Send the active policy again to every relay that needs it; see `sweep_gateways`.

    Returns:
        Names of the links that an order was sent for.
    """
    with plane.database.reading() as session:
        activation = session.exec(select(PolicyActivationRow).order_by(col(PolicyActivationRow.id).desc())).first()
        if activation is None:
            return []
        revision = session.get_one(PolicyRevisionRow, activation.revision)
        newest = session.exec(select(func.max(PolicyRevisionRow.number))).one()
        links = load_links(session)
        reports = {row.link: row for row in session.exec(select(LinkReportRow))}
    due = [
        link
        for link in links
        if link.admin_url
        and needs_push(reports.get(link.name), revision.number, plane.now())
        and waiting_orders(site_queue(link.source)) < MAX_WAITING_ORDERS
    ]
    for link in due:
        report = reports.get(link.name)
        is_foreign = report is not None and report.revision is not None and report.revision > newest
        for order in shape_orders([link], revision.number, revision.document, force=is_foreign):
            plane.send(order)
    return [link.name for link in due]
