"""Places on links that no WAN relay shapes: at most so many transfers at once; the gateway starts them, so it can wait.

A transfer between stock engines holds its place from before its prefill until its KV has arrived: its lease must not
expire while it waits.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count


class LinkPlaces:
    """Who sends and who waits on each link. A place is given by priority of class, then by arrival."""

    def __init__(self) -> None:
        self._limits: Mapping[str, int] = {}
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[int, int, asyncio.Future[None]]]] = {}
        self._arrivals = count()

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """How many transfers may send on each link; a lower limit takes no place from anyone."""
        self._limits = limits
        for link in list(self._waiting):
            self._admit(link)

    async def take(self, link: str, priority: int) -> None:
        """Return with a place on the link, which must be given back. Cancelling it gives up the wait."""
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting.setdefault(link, []), (-priority, next(self._arrivals), turn))
        self._admit(link)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(link)
            else:
                turn.cancel()
                self._admit(link)
            raise

    def give_back(self, link: str) -> None:
        """A transfer is over."""
        self._held[link] -= 1
        self._admit(link)

    def waiting(self, link: str) -> int:
        """Transfers that wait for a place."""
        return sum(not turn.done() for *_, turn in self._waiting.get(link, ()))

    @property
    def taken(self) -> int:
        """Places taken on all links."""
        return self._held.total()

    def _admit(self, link: str) -> None:
        queue = self._waiting.get(link, [])
        while queue and (queue[0][2].done() or self._held[link] < self._limits.get(link, 1)):
            *_, turn = heappop(queue)
            if not turn.done():
                self._held[link] += 1
                turn.set_result(None)
        if not queue:
            self._waiting.pop(link, None)
