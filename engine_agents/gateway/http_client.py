"""HTTP/1.1 to engines over kept connections: as much of a client as the gateway needs, at a fraction of the cost.

A reply is read by one reader and closed; closing it early closes its socket at once, which is how an engine learns
that nobody waits. Every failure is an `OSError`: `TimeoutError` for silence, `BrokenOffError` for a lost connection.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from engine_agents.gateway.http_reply import BrokenOffError, HttpReply

KEEP_IDLE_S = 4.0
"""Engines close idle connections after 5 s: leave them first."""
LINGER_S = 1.0
"""How long a reply of which nothing more is wanted may take to end, for its connection to be kept."""
_FINAL_STATUS = 200
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@dataclass(slots=True)
class _Target:
    """Where a base URL leads, and the connections to it that nobody uses, the longest idle first."""

    host: str
    port: int
    is_tls: bool
    prefix: bytes
    host_header: bytes
    idle: "deque[_Connection]" = field(default_factory=deque)


class HttpClient:
    """Sends requests, each on a connection of its own while its reply lasts."""

    def __init__(self, keep_idle_s: float = KEEP_IDLE_S) -> None:
        self._keep_idle_s = keep_idle_s
        self._targets: dict[str, _Target] = {}
        self.connections: set[_Connection] = set()

    async def send(
        self,
        base_url: str,
        path: str,
        body: Sequence[bytes] = (),
        *,
        method: bytes = b"POST",
        headers: bytes = b"",
        connect_s: float,
        silence_s: float,
        is_whole: bool = False,
    ) -> HttpReply:
        """Send a request and read the head of its reply, or if `is_whole` all of it, which then needs no closing.

        `path` is quoted, each of `headers` ends with CRLF.

        A kept connection that dies without a byte of reply was closed by an idle server: the request, which for
        engines may always be made twice, is sent once more on a new one.

        Raises:
            OSError: the server does not answer.
        """
        target = self._targets.get(base_url) or self._add_target(base_url)
        head = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n" % (
            method,
            target.prefix,
            path.encode("ascii"),
            target.host_header,
            headers,
            sum(map(len, body)),
        )
        request = (head, *body)
        kept = self._kept(target)
        if kept is not None:
            reply = HttpReply(kept, is_whole=is_whole)
            try:
                await kept.ask(reply, request, silence_s)
            except BaseException as error:
                reply.close()
                if reply.is_begun or not isinstance(error, ConnectionError):
                    raise
            else:
                return reply
        connection = await self._connect(target, connect_s)
        reply = HttpReply(connection, is_whole=is_whole)
        try:
            await connection.ask(reply, request, silence_s)
        except BaseException:
            reply.close()
            raise
        return reply

    def give_up(self, base_url: str) -> None:
        """End all exchanges with a server as if their silence had lasted too long."""
        for connection in list(self.connections):
            if connection.target is self._targets.get(base_url):
                connection.give_up()

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.abort()
        while self.connections:  # noqa: ASYNC110 - each leaves at the loop's next turn
            await asyncio.sleep(0)

    def _add_target(self, base_url: str) -> _Target:
        url = urlsplit(base_url)
        is_tls = url.scheme == "https"
        port = url.port or (443 if is_tls else 80)
        prefix = url.path.rstrip("/").encode("ascii")
        target = _Target(url.hostname or "", port, is_tls, prefix, url.netloc.rpartition("@")[2].encode("ascii"))
        self._targets[base_url] = target
        return target

    def _kept(self, target: _Target) -> "_Connection | None":
        """The connection used last; those idle for too long are closed."""
        idle = target.idle
        oldest_s = asyncio.get_running_loop().time() - self._keep_idle_s
        while idle and idle[0].idle_since_s < oldest_s:
            idle.popleft().abort()
        return idle.pop() if idle else None

    async def _connect(self, target: _Target, connect_s: float) -> "_Connection":
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, target, self.connections),
                target.host,
                target.port,
                ssl=True if target.is_tls else None,
            )
        return connection


class _Connection(asyncio.Protocol):
    """One socket, and on it one exchange after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: _Target, connections: "set[_Connection]") -> None:
        self._loop = loop
        self.target = target
        self._all = connections
        self._parser = httptools.HttpResponseParser(self)
        self._reply: HttpReply | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._heard_s = 0.0
        self._silence_s = 0.0
        self._may_be_kept = False
        self._lingers = False
        self.idle_since_s = 0.0

    # What the exchange does

    def ask(self, reply: HttpReply, request: Sequence[bytes], silence_s: float) -> "asyncio.Future[bool]":
        """Send a request; to be awaited for the head of its reply, or for all of a whole one."""
        if self._transport.is_closing():
            raise BrokenOffError("the connection was closed while idle")
        self._reply, self._may_be_kept = reply, False
        self._transport.writelines(request)
        return self.wait(silence_s)

    def wait(self, silence_s: float) -> "asyncio.Future[bool]":
        """To be awaited for what comes next; fails if the connection is lost or the silence lasts too long.

        False means that the reply's sink wants no more.
        """
        self._heard_s, self._silence_s = self._loop.time(), silence_s
        self._watch()
        self._waiter = self._loop.create_future()
        return self._waiter

    def give_up(self) -> None:
        """Nobody waits any longer."""
        self._fail(TimeoutError("given up"))
        self.abort()

    def resume(self) -> None:
        """Read on after a pause."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def leave(self, reply: HttpReply, *, is_ending: bool) -> None:
        """The exchange is over for its reader."""
        if not reply.is_complete and is_ending:
            self._lingers = True
            self._heard_s, self._silence_s = self._loop.time(), LINGER_S
            self._watch()
            self.resume()
        else:
            self._settle(reply)

    def _settle(self, reply: HttpReply) -> None:
        """Wait for the next exchange, or close."""
        self._reply, self._lingers = None, False
        if reply.is_complete and self._may_be_kept and not self._transport.is_closing():
            self.idle_since_s = self._loop.time()
            self.target.idle.append(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the socket now."""
        self._transport.abort()

    # Silence: one timer per connection, moved only when it fires, because most waits are short

    def _watch(self) -> None:
        due_s = self._heard_s + self._silence_s
        if self._timer is not None:
            if self._timer_at_s <= due_s:
                return
            self._timer.cancel()
        self._timer_at_s = due_s
        self._timer = self._loop.call_at(due_s, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        if (self._waiter is None or self._waiter.done()) and not self._lingers:
            return
        if self._heard_s + self._silence_s > self._loop.time():
            self._watch()
        else:
            self._fail(TimeoutError("silence"))
            self.abort()

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # uvloop's is no subclass
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None or reply.is_complete:
            self._may_be_kept = False
            self.abort()  # nobody asked for this
            return
        reply.is_begun = True
        if not self._lingers:
            self._heard_s = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(BrokenOffError("the reply is not HTTP"))
            self.abort()
        if self._lingers and reply.is_complete:
            self._settle(reply)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        if self in self.target.idle:
            self.target.idle.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        reply = self._reply
        if reply is not None and reply.status and error is None and not _FRAMING & reply.headers.keys():
            reply.is_complete = True  # such a body ends with its connection
        self._fail(BrokenOffError("the connection was closed"))

    def _fail(self, error: OSError) -> None:
        reply = self._reply
        if reply is not None and not reply.is_complete and reply.error is None:
            reply.error = error
        self._wake()

    def _wake(self) -> None:
        waiter, reply = self._waiter, self._reply
        if waiter is None or reply is None or waiter.done():
            return
        try:
            goes_on = reply.flow()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._waiter = None
            waiter.set_exception(error)
            return
        if reply.is_complete and reply.is_whole:
            reply.close()
        if not goes_on or reply.is_complete or (reply.status and not reply.is_whole and reply.sink is None):
            self._waiter = None
            waiter.set_result(goes_on)
        elif reply.error is not None:
            self._waiter = None
            waiter.set_exception(reply.error)

    # What the parser says

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the reply."""
        if self._reply is not None and not self._reply.is_complete:
            self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete; an interim one (1xx) is none of the reader's business."""
        status = self._parser.get_status_code()
        if self._reply is not None and not self._reply.is_complete:
            if status >= _FINAL_STATUS:
                self._reply.status = status
            else:
                self._reply.headers.clear()

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        reply = self._reply
        if reply is None or reply.is_complete or self._lingers:
            return
        if not reply.take(part):
            if reply.is_whole:
                self._fail(BrokenOffError("the reply is too large"))
                self.abort()
            else:
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The reply is complete."""
        reply = self._reply
        if reply is not None and reply.status:
            # A second reply in one packet: nobody asked for it.
            self._may_be_kept = not reply.is_complete and bool(self._parser.should_keep_alive())
            reply.is_complete = True
