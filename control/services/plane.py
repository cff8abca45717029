"""What every use case needs to act: the database, a way to send orders, a clock, and what observers see of nodes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from control.domain.staleness import NOTHING_SEEN, Sightings
from control.domain.transfers import SeenTransfers
from control.domain.webhook_targets import Network
from control.orders import Send
from control.store.session import Database


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


def see_nothing() -> Sightings:
    """Where no telemetry is read: every node is stale."""
    return NOTHING_SEEN


def see_no_transfers(_: str) -> SeenTransfers | None:
    """Where no telemetry is read: nobody knows what is under way on a link."""
    return None


def count_nothing(_: str) -> int | None:
    """Where no broker can be asked: nobody knows what waits."""
    return None


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The edges that services act through; `webhook_networks` are private ones that alerts may be sent to.

    `waiting` tells how many orders wait in a queue, None where the broker does not answer; `transfers` what is under
    way on a link.
    """

    database: Database
    send: Send
    now: Callable[[], datetime] = utc_now
    sightings: Callable[[], Sightings] = see_nothing
    webhook_networks: tuple[Network, ...] = ()
    waiting: Callable[[str], int | None] = count_nothing
    transfers: Callable[[str], SeenTransfers | None] = see_no_transfers
