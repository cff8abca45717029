"""What agents report of gateways and relays: kept in order, and compared with the policy that should run."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from sqlmodel import Session, col, func, select, update

from control.orders import site_queue
from control.services.plane import ControlPlane
from control.store.tables import (
    GatewayReportRow,
    GatewayRow,
    LinkReportRow,
    LinkRow,
    PolicyActivationRow,
    PolicyRevisionRow,
)

REPORT_EXPECTED_EVERY = timedelta(seconds=15)
MAX_WAITING_ORDERS = 4
_MAX_ERROR_CHARS = 500

ReportRow = GatewayReportRow | LinkReportRow

# Whom each table reports on, and its column that names them.
_KEYS: Mapping[type[ReportRow], tuple[type[GatewayRow | LinkRow], str]] = {
    GatewayReportRow: (GatewayRow, "gateway"),
    LinkReportRow: (LinkRow, "link"),
}

log = logging.getLogger(__name__)


class RolloutState(StrEnum):
    """How far a gateway is from the active revision."""

    APPLIED = "applied"
    PENDING = "pending"
    FAILED = "failed"
    STALE = "stale"
    UNKNOWN = "unknown"


class AgentReport(Protocol):
    """What all reports say; `observed_at` is the agent's clock."""

    @property
    def order_id(self) -> str:
        """The order it answers."""

    @property
    def revision(self) -> int | None:
        """What runs; None where it could not be asked."""

    @property
    def state(self) -> str:
        """Either `applied` or `failed`."""

    @property
    def error(self) -> str:
        """Why it failed; else empty."""

    @property
    def observed_at(self) -> datetime:
        """When the agent looked."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """The revision that should run, and the newest number that was ever given out here."""

    number: int
    document: Mapping[str, Any]
    newest: int

    def is_foreign(self, report: ReportRow | None) -> bool:
        """Whether a number was never given out here: it comes from a database that is gone, and ours counts."""
        return report is not None and (report.revision or 0) > self.newest


def load_active_policy(session: Session) -> ActivePolicy | None:
    """What should run; None before the first policy."""
    activation = session.exec(select(PolicyActivationRow).order_by(col(PolicyActivationRow.id).desc())).first()
    if activation is None:
        return None
    revision = session.get_one(PolicyRevisionRow, activation.revision)
    newest = session.exec(select(func.max(PolicyRevisionRow.number))).one()
    return ActivePolicy(revision.number, revision.document, newest)


def report_facts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What all reports say, from the arguments of a report task.

    Raises:
        KeyError, TypeError, ValueError: they are not a report's.
    """
    revision = arguments["revision"]
    return {
        "order_id": str(arguments["order_id"]),
        "revision": None if revision is None else int(revision),
        "state": str(arguments["state"]),
        "error": str(arguments.get("error") or ""),
        "observed_at": datetime.fromtimestamp(float(arguments["applied_at_s"]), UTC),
    }


def keep_report(plane: ControlPlane, table: type[ReportRow], name: str, report: AgentReport, **more: Any) -> bool:
    """Keep a report on the gateway or link of that name, unless a newer one is known, or nobody has that name.

    `more` are columns that only this table has.

    Returns:
        Whether it was kept.
    """
    owner, key = _KEYS[table]
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        if session.get(owner, name) is None:
            log.warning("dropped a report of unknown %s %s", key, name)
            return False
        known: Any = session.get(table, name)
        at = plane.now()
        values: dict[str, Any] = {
            "order_id": report.order_id,
            "revision": report.revision,
            "state": report.state,
            "error": report.error[:_MAX_ERROR_CHARS],
            "observed_at": report.observed_at,
            "received_at": at,
            "confirmed_at": _confirmed_at(known, report, at),
            **more,
        }
        if known is None:
            session.add(table(**{key: name, **values}))
            return True
        is_newer = col(table.observed_at) < report.observed_at
        kept = bool(
            session.exec(
                update(table).where(col(getattr(table, key)) == name).where(is_newer).values(**values)
            ).rowcount
        )
    if not kept:
        log.info("dropped a late report of %s %s", key, name)
    return kept


def needs_push(report: ReportRow | None, active: int, now: datetime) -> bool:
    """Whether a gateway or relay runs something else, failed, or has been silent for too long."""
    if report is None or report.state == RolloutState.FAILED or report.revision != active:
        return True
    return now - report.received_at >= REPORT_EXPECTED_EVERY


def has_room(waiting_orders: Callable[[str], int], site: str) -> bool:
    """Whether a site takes up its orders; one whose agent is away gets no further ones."""
    return waiting_orders(site_queue(site)) < MAX_WAITING_ORDERS


def _confirmed_at(known: ReportRow | None, report: AgentReport, at: datetime) -> datetime | None:
    """Since when the reports have shown this revision without a break; None where this one does not."""
    if report.state != RolloutState.APPLIED:
        return None
    is_same = known is not None and known.state == RolloutState.APPLIED and known.revision == report.revision
    return known.confirmed_at if is_same and known is not None else at
