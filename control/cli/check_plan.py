"""Decides what `pdd check handoff` sends next, so that both pipelines and both handoff modes occur. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Aim(StrEnum):
    """What a request is meant to go through; the gateway decides what it does go through."""

    DIRECT = "direct"
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"


SHARES: Mapping[Aim, float] = {Aim.DIRECT: 0.4, Aim.ONE_SHOT: 0.35, Aim.CATCH_UP: 0.25}
_SMALLEST_TOKENS, _LARGEST_TOKENS = 16, 640
_LONGEST_ANSWER_TOKENS = 400
_STEP = 1.35


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a prompt is new to the decode side, and how long its answer may be."""

    new_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway says a request went through. `handoff_mode` is empty where no handoff took place."""

    pipeline: str
    handoff_mode: str


FIRST_SIZES: Mapping[Aim, Size] = {
    Aim.DIRECT: Size(2, 24),
    Aim.ONE_SHOT: Size(48, 72),
    Aim.CATCH_UP: Size(240, 200),
}


def next_aim(seen: Mapping[Aim, int], under_way: Mapping[Aim, int]) -> Aim:
    """The aim that is furthest behind its share, counting what requests truly went through."""
    total = Counter(seen) + Counter(under_way)
    return min(SHARES, key=lambda aim: total[aim] / SHARES[aim])


def outcome_of(seen: Seen) -> Aim | None:
    """The aim a request has met; None where a relayed answer ended before any handoff."""
    if seen.pipeline == "direct":
        return Aim.DIRECT
    return Aim(seen.handoff_mode) if seen.handoff_mode in (Aim.ONE_SHOT, Aim.CATCH_UP) else None


def adjusted(aim: Aim, size: Size, seen: Seen) -> Size:
    """A size that will more likely meet its aim, from what the last one led to. Speeds need not be known."""
    met = outcome_of(seen)
    if met is aim or aim is Aim.DIRECT:
        return size
    if met is None:
        # The answer was over before its KV had moved: longer answers, then less to move.
        if size.max_output_tokens < _LONGEST_ANSWER_TOKENS:
            return replace(size, max_output_tokens=min(_LONGEST_ANSWER_TOKENS, round(size.max_output_tokens * _STEP)))
        return _with_new_tokens(size, size.new_tokens / _STEP)
    if aim is Aim.ONE_SHOT and met is Aim.CATCH_UP:
        return _with_new_tokens(size, size.new_tokens / _STEP)
    larger = _with_new_tokens(size, size.new_tokens * _STEP)
    return replace(larger, max_output_tokens=min(_LONGEST_ANSWER_TOKENS, round(size.max_output_tokens * 1.15)))


def _with_new_tokens(size: Size, new_tokens: float) -> Size:
    return replace(size, new_tokens=round(min(_LARGEST_TOKENS, max(_SMALLEST_TOKENS, new_tokens))))


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Index of the first token in which two answers differ; None when they are equal."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
