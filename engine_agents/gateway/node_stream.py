"""One streamed generation of an engine, read as it comes."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec

from control.domain.topology import Node
from engine_agents.gateway.http_client import HttpReply
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


class NodeStream:
    """An asynchronous context; in it `read` gives the chunks up to [DONE]. Leaving it early closes the connection."""

    def __init__(
        self, node: Node, opening: Callable[[], Awaitable[HttpReply]], first_s: float, gap_s: float, *, is_pull: bool
    ) -> None:
        """Take how it is opened, and the longest silences before its first chunk and between two, in seconds."""
        self._node = node
        self._opening = opening
        self._silence_s = first_s
        self._gap_s = gap_s
        self._is_pull = is_pull
        self._has_output = False
        self._reply: HttpReply | None = None
        self._parser = EventParser()
        self._error: NodeError | None = None
        self._is_finished = False
        self._is_done = False

    async def __aenter__(self) -> Self:
        try:
            self._reply = await self._opening()
        except NodeRefusedError as error:
            raise self._failure(error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reply is not None:
            self._reply.close(is_ending=self._is_done)

    async def read(self) -> list[Chunk]:
        """The chunks that came together, at least one; none at the end.

        Raises:
            NodeError: the engine failed, or does not keep to the dialect.
        """
        chunks: list[Chunk] = []
        while not chunks and not self._is_done:
            if self._error is not None:
                raise self._error
            for data in await self._events():
                if data == DONE:
                    self._is_done = True
                    break
                try:
                    chunks.append(self._chunk(data))
                except NodeError as error:
                    self._error = error  # what came before it counts
                    break
        return chunks

    async def _events(self) -> list[bytes]:
        assert self._reply is not None, "a stream is read inside its context"  # noqa: S101
        try:
            data = await self._reply.read_some(self._silence_s)
        except OSError as error:
            raise NodeUnreachableError(self._node.name, f"broke off: {type(error).__name__}") from error
        if data:
            self._silence_s = self._gap_s
            return self._parser.feed(data)
        if self._is_finished:
            return [DONE]
        raise NodeUnreachableError(self._node.name, "the stream ended early")

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
