"""Who may use a node's slots: so many run, so many more wait in line, the rest is refused at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from engine_agents.nodes.progress import Progress


class QueueFullError(Exception):
    """All slots are taken and so is every place in the queue."""


class Admission:
    """Slots of one node. `admitted` counts everything in the house: pulling, waiting and running."""

    def __init__(self, slots: int, queue_limit: int, progress: Progress) -> None:
        self._capacity = slots + queue_limit
        self._slots = asyncio.Semaphore(slots)
        self._progress = progress
        self.admitted = 0
        self.running = 0
        self.waiting = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Be in the house.

        Raises:
            QueueFullError: it is full.
        """
        if self.admitted >= self._capacity:
            raise QueueFullError("all slots and all places in the queue are taken")
        self.admitted += 1
        self._progress.begin()
        try:
            yield
        finally:
            self.admitted -= 1
            self._progress.end()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait in line for a slot, then hold it."""
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
