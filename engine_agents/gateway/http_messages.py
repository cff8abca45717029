"""A client's request, and the reply to it, as handlers see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Header = tuple[bytes, bytes]

_LAST_CHUNK = b"0\r\n\r\n"


class Wire(Protocol):
    """The connection that a reply goes out on."""

    is_clogged: bool

    def head(self, status: int, headers: Sequence[Header]) -> bytes:
        """A reply's head."""

    def write(self, data: bytes) -> None:
        """Send, unless the client has left."""

    async def drained(self) -> None:
        """Return once the client keeps up, or has left."""


@dataclass(slots=True)
class Request:
    """One request. Header names are in lower case, of equal ones the first counts."""

    method: bytes
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    peer: str
    is_http_11: bool
    keeps_alive: bool = False
    body: bytes = b""
    is_too_large: bool = False
    """Its body is larger than the limit, and not here."""

    def header(self, name: bytes) -> str:
        """A header's value; empty if there is none."""
        value = self.headers.get(name)
        return "" if value is None else value.decode("latin-1")


class Reply:
    """The one reply to a request: `send`, or `start`, any number of `write` and an `end`. None of them waits."""

    __slots__ = ("_connection", "_has_body", "_head", "_is_chunked", "is_ended", "is_started")

    def __init__(self, connection: "Wire", *, has_body: bool, is_chunked: bool) -> None:
        self._connection = connection
        self._has_body = has_body
        self._is_chunked = is_chunked
        self._head = b""
        self.is_started = False
        self.is_ended = False

    def send(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A whole reply."""
        head = self._connection.head(status, (*headers, (b"content-length", b"%d" % len(body))))
        self.is_started = self.is_ended = True
        self._connection.write(head + body if self._has_body else head)

    def start(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a reply of unknown length; its head leaves with its first bytes."""
        self.is_started = True
        framing = ((b"transfer-encoding", b"chunked"),) if self._is_chunked else ()
        self._head = self._connection.head(status, (*headers, *framing))

    def write(self, data: bytes) -> None:
        """The next bytes of the body, at least one."""
        if not self._has_body:
            return
        head, self._head = self._head, b""
        self._connection.write(b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._is_chunked else head + data)

    def end(self) -> None:
        """No more bytes follow."""
        self.is_ended = True
        if last := self._head + (_LAST_CHUNK if self._is_chunked and self._has_body else b""):
            self._connection.write(last)

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads slower than it is written to: `drained` tells when it has caught up."""
        return self._connection.is_clogged

    async def drained(self) -> None:
        """Return once the client has taken most of what was written."""
        await self._connection.drained()
