"""The relay's own source of bytes: what a probe pulls across a link to measure it.

A probe sends one line `<bytes>` for each round and gets that many bytes back.
"""

import asyncio

PROBE_TARGET = "probe"
MAX_ROUND_BYTES = 64_000_000
ROUND_TIMEOUT_S = 60.0
_MAX_LINE_BYTES = 32
_CHUNK = bytes(1 << 16)


class ProbeSource:
    """A loopback server that only the relay connects to."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._probes: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def address(self) -> str:
        """Where it listens, as `host:port`; the first call starts it."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_LINE_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stop; probes under way break off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._probes.values():
            writer.transport.abort()
        await asyncio.gather(*(task for task in self._probes if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._probes[task] = writer
        try:
            while True:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    line = await reader.readline()
                    if not line:
                        break
                    await _send(writer, min(int(line), MAX_ROUND_BYTES))
        except (ValueError, OSError, TimeoutError):
            pass  # not a probe, or one that left
        finally:
            del self._probes[task]
            writer.close()


async def _send(writer: asyncio.StreamWriter, size_bytes: int) -> None:
    left = size_bytes
    while left > 0:
        piece = _CHUNK[:left]
        writer.write(piece)
        await writer.drain()
        left -= len(piece)
