"""Which gateway runs which policy revision, and the orders that close the gap."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, select

from control.domain.policy_scopes import merge_policy
from control.domain.topology import FleetSnapshot, Gateway
from control.orders import PUSH_POLICY, Order, site_queue
from control.services.canaries import CanaryPolicy, load_canary
from control.services.fleet import load_gateways, load_snapshot
from control.services.plane import ControlPlane
from control.services.reports import (
    RolloutState,
    has_room,
    keep_report,
    load_active_policy,
    needs_push,
    report_facts,
)
from control.store.tables import GatewayReportRow, PolicyActivationRow

STALE_AFTER = timedelta(seconds=30)

__all__ = (
    "GatewayStatus",
    "Report",
    "RolloutState",
    "is_behind",
    "judge_gateway",
    "load_statuses",
    "needs_push",
    "push_orders",
    "record_report",
    "sweep_gateways",
)


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """What a gateway was last seen to run; `revision` and `age_s` are None where nothing is known.

    `converged_s` is how long after the revision was applied it was confirmed; None where it is not.
    """

    gateway: str
    site: str
    state: RolloutState
    revision: int | None
    age_s: float | None
    error: str
    converged_s: float | None = None
    canary_revision: int | None = None

    @property
    def is_drifted(self) -> bool:
        """Whether it is not known to run the active revision."""
        return self.state is not RolloutState.APPLIED


@dataclass(frozen=True, slots=True)
class Report:
    """An agent's word on one gateway; all revisions are what the gateway itself said it runs."""

    order_id: str
    gateway: str
    site: str
    revision: int | None
    state: str
    error: str
    observed_at: datetime
    fleet_revision: int | None = None
    canary_revision: int | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> "Report":
        """Read the arguments of the report task.

        Raises:
            KeyError, TypeError, ValueError: they are not a report's.
        """
        fleet_revision, canary_revision = arguments.get("fleet_revision"), arguments.get("canary_revision")
        return cls(
            gateway=str(arguments["gateway"]),
            site=str(arguments["site"]),
            fleet_revision=None if fleet_revision is None else int(fleet_revision),
            canary_revision=None if canary_revision is None else int(canary_revision),
            **report_facts(arguments),
        )


def push_orders(
    fleet: FleetSnapshot,
    gateways: Iterable[Gateway],
    revision: int,
    document: Mapping[str, Any],
    *,
    canary: CanaryPolicy | None = None,
    force: bool = False,
) -> list[Order]:
    """One order per gateway to run what this revision says for its site. `force` lets it go back to a lower number.

    `canary` is what some requests run under; without one there is none.
    """
    fleet_document = fleet.to_document()
    return [
        Order(
            PUSH_POLICY,
            site_queue(gateway.site),
            {
                "order_id": uuid.uuid4().hex,
                "revision": revision,
                "policy": merge_policy(document, gateway.site).document,
                "fleet": fleet_document,
                "gateway": asdict(gateway),
                "force": force,
                # An agent of the release before this one knows no such argument.
                **({"canary": canary.for_site(gateway.site)} if canary else {}),
            },
        )
        for gateway in gateways
    ]


def judge_gateway(
    gateway: Gateway,
    report: GatewayReportRow | None,
    active: int | None,
    now: datetime,
    activated_at: datetime | None = None,
    *,
    canary_revision: int | None = None,
) -> GatewayStatus:
    """Compare what a gateway was last seen to run with what it should.

    `activated_at` is since when it should; `canary_revision` is what some of its requests should run under.
    """
    if report is None:
        return GatewayStatus(gateway.name, gateway.site, RolloutState.UNKNOWN, None, None, "")
    age = now - report.received_at
    if age > STALE_AFTER:
        state = RolloutState.STALE
    elif report.state == RolloutState.FAILED:
        state = RolloutState.FAILED
    else:
        is_right = (report.revision, report.canary_revision) == (active, canary_revision)
        state = RolloutState.APPLIED if is_right else RolloutState.PENDING
    converged_s = None
    if report.revision == active and report.confirmed_at is not None and activated_at is not None:
        # Applying a revision again finds it in force already.
        converged_s = max(0.0, (report.confirmed_at - activated_at).total_seconds())
    age_s = max(0.0, age.total_seconds())
    return GatewayStatus(
        gateway.name,
        gateway.site,
        state,
        report.revision,
        age_s,
        report.error,
        converged_s,
        report.canary_revision,
    )


def is_behind(report: GatewayReportRow | None, fleet_revision: int, canary_revision: int | None = None) -> bool:
    """Whether a gateway runs another fleet than the stored one, or another canary."""
    if report is None:
        return False
    return ((report.fleet_revision or 0), report.canary_revision) != (fleet_revision, canary_revision)


def load_statuses(session: Session, active: int | None, now: datetime) -> list[GatewayStatus]:
    """Status of every gateway, by name."""
    reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    activated_at = session.exec(
        select(PolicyActivationRow.activated_at)
        .where(PolicyActivationRow.revision == active)
        .order_by(col(PolicyActivationRow.id).desc())
    ).first()
    canary = load_canary(session)
    canary_revision = canary.canary.revision if canary else None
    return [
        judge_gateway(gateway, reports.get(gateway.name), active, now, activated_at, canary_revision=canary_revision)
        for gateway in load_gateways(session)
    ]


def record_report(plane: ControlPlane, report: Report) -> bool:
    """Keep a report of a gateway; see `keep_report`."""
    return keep_report(
        plane,
        GatewayReportRow,
        report.gateway,
        report,
        fleet_revision=report.fleet_revision,
        canary_revision=report.canary_revision,
    )


def sweep_gateways(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Send the active policy again to every gateway that needs it.

    Args:
        plane: the edges.
        waiting_orders: number of orders in a queue; a site whose agent is away gets no further ones.

    Returns:
        Names of the gateways that an order was sent to.
    """
    with plane.database.reading() as session:
        active = load_active_policy(session)
        if active is None:
            return []
        fleet = load_snapshot(session)
        canary = load_canary(session)
        reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    canary_revision = canary.canary.revision if canary else None
    due = [
        gateway
        for gateway in fleet.gateways
        if (
            needs_push(reports.get(gateway.name), active.number, plane.now())
            or is_behind(reports.get(gateway.name), fleet.revision, canary_revision)
        )
        and has_room(waiting_orders, gateway.site)
    ]
    for gateway in due:
        report = reports.get(gateway.name)
        is_foreign = active.is_foreign(report) or (report is not None and (report.fleet_revision or 0) > fleet.revision)
        for order in push_orders(fleet, [gateway], active.number, active.document, canary=canary, force=is_foreign):
            plane.send(order)
    return [gateway.name for gateway in due]
