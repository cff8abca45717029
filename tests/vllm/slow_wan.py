"""Stands in for a WAN before MD: NIXL's bytes cannot be shaped from outside, so each pull starts late instead."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PULL = b'"do_remote_prefill":true'
CHUNK_BYTES = 1 << 16


@dataclass
class SlowWan:
    """A byte-for-byte way to a node; what carries a pull is held for `delay_s`, and until `gate` is set."""

    upstream: str
    delay_s: float = 0.0
    url: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; when either side closes, so does the other."""
        target = urlsplit(self.upstream)
        upstream_reader, upstream_writer = await asyncio.open_connection(target.hostname, target.port)
        ways = [
            asyncio.create_task(self._forward(reader, upstream_writer, holds_pulls=True)),
            asyncio.create_task(self._forward(upstream_reader, writer, holds_pulls=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, upstream_writer):
                end.close()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, holds_pulls: bool) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if holds_pulls and PULL in seen + data:
                    await asyncio.sleep(self.delay_s)
                    await self.gate.wait()
                seen = data[-len(PULL) + 1 :] if PULL not in seen + data else b""
                target.write(data)
                await target.drain()


@asynccontextmanager
async def slow_wan(upstream: str) -> AsyncIterator[SlowWan]:
    """A way to a node on a port of its own."""
    wan, ways = SlowWan(upstream), set()
    wan.gate.set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.create_task(wan.carry(reader, writer))
        ways.add(way)
        way.add_done_callback(ways.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wan.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wan
    finally:
        server.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
