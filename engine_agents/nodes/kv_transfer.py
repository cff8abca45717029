"""One pull's connections to a lease: blocks split over streams, and a broken stream's blocks asked for again."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from engine_agents.nodes.kv_blocks import Block, BlockPart
from engine_agents.nodes.kv_connection import BlockTaker, KvConnection, PullSource
from engine_agents.nodes.kv_errors import BadFrameError, KvError, PeerLostError, PullStalledError
from engine_agents.nodes.kv_wire import Wanted

MAX_STREAMS = 64
MAX_FRUITLESS_RESUMES = 3
RESUME_AFTER_S = 0.05


def split_blocks(wanted: Sequence[Wanted], streams: int) -> list[list[Wanted]]:
    """Deal blocks to at most `streams` streams in turn, so that a prompt arrives about in order.

    Streams that would have nothing to do are left out; where nothing is wanted, one stream remains.
    """
    count = max(1, min(streams, len(wanted), MAX_STREAMS))
    return [list(wanted[start::count]) for start in range(count)]


def may_resume(error: KvError, *, landed: int, fruitless: int) -> bool:
    """Whether what is missing should be asked for again after a stream broke.

    Args:
        error: how it broke.
        landed: blocks that the attempt brought.
        fruitless: attempts in a row that brought none, this one included.
    """
    if isinstance(error, PeerLostError):
        return fruitless <= MAX_FRUITLESS_RESUMES
    return isinstance(error, PullStalledError) and landed > 0


class KvTransfer:
    """The way to one lease, over as many connections as its route allows; they are opened when there is work."""

    def __init__(
        self, source: PullSource, *, fingerprint: str, stall_s: float, on_bytes: Callable[[int], None]
    ) -> None:
        self.resumes = 0
        self._source = source
        self._reader = secrets.token_hex(8)
        self._fingerprint = fingerprint
        self._stall_s = stall_s
        self._on_bytes = on_bytes
        self._connections: dict[int, KvConnection] = {}
        self._was_open = False

    async def fetch(self, wanted: Sequence[Wanted], land: BlockTaker) -> None:
        """Give every wanted block or part to `land` once; where none is wanted, only attach to the lease.

        A stream that breaks, or is cut by the relay, costs what was on its way: its blocks are asked for again, those
        that have landed are not.

        Raises:
            KvError: refused, damaged, or broken again and again.
        """
        left = {want.hash: want for want in wanted}
        fruitless = 0

        def take(block: Block | BlockPart) -> None:
            land(block)
            left.pop(block.hash, None)

        while True:
            before = len(left)
            error = await self._attempt(list(left.values()), take)
            if error is None and left:
                raise BadFrameError("the server ended before it had sent every block")
            if error is None:
                return
            landed = before - len(left)
            fruitless = 0 if landed else fruitless + 1
            if not self._was_open or not may_resume(error, landed=landed, fruitless=fruitless):
                raise error
            await asyncio.sleep(RESUME_AFTER_S * 2**fruitless)
            self.resumes += 1

    def keep_alive(self) -> None:
        """Tell the server that the lease is still needed.

        Raises:
            PeerLostError: the last connection is closed.
        """
        for connection in self._connections.values():
            connection.keep_alive()

    async def release(self) -> None:
        """End the lease and the connections."""
        for index, connection in sorted(self._connections.items(), reverse=True):
            if index == 0 or len(self._connections) == 1:
                await connection.release()
            self._drop(index)

    def close(self) -> None:
        """Drop all connections now."""
        for index in list(self._connections):
            self._drop(index)

    async def _attempt(self, wanted: Sequence[Wanted], take: BlockTaker) -> KvError | None:
        """Use all streams once; gives back why one of them broke, once the others have brought what they were asked."""
        shares = split_blocks(wanted, self._source.via.streams if self._source.via else 1)
        if len(shares) == 1:
            return await self._run_stream(0, shares[0], take)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_stream(index, share, take)) for index, share in enumerate(shares)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return next((error for task in tasks if (error := task.result()) is not None), None)

    async def _run_stream(self, index: int, share: list[Wanted], take: BlockTaker) -> KvError | None:
        try:
            connection = self._connections.get(index) or await self._open(index)
            await connection.fetch(share, take)
        except (PeerLostError, PullStalledError) as error:
            self._drop(index)
            return error
        return None

    async def _open(self, index: int) -> KvConnection:
        connection = KvConnection(
            self._source,
            reader=self._reader,
            fingerprint=self._fingerprint,
            stall_s=self._stall_s,
            on_bytes=self._on_bytes,
        )
        self._connections[index] = connection
        await connection.open()
        self._was_open = True
        return connection

    def _drop(self, index: int) -> None:
        connection = self._connections.pop(index, None)
        if connection is not None:
            connection.close()
