"""One reply of an engine, read as it comes: in parts, at once, or straight into a sink."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

MAX_UNREAD_BYTES = 256 << 10
MAX_WHOLE_BYTES = 64 << 20

Sink = Callable[[bytes], bool]
"""Takes a part of a body; False if it wants no more for now."""


class BrokenOffError(ConnectionError):
    """The connection was lost, or carried no HTTP, before the reply was complete."""


class Line(Protocol):
    """The connection that a reply comes on."""

    def wait(self, silence_s: float) -> "asyncio.Future[bool]":
        """To be awaited for what comes next."""

    def resume(self) -> None:
        """Read on after a pause."""

    def leave(self, reply: "HttpReply", *, is_ending: bool) -> None:
        """The exchange is over for its reader."""


class HttpReply:
    """One reply: its head is complete, its body is read as it comes. A context that closes it.

    One that `is_whole` is given to its reader when all of it is here.
    """

    __slots__ = (
        "_connection",
        "_parts",
        "_unread_bytes",
        "error",
        "headers",
        "is_begun",
        "is_complete",
        "is_whole",
        "sink",
        "status",
    )

    def __init__(self, connection: "Line", *, is_whole: bool = False) -> None:
        self.status = 0
        self.is_whole = is_whole
        self.headers: dict[bytes, bytes] = {}
        self.is_begun = False
        self.is_complete = False
        self.error: OSError | None = None
        self.sink: Sink | None = None
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._connection: Line | None = connection

    async def read(self, silence_s: float) -> bytes:
        """The whole body; `silence_s` is the longest pause that is waited for.

        Raises:
            TimeoutError, BrokenOffError: it did not come to its end.
        """
        parts = []
        while part := await self.read_some(silence_s):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_some(self, silence_s: float) -> bytes:
        """What has come since the last call, at least one byte; empty at the body's end.

        Raises:
            TimeoutError, BrokenOffError: nothing came for `silence_s`, or the connection was lost.
        """
        while not self._parts:
            if self.is_complete:
                self.close()
                return b""
            if self.error is not None:
                raise self.error
            await self._wait(silence_s)
        return self._pop()

    async def pump(self, sink: Sink, silence_s: float) -> bool:
        """Give what comes to `sink` while the loop reads it, until it returns False; True at the body's end.

        Nobody is woken for a part, which makes a stream of small parts cheap. What `sink` raises is raised here.

        Raises:
            TimeoutError, BrokenOffError: nothing came for `silence_s`, or the connection was lost.
        """
        while True:
            if self._parts:
                if not sink(self._pop()):
                    return False
            elif self.is_complete:
                self.close()
                return True
            elif self.error is not None:
                raise self.error
            else:
                self.sink = sink
                try:
                    if not await self._wait(silence_s):
                        return False
                finally:
                    self.sink = None

    def flow(self) -> bool:
        """Give what came to the sink, if there is one; False where it wants no more."""
        return self.sink is None or not self._parts or self.sink(self._pop())

    def _wait(self, silence_s: float) -> "asyncio.Future[bool]":
        if self._connection is None:
            raise BrokenOffError("the reply was closed")
        return self._connection.wait(silence_s)

    def _pop(self) -> bytes:
        data = self.body
        self._parts.clear()
        if self._unread_bytes > MAX_UNREAD_BYTES and self._connection is not None:
            self._connection.resume()
        self._unread_bytes = 0
        return data

    def close(self, *, is_ending: bool = False) -> None:
        """Keep the connection if the reply is complete, or about to be (`is_ending`); else close it at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(self, is_ending=is_ending)

    def take(self, part: bytes) -> bool:
        """Add to the body; False where the reader has enough for now, or a whole reply is larger than any may be."""
        self._parts.append(part)
        self._unread_bytes += len(part)
        return self._unread_bytes <= (MAX_WHOLE_BYTES if self.is_whole else MAX_UNREAD_BYTES)

    @property
    def body(self) -> bytes:
        """What has come of the body and was not read yet; of a whole reply all of it."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
