"""A client's bytes read into whole requests, each bounded; what is no request ends the reading."""

from typing import Protocol

import httptools

from engine_agents.gateway.http_messages import Request

MAX_HEAD_BYTES = 64 << 10
NOT_HTTP, HEAD_TOO_LARGE, UNKNOWN_CODING = 400, 431, 501
_SINGLE_HEADERS = frozenset({b"host", b"content-length", b"transfer-encoding"})


class RequestSink(Protocol):
    """Who is told what a reader finds, in the order of the bytes."""

    def head_began(self) -> None:
        """The first bytes of a request are there."""

    def head_ended(self, *, wants_go_on: bool) -> None:
        """A head is complete, and its body may follow; some clients send none before they are told to go on."""

    def take(self, request: Request) -> None:
        """A request is complete, or its body is too large to be kept."""

    def reject(self, status: int) -> None:
        """What came is no request that could be answered otherwise; nothing more is read."""


class RequestReader:
    """Reads one connection. `is_over` once nothing more of it will be a request."""

    def __init__(self, sink: RequestSink, peer: str, max_body_bytes: int) -> None:
        self.is_over = False
        self._sink = sink
        self._peer = peer
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._has_moved = False
        self._unended_bytes = 0
        self._head_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._request: Request | None = None
        self._is_upgrade = False
        self._body: bytes | bytearray = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self.is_over:
            return
        self._has_moved = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._reject(NOT_HTTP)
            return
        # Of a head or trailer only its end is told: what never ends is counted here.
        self._unended_bytes = 0 if self._has_moved else self._unended_bytes + len(data)
        if self._unended_bytes > MAX_HEAD_BYTES:
            self._reject(HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._is_upgrade:
                    self.is_over = True  # CONNECT: it is answered, but what follows is not HTTP
                    return
                # The parser leaves a request at its head that offers another protocol, which servers may ignore.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        request = self._request
        assert request is not None, "only a whole head upgrades"  # noqa: S101
        kept = dict(self._headers)
        kept.pop(b"upgrade", None)
        if b"close" in kept.pop(b"connection", b"").lower():
            kept[b"connection"] = b"close"
        lines = b"".join(b"%b: %b\r\n" % header for header in kept.items())
        version = b"1.1" if request.is_http_11 else b"1.0"
        return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method, self._url, version, lines)

    def _reject(self, status: int) -> None:
        if not self.is_over:
            self.is_over = True
            self._sink.reject(status)

    def _refuse_body(self, request: Request) -> None:
        """Let the handler say that the body is too large; the rest of it is read into nothing."""
        self.is_over, self._body = True, b""
        request.is_too_large = True
        self._sink.take(request)

    # What the parser says

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._request = b"", {}, None
        self._head_bytes = 0
        if not self.is_over:
            self._sink.head_began()

    def on_url(self, part: bytes) -> None:
        """A part of its target."""
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after the body a trailer, which nobody wants."""
        if self._request is not None:
            return
        self._head_bytes += len(name) + len(value)
        name = name.lower()
        if name in self._headers and name in _SINGLE_HEADERS:
            self._reject(NOT_HTTP)
        self._headers.setdefault(name, value)

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        headers = self._headers
        path, _, query = _origin_form(self._url).partition(b"?")
        is_http_11 = self._parser.get_http_version() == "1.1"
        method = self._parser.get_method()
        request = Request(method, path.decode("latin-1"), query, headers, self._peer, is_http_11)
        self._request, self._body = request, b""
        self._is_upgrade = self._parser.should_upgrade() and method != b"CONNECT"
        if self.is_over or self._is_upgrade:
            return
        if self._head_bytes + len(self._url) > MAX_HEAD_BYTES:
            self._reject(HEAD_TOO_LARGE)
        elif is_http_11 and b"host" not in headers:
            self._reject(NOT_HTTP)
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._reject(UNKNOWN_CODING)
        elif int(headers.get(b"content-length", 0)) > self._max_body_bytes:
            self._refuse_body(request)
        else:
            self._sink.head_ended(wants_go_on=headers.get(b"expect", b"").lower() == b"100-continue")

    def on_body(self, part: bytes) -> None:
        """A part of its body."""
        self._has_moved = True
        if self.is_over or self._request is None:
            return
        if len(self._body) + len(part) > self._max_body_bytes:
            self._refuse_body(self._request)
        elif not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part

    def on_message_complete(self) -> None:
        """It is complete."""
        self._has_moved = True
        request = self._request
        if self.is_over or self._is_upgrade or request is None:
            return
        request.body, self._body = bytes(self._body), b""
        keeps_alive = request.is_http_11 and self._parser.should_keep_alive()
        request.keeps_alive = keeps_alive and request.method != b"CONNECT"
        self._sink.take(request)


def _origin_form(target: bytes) -> bytes:
    """A request's target without scheme and authority, which a proxy's client sends too."""
    if target[:1] == b"/" or b"://" not in target:
        return target
    return b"/" + target.partition(b"://")[2].partition(b"/")[2]
