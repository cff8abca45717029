"""One puller's connection to another node's KV server, straight or through the WAN relay."""

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from engine_agents.nodes.kv_blocks import Block, BlockPart
from engine_agents.nodes.kv_decoder import Decoder
from engine_agents.nodes.kv_errors import (
    BadFrameError,
    BlockGoneError,
    FingerprintMismatchError,
    KvError,
    LeaseBusyError,
    LeaseUnknownError,
    PeerLostError,
    PullStalledError,
    RelayRefusedError,
)
from engine_agents.nodes.kv_wire import (
    EndOfBlocks,
    Event,
    PreambleLine,
    PullReply,
    ReplyStatus,
    Wanted,
    encode_keepalive,
    encode_release,
    encode_request,
)

LOOPBACK_WINDOW_BYTES = 512 << 10

BlockTaker = Callable[[Block | BlockPart], None]

_REFUSALS: dict[int, type[KvError]] = {
    ReplyStatus.BAD_FINGERPRINT: FingerprintMismatchError,
    ReplyStatus.UNKNOWN_LEASE: LeaseUnknownError,
    ReplyStatus.LEASE_BUSY: LeaseBusyError,
    ReplyStatus.BLOCK_GONE: BlockGoneError,
    ReplyStatus.BAD_REQUEST: BadFrameError,
}


class RelayAnswer(msgspec.Struct, frozen=True):
    """What the WAN relay says to a preamble."""

    ok: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """The WAN relay to go through, and what it is told about this transfer.

    `streams` is how many connections the transfer may use; the relay caps each one and counts them as one transfer.
    """

    host: str
    port: int
    link: str
    transfer_id: str
    pipeline: str = "direct"
    service_class: str = "default"
    streams: int = 1


@dataclass(frozen=True, slots=True)
class PullSource:
    """Where leased KV is, and the way there."""

    host: str
    port: int
    lease_id: str
    via: RelayRoute | None = None

    def preamble(self) -> bytes:
        """The line that asks the relay for this source; empty on a direct way."""
        if self.via is None:
            return b""
        line = {
            "link": self.via.link,
            "target": f"{self.host}:{self.port}",
            "transfer_id": self.via.transfer_id,
            "pipeline": self.via.pipeline,
            "service_class": self.via.service_class,
        }
        return msgspec.json.encode(line) + b"\n"


