"""Reads tool calls and reasoning out of an answer on its way to the client, behind the commit, so that no cut shows."""

from collections.abc import Sequence
from typing import Protocol

from control.domain.answer_parser import Part
from control.domain.commit import Flush
from engine_agents.gateway.logprobs import Document


class PartsTaker(Protocol):
    """A response that can tell the parts of an answer apart."""

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""

    async def drained(self) -> None:
        """Return once the client has caught up."""

    def put_parts(
        self, parts: Sequence[Part], token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None
    ) -> bool:
        """Take the next parts; False if the client has not been sent anything of them yet."""


class PartsReader(Protocol):
    """Reads an answer's text as parts; `calls` counts those that are tool calls so far."""

    calls: int

    def feed(self, text: str, *, is_final: bool = False) -> list[Part]:
        """What these further characters complete; with `is_final`, all that is left."""


class ParsedAnswer:
    """Between an exchange and a response."""

    def __init__(self, response: PartsTaker, parser: PartsReader) -> None:
        self._response = response
        self._parser = parser

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""
        return self._response.is_clogged

    async def drained(self) -> None:
        """Return once the client has caught up."""
        await self._response.drained()

    def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Pass on what the text so far completes."""
        parts = self._parser.feed(flush.text, is_final=flush.finish is not None)
        finish = "tool_calls" if flush.finish == "stop" and self._parser.calls else flush.finish
        return self._response.put_parts(parts, flush.token_ids, finish, logprobs)
