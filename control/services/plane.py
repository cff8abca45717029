"""What every use case needs to act: the database, a way to send orders, and a clock."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from control.orders import Send
from control.store.session import Database


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The edges that services act through."""

    database: Database
    send: Send
    now: Callable[[], datetime] = utc_now
