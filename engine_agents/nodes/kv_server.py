"""Serves leased KV blocks to other nodes over TCP."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.kv_blocks import Block, BlockPart, BlockStore
from engine_agents.nodes.kv_decoder import Decoder
from engine_agents.nodes.kv_errors import (
    BadFrameError,
    BlockGoneError,
    FingerprintMismatchError,
    KvError,
    LeaseBusyError,
    LeaseUnknownError,
)
from engine_agents.nodes.kv_layout import PayloadLayout
from engine_agents.nodes.kv_wire import (
    Event,
    Keepalive,
    PullReply,
    PullRequest,
    Release,
    ReplyStatus,
    Wanted,
    encode_block_header,
    encode_end,
    encode_reply,
)
from engine_agents.nodes.leases import Lease, LeaseTable
from engine_agents.nodes.progress import Progress

WRITE_BUFFER_BYTES = 4 << 20  # views of blocks that the lease pins, not copies
UNSENT_BYTES = 256 << 10  # what waits in the kernel beyond the window leaves the cache and is of no use there
READ_BUFFER_BYTES = 1 << 16

_STATUS: dict[type[KvError], ReplyStatus] = {
    FingerprintMismatchError: ReplyStatus.BAD_FINGERPRINT,
    LeaseUnknownError: ReplyStatus.UNKNOWN_LEASE,
    LeaseBusyError: ReplyStatus.LEASE_BUSY,
    BlockGoneError: ReplyStatus.BLOCK_GONE,
    BadFrameError: ReplyStatus.BAD_REQUEST,
}


class KvServer:
    """One node's KV port. A connection is one session over one lease; silence longer than `idle_s` ends it."""

    def __init__(
        self,
        store: BlockStore,
        leases: LeaseTable,
        *,
        fingerprint: str,
        block_tokens: int,
        layout: PayloadLayout,
        counters: NodeCounters,
        progress: Progress,
        idle_s: float = 60.0,
    ) -> None:
        self._store = store
        self._leases = leases
        self._fingerprint = fingerprint
        self._block_tokens = block_tokens
        self._layout = layout
        self._counters = counters
        self._progress = progress
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Gives back the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._server = await asyncio.start_server(self._accept, host, port)
        listener: socket.socket = self._server.sockets[0]
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all sessions; safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._sessions:
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    @property
    def sessions(self) -> int:
        """Open connections."""
        return len(self._sessions)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is always served in a task")
        self._sessions.add(task)
        try:
            _tune(writer)
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._sessions.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events = _events(reader, self._idle_s)
        try:
            first = await anext(events, None)
            if not isinstance(first, PullRequest):
                raise BadFrameError("a session starts with a request")
            self._check(first)
            async with self._attached(first) as lease:
                await self._answer(first, lease, writer)
                async for event in events:
                    if isinstance(event, Release):
                        self._leases.release(lease.id)
                        return
                    if isinstance(event, PullRequest):
                        await self._answer(event, lease, writer)
                    elif not isinstance(event, Keepalive):
                        raise BadFrameError("only a puller's frames belong here")
        except KvError as error:
            writer.write(self._refusal(error))
            await self._drain(writer)
        finally:
            await events.aclose()

    @asynccontextmanager
    async def _attached(self, request: PullRequest) -> AsyncIterator[Lease]:
        lease = self._leases.attach(request.lease_id, request.reader)
        try:
            yield lease
        finally:
            self._leases.detach(lease)

    def _check(self, request: PullRequest) -> None:
        if request.fingerprint != self._fingerprint:
            raise FingerprintMismatchError(f"this node's KV is {self._fingerprint}, asked for {request.fingerprint}")

    def _blocks(self, request: PullRequest, lease: Lease) -> list[tuple[Block, Wanted]]:
        covered = set(lease.hashes)
        wanted = request.wanted()
        blocks = [(self._store.get(want.hash), want) for want in wanted if want.hash in covered]
        found = [(block, want) for block, want in blocks if block is not None]
        if request.lease_id != lease.id or not self._leases.is_live(lease.id):
            raise LeaseUnknownError(f"no lease {request.lease_id}")
        if len(found) != len(wanted):
            raise BlockGoneError(f"{len(wanted) - len(found)} wanted blocks are not covered by {lease.id}")
        if any(want.from_token >= block.token_count for block, want in found):
            raise BadFrameError("a range behind the end of its block")
        return found

    async def _answer(self, request: PullRequest, lease: Lease, writer: asyncio.StreamWriter) -> None:
        blocks = self._blocks(request, lease)
        sent_bytes = 0
        writer.write(encode_reply(self._reply(ReplyStatus.OK, len(blocks))))
        for whole, want in blocks:
            block = self._from(whole, want.from_token)
            writer.write(encode_block_header(block))
            await self._send_payload(block, writer)
            sent_bytes += block.size_bytes
        writer.write(encode_end(len(blocks), sent_bytes))
        await self._drain(writer)

    def _from(self, block: Block, from_token: int) -> Block | BlockPart:
        """What is sent of a block that is wanted from this token on."""
        if from_token == 0:
            return block
        payload = self._layout.part(block.payload, block.token_count, from_token, block.token_count)
        return BlockPart(block.hash, block.token_count, from_token, payload, block.digest())

    async def _send_payload(self, block: Block | BlockPart, writer: asyncio.StreamWriter) -> None:
        payload = memoryview(block.payload)
        for start in range(0, len(payload), WRITE_BUFFER_BYTES):
            piece = payload[start : start + WRITE_BUFFER_BYTES]
            writer.write(piece)
            await self._drain(writer)
            self._counters.served_bytes += len(piece)
            self._progress.mark()

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        """Wait for room in the write buffer; a puller that takes nothing for `idle_s` is given up, a slow one not."""
        transport = writer.transport
        while True:
            waiting_bytes = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._idle_s):
                    return await writer.drain()
            except TimeoutError:
                if transport.get_write_buffer_size() >= waiting_bytes:
                    raise

    def _reply(self, status: ReplyStatus, block_count: int, message: str = "") -> PullReply:
        token_bytes = self._layout.token_bytes
        return PullReply(status, self._fingerprint, self._block_tokens, token_bytes, block_count, message)

    def _refusal(self, error: KvError) -> bytes:
        return encode_reply(self._reply(_STATUS.get(type(error), ReplyStatus.BAD_REQUEST), 0, str(error)))


async def _events(reader: asyncio.StreamReader, idle_s: float) -> AsyncGenerator[Event, None]:
    """Frames as they arrive; ends with the connection.

    Raises:
        BadFrameError: the peer does not speak this wire.
        TimeoutError: nothing came for `idle_s`.
    """
    decoder = Decoder()
    while True:
        async with asyncio.timeout(idle_s):
            data = await reader.read(READ_BUFFER_BYTES)
        if not data:
            return
        for event in decoder.feed(data):
            yield event


def _tune(writer: asyncio.StreamWriter) -> None:
    """Send frames at once, notice a vanished peer, and keep little waiting in the kernel."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
