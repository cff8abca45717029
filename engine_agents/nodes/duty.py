"""What a node was told to be used for, and the orders that told it: an old one does nothing, a repeated one no more."""

import logging
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

KEPT_ORDERS = 200
APPLIED, UNCHANGED, STALE = "applied", "unchanged", "stale"

logger = logging.getLogger(__name__)


class StaleOrderError(Exception):
    """An order that was given before one that has come already."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Which step an order is of, and a number that rises with every order."""

    step: str
    token: int


@dataclass(frozen=True, slots=True)
class TakenOrder:
    """An order and what it did."""

    order: str
    step: str
    fence: int
    effect: str


class Duty:
    """A node serves whatever it is sent; its duty is what its operators mean it for, shown and kept in order."""

    def __init__(self, node: str) -> None:
        self.role: str | None = None
        self.draining = False
        self._node = node
        self._newest = Fence("", 0)
        self._orders: deque[TakenOrder] = deque(maxlen=KEPT_ORDERS)

    def assign(self, role: str, fence: Fence, *, draining: bool) -> str:
        """Take a duty; says whether it is another one than before.

        Raises:
            StaleOrderError: a newer order has come.
        """
        self._check("assign", fence)
        is_same = (self.role, self.draining) == (role, draining)
        self.role, self.draining = role, draining
        return self._note("assign", fence, UNCHANGED if is_same else APPLIED)

    def end(self, fence: Fence, *, is_this_incarnation: bool) -> str:
        """Take an order to end; another incarnation than the one that is meant goes on.

        Raises:
            StaleOrderError: a newer order has come.
        """
        is_repeated = self._newest == fence
        self._check("restart", fence)
        does_end = is_this_incarnation and not is_repeated
        return self._note("restart", fence, APPLIED if does_end else UNCHANGED)

    def orders(self) -> list[dict[str, Any]]:
        """The last orders, the oldest first."""
        return [asdict(order) for order in self._orders]

    def _check(self, order: str, fence: Fence) -> None:
        if fence.token < self._newest.token:
            self._note(order, fence, STALE)
            raise StaleOrderError(f"order {fence.token} is older than {self._newest.token}, which has come already")
        self._newest = fence

    def _note(self, order: str, fence: Fence, effect: str) -> str:
        self._orders.append(TakenOrder(order, fence.step, fence.token, effect))
        logger.info("%s: order %s of step %s, fence %d: %s", self._node, order, fence.step, fence.token, effect)
        return effect
