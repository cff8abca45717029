"""HTTP/1.1 for the gateway's clients: whole requests in, whole or chunked replies out, a task for each.

A client that leaves cancels its task; closing one's sending side counts as leaving, since it looks the same from here.
Writing never waits; who writes a lot asks whether the client keeps up, and one that takes nothing is cut off.
"""

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from engine_agents.gateway.http_messages import Header, Reply, Request
from engine_agents.gateway.http_requests import RequestReader

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
MAX_WAITING_REQUESTS, MAX_WAITING_BYTES = 16, 1 << 20
"""Requests sent ahead of replies that are read; more are left in the socket, where a client's leaving is not seen."""
_FAILED = 500
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FLUSH_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of a connection; times in seconds."""

    max_body_bytes: int = MAX_BODY_BYTES
    head_s: float = 10.0
    """From a request's first byte to the end of its head."""
    body_s: float = 300.0
    """From the end of its head to the end of its body."""
    idle_s: float = 30.0
    """Between two requests."""
    stall_s: float = 30.0
    """How long a client may take nothing of what waits for it."""
    linger_s: float = 2.0
    """How long the rest of a body that nobody wants is read, so that its client can read why."""
    stop_s: float = 3.0
    """How long requests may go on once the server stops."""


Handler = Callable[[Request, Reply], Awaitable[None]]


@dataclass(slots=True)
class _Serving:
    """What all connections of a server share."""

    handler: Handler
    limits: Limits
    connections: "set[_Connection]" = field(default_factory=set)
    is_stopping: bool = False


@asynccontextmanager
async def serving(handler: Handler, listener: socket.socket, limits: Limits | None = None) -> AsyncIterator[None]:
    """Answer requests on a listening socket while the context is open.

    On the way out no new request is taken; those under way have `stop_s` to end before they are cancelled.
    """
    loop = asyncio.get_running_loop()
    shared = _Serving(handler, limits or Limits())
    server = await loop.create_server(lambda: _Connection(loop, shared), sock=listener)
    try:
        yield
    finally:
        server.close()
        await _stop(shared)
        await server.wait_closed()


