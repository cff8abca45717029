"""How the prefill of a prompt is cut into chunks, and how a small last chunk is avoided (the "valley")."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from control.domain.compiled import compiled


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """Chunks of `chunk_tokens`; a last one below `tail_chunk_min_tokens` is joined to the one before it."""

    chunk_tokens: int
    tail_chunk_min_tokens: int = 0

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1 or self.tail_chunk_min_tokens < 0:
            raise ValueError("a chunk has at least 1 token, and a minimum is not negative")


@compiled
def next_chunk_end(done_tokens: int, prompt_tokens: int, chunk_tokens: int, tail_chunk_min_tokens: int) -> int:
    """Up to which token the next chunk goes; a last piece below the minimum is joined to the one before it."""
    end = done_tokens + chunk_tokens
    left = prompt_tokens - end
    if left <= 0 or (left <= chunk_tokens and left < tail_chunk_min_tokens):
        return prompt_tokens
    return end


def plan_chunks(resident_tokens: int, prompt_tokens: int, rule: ChunkRule) -> list[int]:
    """Up to which token each chunk goes; the last is the prompt's end, also where nothing is left to compute.

    A joined chunk is longer than the rule's by less than the minimum.
    """
    ends = [next_chunk_end(resident_tokens, prompt_tokens, rule.chunk_tokens, rule.tail_chunk_min_tokens)]
    while ends[-1] < prompt_tokens:
        ends.append(next_chunk_end(ends[-1], prompt_tokens, rule.chunk_tokens, rule.tail_chunk_min_tokens))
    return ends


def chunked_prefill_s(resident_tokens: int, ends: Sequence[int], tokens_per_s: float, floor_s: float) -> float:
    """Seconds for chunks that each take at least `floor_s`, however small: Σ max(t_floor, q/µ)."""
    return sum(max(floor_s, (end - start) / tokens_per_s) for start, end in pairwise([resident_tokens, *ends]))
