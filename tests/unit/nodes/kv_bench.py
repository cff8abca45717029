"""Two stores, a KV server and a relay that tests can hold shut: what the exchange tests share."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_connection import PullSource, RelayRoute
from engine_agents.nodes.kv_layout import PayloadLayout
from engine_agents.nodes.kv_prefix import Cut, cut_blocks
from engine_agents.nodes.kv_puller import KvPuller
from engine_agents.nodes.kv_server import KvServer
from engine_agents.nodes.leases import LeaseTable
from engine_agents.nodes.progress import Progress

FINGERPRINT = "model-a"
LAYOUT = PayloadLayout((4, 8, 4))
BLOCK_BYTES = 5000


def payload_of(cut: Cut) -> bytes:
    return cut.hash * (BLOCK_BYTES // len(cut.hash))


@dataclass
class Source:
    """A node that has KV to give."""

    store: BlockStore
    leases: LeaseTable
    server: KvServer
    counters: NodeCounters
    port: int = 0

    def lease(self, cuts: list[Cut], *, filled: bool = True) -> PullSource:
        if filled:
            self.store.put_chain([Block(cut.hash, cut.token_count, payload_of(cut)) for cut in cuts])
        lease = self.leases.grant([cut.hash for cut in cuts], sum(cut.token_count for cut in cuts))
        return PullSource("127.0.0.1", self.port, lease.id)


@asynccontextmanager
async def source(fingerprint: str = FINGERPRINT, idle_s: float = 20.0) -> AsyncIterator[Source]:
    store, counters = BlockStore(100_000), NodeCounters()
    leases = LeaseTable(store)
    server = KvServer(
        store,
        leases,
        fingerprint=fingerprint,
        block_tokens=64,
        layout=LAYOUT,
        counters=counters,
        progress=Progress(),
        idle_s=idle_s,
    )
    bench = Source(store, leases, server, counters)
    bench.port = await server.start("127.0.0.1", 0)
    try:
        yield bench
    finally:
        await server.close()


@dataclass
class Target:
    """A node that lacks KV."""

    store: BlockStore
    puller: KvPuller
    counters: NodeCounters

    def holds(self, cuts: list[Cut]) -> bool:
        return all((block := self.store.get(cut.hash)) and block.payload == payload_of(cut) for cut in cuts)


def target(capacity_tokens: int = 100_000, stall_s: float = 20.0, *, joins: bool = True) -> Target:
    store, counters = BlockStore(capacity_tokens), NodeCounters()
    puller = KvPuller(
        store,
        fingerprint=FINGERPRINT,
        counters=counters,
        progress=Progress(),
        layout=LAYOUT if joins else None,
        stall_s=stall_s,
    )
    return Target(store, puller, counters)


def cuts_of(tokens: int, seed: int = 0) -> list[Cut]:
    return cut_blocks([seed, *range(1, tokens)])


@dataclass
class Relay:
    """Stands where the WAN relay does. `opened` let bytes towards the puller pass; `damage` changes them.

    `cut_after` has, for each connection to come, after how many bytes it ends; connections beyond it are not cut.
    """

    opened: asyncio.Event
    port: int = 0
    preambles: list[dict] = field(default_factory=list)
    refuse_with: str | None = None
    damage: bool = False
    closed: int = 0
    passed_bytes: int = 0
    passed_by_connection: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    tasks: set[asyncio.Task] = field(default_factory=set)

    def via(self, source: PullSource, transfer_id: str = "t-1", streams: int = 1) -> PullSource:
        route = RelayRoute("127.0.0.1", self.port, "ams-fra", transfer_id, "relay", streams=streams)
        return PullSource(source.host, source.port, source.lease_id, route)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        asked = json.loads(await reader.readline())
        self.preambles.append(asked)
        if self.refuse_with is not None:
            writer.write(json.dumps({"ok": False, "error": self.refuse_with}).encode() + b"\n")
            await writer.drain()
            writer.close()
            return
        host, port = asked["target"].split(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        writer.write(b'{"ok":true}\n')
        upstream = asyncio.ensure_future(self._upstream(reader, far_writer))
        try:
            await self._downstream(far_reader, writer)
        finally:
            upstream.cancel()
            await asyncio.gather(upstream, return_exceptions=True)
            far_writer.transport.abort()
            writer.transport.abort()

    async def _downstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = len(self.passed_by_connection)
        self.passed_by_connection.append(0)
        left = self.cut_after[index] if index < len(self.cut_after) else 1 << 60
        with contextlib.suppress(OSError):
            while left and (data := await reader.read(min(4096, left))):
                await self.opened.wait()
                left -= len(data)
                if self.damage and self.passed_bytes > 0:
                    data = bytes([data[0] ^ 1]) + data[1:]
                self.passed_bytes += len(data)
                self.passed_by_connection[index] += len(data)
                writer.write(data)
                await writer.drain()
            if not left:
                writer.close()
                await writer.wait_closed()

    async def _upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(4096):
                writer.write(data)
        except OSError:
            pass
        finally:
            self.closed += 1
            writer.transport.abort()


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    bench = Relay(asyncio.Event())
    bench.opened.set()
    server = await asyncio.start_server(bench.serve, "127.0.0.1", 0)
    bench.port = server.sockets[0].getsockname()[1]
    try:
        yield bench
    finally:
        server.close()
        for task in bench.tasks:
            task.cancel()
        await asyncio.gather(*bench.tasks, return_exceptions=True)


async def until(condition) -> None:
    """Wait, within reason, for something that other tasks will make true."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
