"""Which gateway runs which policy revision, and the orders that close the gap."""

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlmodel import Session, col, func, select, update

from control.domain.topology import FleetSnapshot, Gateway
from control.orders import PUSH_POLICY, Order, site_queue
from control.services.fleet import load_gateways, load_snapshot
from control.services.plane import ControlPlane
from control.store.tables import GatewayReportRow, GatewayRow, LinkReportRow, PolicyActivationRow, PolicyRevisionRow

REPORT_EXPECTED_EVERY = timedelta(seconds=15)
STALE_AFTER = timedelta(seconds=30)
MAX_WAITING_ORDERS = 4

log = logging.getLogger(__name__)


class RolloutState(StrEnum):
    """How far a gateway is from the active revision."""

    APPLIED = "applied"
    PENDING = "pending"
    FAILED = "failed"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """What a gateway was last seen to run; `revision` and `age_s` are None where nothing is known."""

    gateway: str
    site: str
    state: RolloutState
    revision: int | None
    age_s: float | None
    error: str

    @property
    def is_drifted(self) -> bool:
        """Whether it is not known to run the active revision."""
        return self.state is not RolloutState.APPLIED


@dataclass(frozen=True, slots=True)
class Report:
    """An agent's word on one gateway; the revisions of policy and fleet are what the gateway itself said it runs."""

    order_id: str
    gateway: str
    site: str
    revision: int | None
    state: str
    error: str
    observed_at: datetime
    fleet_revision: int | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> "Report":
        """Read the arguments of the report task.

        Raises:
            KeyError, TypeError, ValueError: they are not a report's.
        """
        revision, fleet_revision = arguments["revision"], arguments.get("fleet_revision")
        return cls(
            order_id=str(arguments["order_id"]),
            gateway=str(arguments["gateway"]),
            site=str(arguments["site"]),
            revision=None if revision is None else int(revision),
            state=str(arguments["state"]),
            error=str(arguments.get("error") or ""),
            observed_at=datetime.fromtimestamp(float(arguments["applied_at_s"]), UTC),
            fleet_revision=None if fleet_revision is None else int(fleet_revision),
        )


def push_orders(
    fleet: FleetSnapshot,
    gateways: Iterable[Gateway],
    revision: int,
    document: Mapping[str, Any],
    *,
    force: bool = False,
) -> list[Order]:
    """One order per gateway to run this revision on this fleet. `force` lets it go back to a lower number."""
    return [
        Order(
            PUSH_POLICY,
            site_queue(gateway.site),
            {
                "order_id": uuid.uuid4().hex,
                "revision": revision,
                "policy": dict(document),
                "fleet": fleet.to_document(),
                "gateway": asdict(gateway),
                "force": force,
            },
        )
        for gateway in gateways
    ]


def judge_gateway(
    gateway: Gateway, report: GatewayReportRow | None, active: int | None, now: datetime
) -> GatewayStatus:
    """Compare what a gateway was last seen to run with what it should."""
    if report is None:
        return GatewayStatus(gateway.name, gateway.site, RolloutState.UNKNOWN, None, None, "")
    age = now - report.received_at
    if age > STALE_AFTER:
        state = RolloutState.STALE
    elif report.state == RolloutState.FAILED:
        state = RolloutState.FAILED
    else:
        state = RolloutState.APPLIED if report.revision == active else RolloutState.PENDING
    age_s = max(0.0, age.total_seconds())
    return GatewayStatus(gateway.name, gateway.site, state, report.revision, age_s, report.error)


def needs_push(report: GatewayReportRow | LinkReportRow | None, active: int, now: datetime) -> bool:
    """Whether a gateway or relay runs something else, failed, or has been silent for too long."""
    if report is None or report.state == RolloutState.FAILED or report.revision != active:
        return True
    return now - report.received_at >= REPORT_EXPECTED_EVERY


def is_behind(report: GatewayReportRow | None, fleet_revision: int) -> bool:
    """Whether a gateway runs another fleet than the stored one."""
    return report is not None and (report.fleet_revision or 0) != fleet_revision


def load_statuses(session: Session, active: int | None, now: datetime) -> list[GatewayStatus]:
    """Status of every gateway, by name."""
    reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    return [judge_gateway(gateway, reports.get(gateway.name), active, now) for gateway in load_gateways(session)]


def record_report(plane: ControlPlane, report: Report) -> bool:
    """Keep a report unless a newer one of the same gateway is known, or the gateway is not.

    Returns:
        Whether it was kept.
    """
    values: dict[str, Any] = {
        "order_id": report.order_id,
        "revision": report.revision,
        "fleet_revision": report.fleet_revision,
        "state": report.state,
        "error": report.error[:500],
        "observed_at": report.observed_at,
        "received_at": plane.now(),
    }
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        if session.get(GatewayRow, report.gateway) is None:
            log.warning("dropped a report of unknown gateway %s", report.gateway)
            return False
        if session.get(GatewayReportRow, report.gateway) is None:
            session.add(GatewayReportRow(gateway=report.gateway, **values))
            return True
        written = session.exec(
            update(GatewayReportRow)
            .where(col(GatewayReportRow.gateway) == report.gateway)
            .where(col(GatewayReportRow.observed_at) < report.observed_at)
            .values(**values)
        )
        kept = bool(written.rowcount)
    if not kept:
        log.info("dropped a late report of gateway %s", report.gateway)
    return kept


def sweep_gateways(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Send the active policy again to every gateway that needs it.

    Args:
        plane: the edges.
        waiting_orders: number of orders in a queue; a site whose agent is away gets no further ones.

    Returns:
        Names of the gateways that an order was sent to.
    """
    with plane.database.reading() as session:
        activation = session.exec(select(PolicyActivationRow).order_by(col(PolicyActivationRow.id).desc())).first()
        if activation is None:
            return []
        revision = session.get_one(PolicyRevisionRow, activation.revision)
        newest = session.exec(select(func.max(PolicyRevisionRow.number))).one()
        fleet = load_snapshot(session)
        reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    due = [
        gateway
        for gateway in fleet.gateways
        if (
            needs_push(reports.get(gateway.name), revision.number, plane.now())
            or is_behind(reports.get(gateway.name), fleet.revision)
        )
        and waiting_orders(site_queue(gateway.site)) < MAX_WAITING_ORDERS
    ]
    for gateway in due:
        # A number that was never given out here comes from a database that is gone: ours is the one that counts.
        report = reports.get(gateway.name)
        is_foreign = report is not None and (
            (report.revision or 0) > newest or (report.fleet_revision or 0) > fleet.revision
        )
        for order in push_orders(fleet, [gateway], revision.number, revision.document, force=is_foreign):
            plane.send(order)
    return [gateway.name for gateway in due]