class _Receiver(asyncio.BufferedProtocol):
    """Receives straight into blocks, which it hands over at once, and queues what else is complete.

    An exception in the queue is the end.
    """

    def __init__(self, *, preamble: bool, on_bytes: Callable[[int], None]) -> None:
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.transport: asyncio.Transport | None = None
        self.received_bytes = 0
        self.take: BlockTaker | None = None
        self._decoder = Decoder(preamble=preamble)
        self._on_bytes = on_bytes
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one, but no subclass
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
            # No path to fill: a long queue only lets the data leave the processor's cache before it is read.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LOOPBACK_WINDOW_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the decoder knows what is wanted next
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        self._on_bytes(nbytes)
        try:
            for event in self._decoder.advance(nbytes):
                if self.take is not None and isinstance(event, Block | BlockPart):
                    self.take(event)
                else:
                    self.events.put_nowait(event)
        except KvError as error:
            self._end(error)
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(PeerLostError(f"the KV connection ended early: {exc or 'closed by the peer'}"))

    def _end(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            self.events.put_nowait(error)


class KvConnection:
    """A session over one lease. `close` aborts it at once; everything else raises KvError subclasses."""

    def __init__(
        self, source: PullSource, *, reader: str = "", fingerprint: str, stall_s: float, on_bytes: Callable[[int], None]
    ) -> None:
        self._source = source
        self._reader = reader
        self._fingerprint = fingerprint
        self._stall_s = stall_s
        self._receiver = _Receiver(preamble=source.via is not None, on_bytes=on_bytes)

    @property
    def received_bytes(self) -> int:
        """All bytes received so far, frames and relay answer included."""
        return self._receiver.received_bytes

    async def open(self) -> None:
        """Connect, through the relay where the source says so.

        Raises:
            PeerLostError: nobody listens there.
            RelayRefusedError: the relay would not connect to the target.
            PullStalledError: no answer in time.
        """
        host, port = self._source.host, self._source.port
        if self._source.via is not None:
            host, port = self._source.via.host, self._source.via.port
        try:
            async with asyncio.timeout(self._stall_s):
                await asyncio.get_running_loop().create_connection(lambda: self._receiver, host, port)
        except TimeoutError:
            raise PullStalledError(f"no connection to {host}:{port} within {self._stall_s:g} s") from None
        except OSError as error:
            raise PeerLostError(f"no connection to {host}:{port}: {error.strerror or error}") from None
        if self._source.via is not None:
            self._write(self._source.preamble())
            self._check_relay(await self._next())

    async def fetch(self, wanted: Sequence[Wanted], take: BlockTaker) -> None:
        """Attach to the lease and ask for blocks; returns when `take` was given the last of them.

        `take` is called as they arrive, without waking the caller for each; a KvError that it raises is raised here.

        Raises:
            FingerprintMismatchError, LeaseUnknownError, LeaseBusyError, BlockGoneError: the server refused.
        """
        await self._request(wanted)
        self._receiver.take = take
        try:
            while not isinstance(event := await self._next(), EndOfBlocks):
                if not isinstance(event, Block | BlockPart):
                    raise BadFrameError("expected a block")
                take(event)  # it came before the reply had been read
        finally:
            self._receiver.take = None

    async def _request(self, wanted: Sequence[Wanted]) -> None:
        self._write(encode_request(self._fingerprint, self._source.lease_id, wanted, self._reader))
        reply = await self._next()
        if not isinstance(reply, PullReply):
            raise BadFrameError("expected a reply")
        if reply.status != ReplyStatus.OK:
            raise _REFUSALS.get(reply.status, BadFrameError)(reply.message)
        if reply.fingerprint != self._fingerprint:
            raise FingerprintMismatchError(f"the server's KV is {reply.fingerprint}, this node's {self._fingerprint}")

    def keep_alive(self) -> None:
        """Tell the server that the lease is still needed."""
        self._write(encode_keepalive())

    async def release(self) -> None:
        """End the lease and the connection."""
        self._write(encode_release())
        if self._receiver.transport is not None:
            self._receiver.transport.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Drop the connection now; the lease stays, for another attempt, until it expires."""
        transport = self._receiver.transport
        if transport is None:
            return
        if not transport.is_closing():
            # A reset, not an end of stream: a WAN relay would first send what it has queued for us.
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _write(self, data: bytes) -> None:
        if self._receiver.transport is None or self._receiver.transport.is_closing():
            raise PeerLostError("the KV connection is closed")
        self._receiver.transport.write(data)

    async def _next(self) -> Event:
        """The next event; as long as bytes arrive, a large block may take its time."""
        event = await self._arrival() if self._receiver.events.empty() else self._receiver.events.get_nowait()
        if isinstance(event, Exception):
            raise event
        return event

    async def _arrival(self) -> Event | Exception:
        while True:
            seen_bytes = self._receiver.received_bytes
            try:
                async with asyncio.timeout(self._stall_s):
                    return await self._receiver.events.get()
            except TimeoutError:
                if self._receiver.received_bytes == seen_bytes:
                    raise PullStalledError(f"nothing arrived for {self._stall_s:g} s") from None

    def _check_relay(self, event: Event) -> None:
        if not isinstance(event, PreambleLine):
            raise BadFrameError("expected the relay's answer")
        try:
            answer = msgspec.json.decode(event.line, type=RelayAnswer)
        except msgspec.DecodeError as error:
            raise BadFrameError(f"malformed answer of the relay: {error}") from None
        if not answer.ok:
            raise RelayRefusedError(answer.error or "the relay refused")