async def _stop(shared: _Serving) -> None:
    shared.is_stopping = True
    for connection in list(shared.connections):
        connection.stop()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + shared.limits.stop_s
    tasks = [connection.task for connection in shared.connections if connection.task is not None]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=shared.limits.stop_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    while shared.connections and loop.time() < until_s:  # noqa: ASYNC110 - what was written is still on its way
        await asyncio.sleep(_FLUSH_POLL_S)
    for connection in list(shared.connections):
        connection.abort()
    while shared.connections:  # noqa: ASYNC110 - each leaves at the loop's next turn
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One client's socket: its requests are answered one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: _Serving) -> None:
        self._loop = loop
        self._shared = shared
        self.task: asyncio.Task[None] | None = None
        self._reply: Reply | None = None
        self._waiting: deque[Request] = deque()
        self._closes = False
        self._has_left = False
        self.is_clogged = False
        self._unsent_bytes = math.inf
        self._drain: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        self._rejected = 0
        self._waiting_bytes = 0

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # uvloop's is no subclass
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(self, peer[0] if peer else "", self._shared.limits.max_body_bytes)
        self._shared.connections.add(self)
        self._watch(self._shared.limits.idle_s)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._shared.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._closes = True
        self._release_writer()
        if self.task is not None and self._reply is not None and not self._reply.is_ended:
            self._has_left = True
            self.task.cancel()

    def pause_writing(self) -> None:
        self.is_clogged = True
        self._unsent_bytes = math.inf
        self._watch(self._shared.limits.stall_s)

    def resume_writing(self) -> None:
        self._release_writer()
        if self.task is not None:
            self._due_s = math.inf
        elif not self._closes:
            self._go_on()

    def _release_writer(self) -> None:
        self.is_clogged = False
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    # What the reader finds

    def head_began(self) -> None:
        """The first bytes of a request are there."""
        if self.task is None:
            self._watch(self._shared.limits.head_s)

    def head_ended(self, *, wants_go_on: bool) -> None:
        """A head is complete."""
        if self.task is None:
            self._watch(self._shared.limits.body_s)
            if wants_go_on:
                self.write(_CONTINUE)

    def take(self, request: Request) -> None:
        """Answer a request, now or after those before it."""
        if self.task is None and not self.is_clogged:
            self._begin(request)
            return
        self._waiting.append(request)
        self._waiting_bytes += len(request.body)
        if len(self._waiting) >= MAX_WAITING_REQUESTS or self._waiting_bytes > MAX_WAITING_BYTES:
            self._transport.pause_reading()

    def reject(self, status: int) -> None:
        """Answer what is no request once those before it are answered, and close."""
        self._rejected = status
        if self.task is None and not self._waiting:
            self._answer_rejected()

    # One request after the other

    def _begin_next(self) -> None:
        request = self._waiting.popleft()
        self._waiting_bytes -= len(request.body)
        if not self._waiting:
            self._transport.resume_reading()
        self._begin(request)

    def _begin(self, request: Request) -> None:
        self._due_s = math.inf
        self._closes = self._closes or not request.keeps_alive
        self._reply = Reply(self, has_body=request.method != b"HEAD", is_chunked=request.is_http_11)
        self.task = self._loop.create_task(self._serve(request, self._reply))

    async def _serve(self, request: Request, reply: Reply) -> None:
        try:
            await self._shared.handler(request, reply)
        except asyncio.CancelledError:
            if not self._has_left:
                raise
        except Exception:
            log.exception("a request failed")
            if not reply.is_started:
                reply.send(_FAILED, (), b"")
        finally:
            self._finished(reply)

    def _finished(self, reply: Reply) -> None:
        self.task = self._reply = None
        if self._transport.is_closing():
            return
        if not reply.is_ended or self._shared.is_stopping:
            self._close()
        elif self._closes:
            self._close_after_rest()
        elif self.is_clogged:
            self._watch(self._shared.limits.stall_s)  # the next one begins when this reply has been read
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._begin_next()
        elif self._rejected:
            self._answer_rejected()
        else:
            self._watch(self._shared.limits.idle_s)

    def _close_after_rest(self) -> None:
        """Close, but not before a client that is still sending has had time to read why."""
        if self._reader.is_over:
            self._watch(self._shared.limits.linger_s)
        else:
            self._close()

    def _close(self) -> None:
        """Close once all has been sent, which a client that does not read may not prevent."""
        self._transport.close()
        self._watch(self._shared.limits.idle_s)

    def _answer_rejected(self) -> None:
        self._closes = True
        body = _STATUS_LINES[self._rejected][9:].strip()
        headers = ((b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body)))
        self.write(self.head(self._rejected, headers) + body)
        self._close_after_rest()

    # What replies do

    def head(self, status: int, headers: Sequence[Header]) -> bytes:
        """A reply's head."""
        lines = [b"%b: %b\r\n" % header for header in headers]
        if self._closes or self._shared.is_stopping:
            lines.append(b"connection: close\r\n")
        return b"%b%b\r\n" % (_STATUS_LINES[status], b"".join(lines))

    def write(self, data: bytes) -> None:
        """Send, unless the client has left."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Return once the client keeps up, or has left."""
        while self.is_clogged:
            self._drain = self._loop.create_future()
            await self._drain

    def stop(self) -> None:
        """Close, now if nothing is being answered."""
        self._waiting.clear()
        if self.task is None:
            self._close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()

    # Deadlines: one timer per connection, moved only when it fires or must fire sooner

    def _watch(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._check)
        elif self._timer.when() > self._due_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._due_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._due_s > self._loop.time():
            if self._due_s < math.inf:
                self._timer = self._loop.call_at(self._due_s, self._check)
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes and not self._transport.is_closing():
            self._unsent_bytes = unsent_bytes  # slow, but reading
            self._watch(self._shared.limits.stall_s)
        else:
            self.abort()
