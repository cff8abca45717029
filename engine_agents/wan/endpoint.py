"""One socket of a transfer: keeps what arrives early for the handshake, then feeds its flow."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

WRITE_HIGH_BYTES = 1 << 20
EARLY_LIMIT_BYTES = 64 << 10


class Carrier(Protocol):
    """What an endpoint needs of the flow that owns it."""

    def receive(self, endpoint: "Endpoint", data: bytes) -> None:
        """Take bytes."""

    def end(self, endpoint: "Endpoint") -> None:
        """Note the end of the endpoint's stream."""

    def lost(self, endpoint: "Endpoint") -> None:
        """Note that the endpoint is gone."""

    def wake(self) -> None:
        """Look again: the endpoint takes bytes."""


class Endpoint(asyncio.Protocol):
    """One socket, with back-pressure both ways."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_writable = True
        self.is_lost = False
        self.on_early_loss: Callable[[], object] | None = None
        self._carrier: Carrier | None = None
        self._early = bytearray()
        self._early_changed = asyncio.Event()
        self._is_reading = True
        self.has_ended = False

    async def read_line(self, limit_bytes: int) -> bytes:
        """Read up to and without the first newline, leaving what follows it.

        Raises:
            ValueError: no newline within the limit.
        """
        while (end := self._early.find(b"\n", 0, limit_bytes)) < 0:
            if len(self._early) >= limit_bytes:
                raise ValueError(f"no line within {limit_bytes} bytes")
            self._early_changed.clear()
            await self._early_changed.wait()
        line = bytes(self._early[:end])
        del self._early[: end + 1]
        return line

    def carry(self, carrier: Carrier) -> None:
        """Give the socket to a flow, with what it already said."""
        self._carrier = carrier
        self.set_reading(wanted=True)
        if self._early:
            carrier.receive(self, bytes(self._early))
            self._early.clear()
        if self.has_ended:
            carrier.end(self)

    def set_reading(self, *, wanted: bool) -> None:
        """Let the kernel's window close on a sender that is ahead of the link, or open it again."""
        if wanted == self._is_reading or self.is_lost or self.has_ended:
            return
        self._is_reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def abort(self) -> None:
        """Reset the connection, dropping what was not sent."""
        if self.transport is not None and not self.is_lost:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._carrier is not None:
            self._carrier.receive(self, data)
            return
        self._early += data
        self._early_changed.set()
        if len(self._early) >= EARLY_LIMIT_BYTES:
            self.set_reading(wanted=False)

    def eof_received(self) -> bool:
        """See asyncio.Protocol; a flow keeps the other direction open, a handshake does not."""
        self.has_ended = True
        if self._carrier is not None:
            self._carrier.end(self)
        elif self.on_early_loss is not None:
            self.on_early_loss()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        del exc
        self.is_lost = True
        self.is_writable = True
        if self._carrier is not None:
            self._carrier.lost(self)
        elif self.on_early_loss is not None:
            self.on_early_loss()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_writable = True
        if self._carrier is not None:
            self._carrier.wake()
