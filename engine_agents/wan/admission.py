"""Which transfers of a link may send now: at most so many, by priority of their class, then by arrival. Pure."""

from collections.abc import Sequence
from typing import NamedTuple


class Standing(NamedTuple):
    """One transfer as the queue sees it; `order` is its place in the order of arrival."""

    wants: bool
    holds: bool
    priority: int
    order: int


def admit(transfers: Sequence[Standing], limit: int | None) -> list[bool]:
    """Which of the transfers hold a place after this, in their order; `limit` None is no limit.

    A transfer that holds a place keeps it against anyone who waits, whatever the class: places are given, not taken.
    Only a lowered limit takes them, from the last in rank.
    """
    ranked = sorted(range(len(transfers)), key=lambda index: _rank(transfers[index]))
    left = len(transfers) if limit is None else limit
    granted = [False] * len(transfers)
    for index in ranked:
        transfer = transfers[index]
        if left and (transfer.holds or transfer.wants):
            granted[index] = True
            left -= 1
    return granted


def _rank(transfer: Standing) -> tuple[bool, int, int]:
    return (not transfer.holds, -transfer.priority, transfer.order)
