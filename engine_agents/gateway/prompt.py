"""A prompt as token ids in the three forms that serving needs: JSON for engines, an array, and block hashes.

A prompt of 64K tokens is parsed, encoded and hashed once per request, whatever number of engines is asked.
"""

from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from control.domain.prefix import block_hashes

_NOT_IN_PLAIN_IDS = b"0123456789, \t\r\n"
_MAX_TOKEN_ID = (1 << 31) - 1


class Prompt:
    """Token ids, at least one. Immutable, but that hashes are remembered."""

    __slots__ = ("_added", "_array", "_hashes", "_json")

    def __init__(self, ids: Sequence[int]) -> None:
        self._array: npt.NDArray[np.int32] = np.asarray(ids, dtype="<i4")
        self._json: tuple[bytes, ...] = (msgspec.json.encode(ids)[:-1],)
        self._added: Sequence[int] = ()
        self._hashes: dict[tuple[int, bytes], tuple[bytes, ...]] = {}

    @classmethod
    def from_json(cls, raw: bytes | memoryview) -> Self | None:
        """Read a JSON array of token ids without making a Python number of each; None if it is anything else.

        `raw` must be valid JSON.
        """
        data = bytes(raw).strip()
        if data.translate(None, _NOT_IN_PLAIN_IDS) != b"[]":
            return None
        ids: npt.NDArray[Any] = np.fromstring(data[1:-1], dtype="<i8", sep=",")
        if not len(ids) or int(ids.max()) > _MAX_TOKEN_ID:
            return None
        return cls._of(ids.astype("<i4"), (data[:-1],), (), {})

    @classmethod
    def _of(
        cls,
        array: npt.NDArray[np.int32],
        json: tuple[bytes, ...],
        added: Sequence[int],
        hashes: dict[tuple[int, bytes], tuple[bytes, ...]],
    ) -> Self:
        prompt = cls.__new__(cls)
        prompt._array, prompt._json = array, json  # noqa: SLF001 - one of its own kind
        prompt._added, prompt._hashes = added, hashes  # noqa: SLF001
        return prompt

    def __len__(self) -> int:
        return len(self._array)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids as plain numbers; slow for a long prompt."""
        return tuple(self._array.tolist())

    @property
    def json_parts(self) -> tuple[bytes, ...]:
        """The ids as a JSON array, in parts, so that nothing long is ever copied."""
        if self._added:
            self._json = (*self._json, b"," + msgspec.json.encode(self._added)[1:-1])
            self._added = ()
        return (*self._json, b"]")

    def extended(self, more: Sequence[int]) -> Self:
        """The prompt with ids appended; their JSON is made when an engine is asked."""
        if not more:
            return self
        array = np.concatenate((self._array, np.array(more, dtype="<i4")))
        return self._of(array, self.json_parts[:-1], more, dict(self._hashes))

    def block_hashes(self, block_tokens: int, salt: bytes = b"") -> tuple[bytes, ...]:
        """Hashes of the full blocks (`control.domain.prefix`); those of the prompt that was extended are not redone."""
        key = (block_tokens, salt)
        known = self._hashes.get(key, ())
        if len(known) < len(self) // block_tokens:
            rest = self._array[len(known) * block_tokens :]
            known += tuple(block_hashes(rest, block_tokens, salt, parent=known[-1] if known else None))
            self._hashes[key] = known
        return known

    def blocks_with(
        self, more: Sequence[int], block_tokens: int, salt: bytes = b""
    ) -> tuple[tuple[bytes, ...], npt.NDArray[np.int32]]:
        """Hashes of the full blocks of the prompt with ids appended, and the ids behind them."""
        known = self.block_hashes(block_tokens, salt)
        rest = np.concatenate((self._array[len(known) * block_tokens :], np.array(more, dtype="<i4")))
        full = len(rest) // block_tokens
        if full:
            known += tuple(block_hashes(rest, block_tokens, salt, parent=known[-1] if known else None))
        return known, rest[full * block_tokens :]

    def block(self, index: int, block_tokens: int) -> npt.NDArray[np.int32]:
        """The ids of one block; fewer, or none, at the prompt's end."""
        return self._array[index * block_tokens : (index + 1) * block_tokens]
