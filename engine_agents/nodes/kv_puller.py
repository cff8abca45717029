"""Brings the blocks that this node lacks from another node; a block on its way already is never asked for again.

Of a block whose beginning is resident only the rest is asked for, and joined to it: so the tail of a conversation's
last prompt, and what was decoded here behind it, is not sent again with the next turn. A joined block must have the
checksum that it has at the sender. Otherwise it is asked for whole: KV that was computed here may differ in some bits.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.kv_blocks import Block, BlockPart, BlockStore
from engine_agents.nodes.kv_connection import PullSource
from engine_agents.nodes.kv_errors import BadFrameError, KvError, StoreFullError
from engine_agents.nodes.kv_layout import PartSizeError, PayloadLayout
from engine_agents.nodes.kv_prefix import Cut
from engine_agents.nodes.kv_transfer import KvTransfer
from engine_agents.nodes.kv_wire import Wanted
from engine_agents.nodes.progress import Progress

KEEPALIVE_EVERY_S = 10.0

HeadFinder = Callable[[Cut], Block | None]


@dataclass(frozen=True, slots=True)
class PullReport:
    """What one pull brought; `waited_tokens` came on another pull's connection. Beginnings joined here do not count."""

    pulled_tokens: int = 0
    pulled_bytes: int = 0
    waited_tokens: int = 0
    duration_s: float = 0.0


@dataclass(slots=True)
class _Flight:
    """A block on its way, or its rest if its `head` is resident, and who wants it pinned when it lands."""

    cut: Cut
    head: Block | None
    landed: "asyncio.Future[None]"
    holders: set[str] = field(default_factory=set)

    @property
    def wanted(self) -> Wanted:
        """What is asked for."""
        return Wanted(self.cut.hash, self.head.token_count if self.head else 0)

    @property
    def wanted_tokens(self) -> int:
        """How many tokens that is."""
        return self.cut.token_count - self.wanted.from_token

    def is_answered_by(self, block: Block | BlockPart) -> bool:
        """Whether this is what was asked for."""
        from_token = block.from_token if isinstance(block, BlockPart) else 0
        return (block.token_count, Wanted(block.hash, from_token)) == (self.cut.token_count, self.wanted)


@dataclass(slots=True)
class _Tally:
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    waited_tokens: int = 0
    unjoinable: set[bytes] = field(default_factory=set)


def no_head(cut: Cut) -> Block | None:  # noqa: ARG001 - stands where one is asked
    """Of no block a beginning is resident."""
    return None


class KvPuller:
    """Pulls into one store, with single flight per block over all pulls of the node."""

    def __init__(
        self,
        store: BlockStore,
        *,
        fingerprint: str,
        counters: NodeCounters,
        progress: Progress,
        layout: PayloadLayout | None = None,
        stall_s: float = 60.0,
    ) -> None:
        """Pull into `store`; without a `layout` blocks are never joined."""
        self._store = store
        self._fingerprint = fingerprint
        self._counters = counters
        self._progress = progress
        self._layout = layout
        self._stall_s = stall_s
        self._flights: dict[bytes, _Flight] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self.running = 0

    @property
    def blocks_in_flight(self) -> int:
        """Blocks on their way."""
        return len(self._flights)

    async def pull(
        self, holder: str, cuts: Sequence[Cut], source: PullSource, head_of: HeadFinder = no_head
    ) -> PullReport:
        """Have all blocks resident and pinned for the holder, then give the lease back.

        `head_of` gives a resident block that a missing one begins with, if there is one.

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
            await self._fill(holder, cuts, head_of, transfer, tally)
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

    async def _fill(
        self, holder: str, cuts: Sequence[Cut], head_of: HeadFinder, transfer: KvTransfer, tally: _Tally
    ) -> None:
        """Fetch what nobody fetches, wait for the rest, and look again: a failed flight's blocks are free then."""
        cut_of = {cut.hash: cut for cut in cuts}
        is_attached = False
        while missing := self._store.pin(holder, cut_of):
            free = [cut_of[block_hash] for block_hash in missing if block_hash not in self._flights]
            if free or not is_attached:
                heads = [self._head(cut, head_of, tally) for cut in free]
                await self._fetch(holder, list(zip(free, heads, strict=True)), transfer, tally)
                is_attached = True
            else:
                await self._wait(holder, missing, transfer, tally)

    def _head(self, cut: Cut, head_of: HeadFinder, tally: _Tally) -> Block | None:
        """A beginning is resident behind resident blocks only, since stores evict from the end."""
        has_parent = cut.parent is None or cut.parent in self._store
        if self._layout is None or not has_parent or cut.hash in tally.unjoinable:
            return None
        return head_of(cut)

    async def _fetch(
        self, holder: str, wanted: Sequence[tuple[Cut, Block | None]], transfer: KvTransfer, tally: _Tally
    ) -> None:
        loop = asyncio.get_running_loop()
        flights = {cut.hash: _Flight(cut, head, loop.create_future(), {holder}) for cut, head in wanted}
        self._flights |= flights
        try:
            await transfer.fetch(
                [flight.wanted for flight in flights.values()], lambda block: self._land(block, flights, tally)
            )
        finally:
            for flight in flights.values():
                self._end(flight)

    def _land(self, arrived: Block | BlockPart, flights: Mapping[bytes, _Flight], tally: _Tally) -> None:
        flight = flights.get(arrived.hash)
        if flight is None or flight.landed.done() or not flight.is_answered_by(arrived):
            raise BadFrameError("the server sent a block that was not asked for")
        block = self._joined(flight.head, arrived)
        tally.pulled_bytes += arrived.size_bytes
        if block is None:
            tally.unjoinable.add(arrived.hash)
        else:
            self._keep(block, flight)
            tally.pulled_tokens += flight.wanted_tokens
        self._end(flight)

    def _joined(self, head: Block | None, arrived: Block | BlockPart) -> Block | None:
        """The whole block; None where its beginning here is not the sender's, which is forgotten then."""
        if isinstance(arrived, Block):
            return arrived
        if head is None or self._layout is None:
            raise BadFrameError("a part of a block that was asked for whole")
        try:
            rest = arrived.token_count - arrived.from_token, arrived.payload
            payload = self._layout.joined([(head.token_count, head.payload), rest])
        except PartSizeError as error:
            raise BadFrameError(f"a part of a block: {error}") from None
        block = Block(arrived.hash, arrived.token_count, payload)
        if block.digest() != arrived.block_checksum:
            self._counters.failed_joins += 1
            self._store.discard(head.hash)
            return None
        self._counters.joined_tokens += head.token_count
        self._counters.joined_bytes += head.size_bytes
        return replace(block, checksum=arrived.block_checksum)

    def _keep(self, block: Block, flight: _Flight) -> None:
        if not self._store.put(block):
            raise StoreFullError(f"no room for {block.token_count} tokens, all of the store is pinned")
        for holder in flight.holders:
            self._store.pin(holder, [block.hash])

    def _end(self, flight: _Flight) -> None:
        """The flight is over, well or badly; a later one of the same block is not touched."""
        if self._flights.get(flight.cut.hash) is flight:
            del self._flights[flight.cut.hash]
        if not flight.landed.done():
            flight.landed.set_result(None)

    async def _wait(self, holder: str, missing: Sequence[bytes], transfer: KvTransfer, tally: _Tally) -> None:
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
        tally.waited_tokens += sum(flight.wanted_tokens for flight in flights if flight.cut.hash in self._store)

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

    def _refuse(self, block: Block | BlockPart) -> None:
        raise BadFrameError(f"the server sent a block of {block.token_count} tokens, nothing was asked for")
