"""How a block's payload is laid out, so that some of its tokens can be sent alone and joined again; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_agents.nodes.kv_blocks import Payload


class PartSizeError(ValueError):
    """A block's payload, or a part of it, is not as long as its tokens need."""


@dataclass(frozen=True, slots=True)
class PayloadLayout:
    """The payload of t tokens is, plane by plane, t rows of that plane's bytes, without padding."""

    row_bytes: tuple[int, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of KV per token."""
        return sum(self.row_bytes)

    def part(self, payload: Payload, token_count: int, start: int, end: int) -> bytes:
        """The payload of tokens[start:end] of a block of `token_count`: one copy.

        Raises:
            PartSizeError: the payload is not that of `token_count` tokens.
            IndexError: the range does not lie inside the block.
        """
        self._check(payload, token_count)
        if not 0 <= start <= end <= token_count:
            raise IndexError(f"tokens {start} to {end} of a block of {token_count}")
        view = memoryview(payload)
        rows, at = [], 0
        for size in self.row_bytes:
            rows.append(view[at + start * size : at + end * size])
            at += token_count * size
        return b"".join(rows)

    def joined(self, parts: Sequence[tuple[int, Payload]]) -> bytes:
        """One payload of consecutive parts (token count, payload): one copy.

        Raises:
            PartSizeError: a part is not as long as its tokens need.
        """
        for token_count, payload in parts:
            self._check(payload, token_count)
        views = [(token_count, memoryview(payload)) for token_count, payload in parts]
        rows, before = [], 0
        for size in self.row_bytes:
            rows += [view[count * before : count * (before + size)] for count, view in views]
            before += size
        return b"".join(rows)

    def _check(self, payload: Payload, token_count: int) -> None:
        if len(payload) != token_count * self.token_bytes:
            raise PartSizeError(f"{len(payload)} bytes for {token_count} tokens of {self.token_bytes} bytes each")
