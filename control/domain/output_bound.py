"""How long an answer may become, judged before it begins: the client's own limit, or what its tenant's answers were."""

import math
from collections import deque
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

HISTORY_ANSWERS = 256
MIN_ANSWERS = 20
QUANTILE = 0.9


class BoundSource(StrEnum):
    """Where a bound comes from. UNKNOWN: it is only the room that the model has left."""

    CLIENT = "client"
    HISTORY = "history"
    UNKNOWN = "unknown"


class OutputBound(NamedTuple):
    """The bound on an answer, in tokens, and how much it is worth."""

    tokens: int
    source: BoundSource


def output_bound(asked_tokens: int | None, room_tokens: int, likely_tokens: int | None) -> OutputBound:
    """The tightest bound that is known; a guess from history never exceeds what the model has room for."""
    if asked_tokens is not None:
        return OutputBound(min(asked_tokens, room_tokens), BoundSource.CLIENT)
    if likely_tokens is not None:
        return OutputBound(min(likely_tokens, room_tokens), BoundSource.HISTORY)
    return OutputBound(room_tokens, BoundSource.UNKNOWN)


def likely_output_tokens(recent: Collection[int]) -> int | None:
    """P90 of recent answers' tokens (nearest rank); None while there are too few to say."""
    if len(recent) < MIN_ANSWERS:
        return None
    return sorted(recent)[math.ceil(QUANTILE * len(recent)) - 1]


class OutputHistory:
    """The last answers of each tenant that no client's limit had cut, from which its next ones are judged."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[int]] = {}

    def add(self, tenant: str, output_tokens: int) -> None:
        """An answer that ended by itself."""
        self._answers.setdefault(tenant, deque(maxlen=HISTORY_ANSWERS)).append(output_tokens)

    def likely_tokens(self, tenant: str) -> int | None:
        """How long the tenant's next answer will most likely not exceed; None if it has too few."""
        return likely_output_tokens(self._answers.get(tenant, ()))
