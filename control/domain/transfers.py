"""Transfers on a link as its WAN relay last showed them, and what an operator can do to one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from control.domain.staleness import STALE_AFTER_S

MAX_SHOWN_TRANSFERS = 100


class TransferAction(StrEnum):
    """What can be done to one transfer; each of them twice has the effect of once."""

    PAUSE = "pause"
    RESUME = "resume"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class SeenTransfer:
    """One transfer. Times in seconds; `size_bytes` were sent, `queued_bytes` wait in the relay."""

    transfer_id: str
    pipeline: str
    service_class: str
    state: str
    streams: int
    size_bytes: int
    queued_bytes: int
    age_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class SeenTransfers:
    """The transfers of one link, the oldest first, and how old that picture is."""

    age_s: float
    is_reachable: bool
    transfers: tuple[SeenTransfer, ...] = ()


def why_not_known(link: str, seen: SeenTransfers | None) -> str:
    """Why nobody can say what is under way on a link; empty where it is known."""
    if seen is None:
        return f"What is under way on {link} is not known: no observer has reported it"
    if seen.age_s > STALE_AFTER_S:
        return f"What is under way on {link} is not known: last seen {seen.age_s:.0f} s ago"
    return "" if seen.is_reachable else f"What is under way on {link} is not known: its WAN relay does not answer"


def find_transfer(transfers: Sequence[SeenTransfer], transfer_id: str) -> SeenTransfer | None:
    """The transfer of that id; None where it has ended or never was."""
    return next((one for one in transfers if one.transfer_id == transfer_id), None)
