"""One streamed generation of an engine, read as it comes."""

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec

from control.domain.topology import Node
from engine_agents.gateway.http_reply import HttpReply
from engine_agents.gateway.node_errors import (
    NodeError,
    NodeRefusedError,
    NodeUnreachableError,
    error_of_event,
    error_of_pull,
)
from engine_agents.gateway.node_replies import Chunk, checked
from engine_agents.gateway.sse import DONE, EventParser

_chunk = msgspec.json.Decoder(Chunk)


Taker = Callable[[Chunk], bool]
"""Takes a chunk; False if it wants no more for now."""


class NodeStream:
    """An asynchronous context; in it `run` gives the chunks up to [DONE]. Leaving it early closes the connection."""

    def __init__(
        self, node: Node, opening: Callable[[], Awaitable[HttpReply]], first_s: float, gap_s: float, *, is_pull: bool
    ) -> None:
        """Take how it is opened, and the longest silences before its first chunk and between two, in seconds."""
        self._node = node
        self._opening = opening
        self._first_s = first_s
        self._gap_s = gap_s
        self._is_pull = is_pull
        self._has_begun = False
        self._has_output = False
        self._is_finished = False
        self._is_done = False
        self._parser = EventParser()
        self._events: deque[bytes] = deque()

    async def __aenter__(self) -> Self:
        try:
            self._reply = await self._opening()
        except NodeRefusedError as error:
            raise self._failure(error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reply.close(is_ending=self._is_done)

    async def run(self, take: Taker) -> bool:
        """Give each chunk to `take`, at the moment it comes, until it returns False; True at the end.

        Raises:
            NodeError: the engine failed, or does not keep to the dialect; also what `take` raises.
        """
        self._take = take
        if not self._give():
            return self._is_done
        try:
            is_over = await self._read()
        except OSError as error:
            raise NodeUnreachableError(self._node.name, f"broke off: {type(error).__name__}") from error
        if is_over and not self._is_finished:
            raise NodeUnreachableError(self._node.name, "the stream ended early")
        return is_over or self._is_done

    async def _read(self) -> bool:
        """Read on until no more is wanted; True if the body is over."""
        if not self._has_begun:
            data = await self._reply.read_some(self._first_s)
            if not data:
                return True
            self._has_begun = True
            if not self._feed(data):
                return False
        return await self._reply.pump(self._feed, self._gap_s)

    def _feed(self, data: bytes) -> bool:
        self._events.extend(self._parser.feed(data))
        return self._give()

    def _give(self) -> bool:
        """Give what is here; False once no more is wanted, or to come."""
        while self._events:
            data = self._events.popleft()
            if data == DONE:
                self._is_done = True
                return False
            if not self._take(self._chunk(data)):
                return False
        return True

    def _chunk(self, data: bytes) -> Chunk:
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(self._node.name, f"streams in another dialect: {error}") from error
        if chunk.error is not None:
            raise self._failure(error_of_event(self._node, chunk.error))
        self._has_output = True
        if chunk.choices and chunk.choices[0].finish_reason:
            checked(self._node, chunk)
            self._is_finished = True
        return chunk

    def _failure(self, error: NodeError) -> NodeError:
        """What an error means here: before the first token, a consumer may have failed to pull."""
        return error_of_pull(self._node, error) if self._is_pull and not self._has_output else error
