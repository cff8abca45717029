"""Brings the blocks that this node lacks from another node; a block on its way already is never asked for again."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_connection import PullSource
from engine_agents.nodes.kv_errors import BadFrameError, KvError, StoreFullError
from engine_agents.nodes.kv_prefix import Cut
from engine_agents.nodes.kv_transfer import KvTransfer
from engine_agents.nodes.progress import Progress

KEEPALIVE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class PullReport:
    """What one pull brought; `waited_tokens` came on another pull's connection."""

    pulled_tokens: int = 0
    pulled_bytes: int = 0
    waited_tokens: int = 0
    duration_s: float = 0.0


@dataclass(slots=True)
class _Flight:
    """A block on its way, and who wants it pinned when it lands."""

    landed: "asyncio.Future[None]"
    holders: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Tally:
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    waited_tokens: int = 0


class KvPuller:
    """Pulls into one store, with single flight per block over all pulls of the node."""

    def __init__(
        self,
        store: BlockStore,
        *,
        fingerprint: str,
        counters: NodeCounters,
        progress: Progress,
        stall_s: float = 60.0,
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._counters = counters
        self._progress = progress
        self._stall_s = stall_s
        self._flights: dict[bytes, _Flight] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self.running = 0

    @property
    def blocks_in_flight(self) -> int:
        """Blocks on their way."""
        return len(self._flights)

    async def pull(self, holder: str, cuts: Sequence[Cut], source: PullSource) -> PullReport:
        """Have all blocks resident and pinned for the holder, then give the lease back.

        Cancelling it closes its connections at once; whoever waits for its blocks takes over. Pins taken so far stay
        with the holder in every case.

        A transfer that breaks goes on with the blocks that have not landed yet.

        Raises:
            KvError: the pull failed; the subclass says how.
        """
        started_s = time.monotonic()
        tally = _Tally()
        if not self._store.pin(holder, (cut.hash for cut in cuts)):
            self._release_later(source)
            return PullReport()
        self.running += 1
        self._counters.pulls += 1
        transfer = self._transfer(source)
        try:
            await self._fill(holder, cuts, transfer, tally)
            with contextlib.suppress(KvError):
                await transfer.release()
        except KvError:
            self._counters.failed_pulls += 1
            raise
        finally:
            self.running -= 1
            self._counters.resumed_pulls += transfer.resumes
            transfer.close()
        self._store.touch([cut.hash for cut in cuts])
        self._counters.pulled_tokens += tally.pulled_tokens
        return PullReport(tally.pulled_tokens, tally.pulled_bytes, tally.waited_tokens, time.monotonic() - started_s)

    async def close(self) -> None:
        """End the releases still under way."""
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)

    def _transfer(self, source: PullSource) -> KvTransfer:
        return KvTransfer(source, fingerprint=self._fingerprint, stall_s=self._stall_s, on_bytes=self._count_bytes)

    async def _fill(self, holder: str, cuts: Sequence[Cut], transfer: KvTransfer, tally: _Tally) -> None:
        """Fetch what nobody fetches, wait for the rest, and look again: a failed flight's blocks are free then."""
        sizes = {cut.hash: cut.token_count for cut in cuts}
        is_attached = False
        while missing := self._store.pin(holder, sizes):
            free = [block_hash for block_hash in missing if block_hash not in self._flights]
            if free or not is_attached:
                await self._fetch(holder, {block_hash: sizes[block_hash] for block_hash in free}, transfer, tally)
                is_attached = True
            else:
                await self._wait(holder, missing, transfer)
                tally.waited_tokens += sum(sizes[block_hash] for block_hash in missing if block_hash in self._store)

    async def _fetch(self, holder: str, wanted: dict[bytes, int], transfer: KvTransfer, tally: _Tally) -> None:
        loop = asyncio.get_running_loop()
        for block_hash in wanted:
            self._flights[block_hash] = _Flight(loop.create_future(), {holder})
        try:
            await transfer.fetch(list(wanted), lambda block: self._land(block, wanted, tally))
        finally:
            for block_hash in wanted:
                flight = self._flights.pop(block_hash, None)
                if flight is not None:
                    flight.landed.set_result(None)

    def _land(self, block: Block, wanted: dict[bytes, int], tally: _Tally) -> None:
        flight = self._flights.get(block.hash)
        if flight is None or wanted.get(block.hash) != block.token_count:
            raise BadFrameError("the server sent a block that was not asked for")
        if not self._store.put(block):
            raise StoreFullError(f"no room for {block.token_count} tokens, all of the store is pinned")
        for holder in flight.holders:
            self._store.pin(holder, [block.hash])
        tally.pulled_tokens += block.token_count
        tally.pulled_bytes += block.size_bytes
        del self._flights[block.hash]
        flight.landed.set_result(None)

    async def _wait(self, holder: str, missing: Sequence[bytes], transfer: KvTransfer) -> None:
        """Until all flights of the missing blocks have ended, well or badly; the own lease is kept meanwhile."""
        flights = [self._flights[block_hash] for block_hash in missing]
        for flight in flights:
            flight.holders.add(holder)
        pending = {flight.landed for flight in flights}
        try:
            while pending:
                _, pending = await asyncio.wait(pending, timeout=KEEPALIVE_EVERY_S)
                if pending:
                    transfer.keep_alive()
        finally:
            for flight in flights:
                flight.holders.discard(holder)

    def _count_bytes(self, count: int) -> None:
        self._counters.pulled_bytes += count
        self._progress.mark()

    def _release_later(self, source: PullSource) -> None:
        """Nothing is missing: give the lease back without making the request wait for it."""
        task = asyncio.create_task(self._release(source))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, source: PullSource) -> None:
        transfer = self._transfer(source)
        try:
            with contextlib.suppress(KvError):  # the lease expires by itself
                await transfer.fetch([], self._refuse)
                await transfer.release()
        finally:
            transfer.close()

    def _refuse(self, block: Block) -> None:
        raise BadFrameError(f"the server sent a block of {block.token_count} tokens, nothing was asked for")
