"""Decides what `pdd check handoff` sends next, so that all pipelines and both handoff modes occur. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Aim(StrEnum):
    """What a request is meant to go through; the gateway decides what it does go through."""

    DIRECT = "direct"
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"
    OUTLIER = "outlier"


SHARES: Mapping[Aim, float] = {Aim.DIRECT: 0.35, Aim.ONE_SHOT: 0.3, Aim.CATCH_UP: 0.25, Aim.OUTLIER: 0.1}
_AT_CEILING = "relay_at_ceiling"
_OUTLIER_MARGIN_TOKENS = 32
_SMALLEST_TOKENS, _LARGEST_TOKENS = 16, 640
_BOLDEST_CHANGE = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a prompt is new to the decode side, and how long its answer may be."""

    new_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway says a request went through. `handoff_mode` is empty where no handoff took place.

    `reason` is why it took its pipeline. `transfer_s` is how long its KV took or was predicted to take, `token_s` the
    time between its tokens; 0: unknown.
    """

    pipeline: str
    handoff_mode: str
    transfer_s: float = 0.0
    token_s: float = 0.0
    reason: str = ""


def possible_aims(policy: Mapping[str, Any]) -> list[Aim]:
    """What a policy lets happen with prompts that a check can send."""
    outlier = policy["outlier"]
    has_outliers = outlier["enabled"] and outlier["min_uncached_tokens"] <= _LARGEST_TOKENS
    return [aim for aim in Aim if aim is not Aim.OUTLIER or has_outliers]


def outlier_size(policy: Mapping[str, Any]) -> Size:
    """A prompt and an answer that make an outlier."""
    outlier = policy["outlier"]
    return Size(
        int(outlier["min_uncached_tokens"]) + _OUTLIER_MARGIN_TOKENS, min(32, int(outlier["max_output_tokens"]))
    )


def eager_target(aim: Aim, one_shot_max_tokens: int) -> int:
    """Tokens that RLD should have made when the KV arrives: well below or well above the policy's limit."""
    return max(4, round(one_shot_max_tokens * (0.7 if aim is Aim.ONE_SHOT else 2.0)))


def first_size(aim: Aim, one_shot_max_tokens: int) -> Size:
    """What to begin with, before any speed is known; the answer outlasts the transfer by a good margin."""
    if aim is Aim.DIRECT:
        return Size(new_tokens=4, max_output_tokens=24)
    target = eager_target(aim, one_shot_max_tokens)
    return Size(new_tokens=2 * target, max_output_tokens=2 * target + 24)


def next_aim(seen: Mapping[Aim, int], under_way: Mapping[Aim, int], aims: Sequence[Aim] = tuple(Aim)) -> Aim:
    """The aim that is furthest behind its share, counting what requests truly went through."""
    total = Counter(seen) + Counter(under_way)
    return min(aims, key=lambda aim: total[aim] / SHARES[aim])


def outcome_of(seen: Seen) -> Aim | None:
    """The aim a request has met; None where a relayed answer ended before any handoff."""
    if seen.pipeline in (Aim.DIRECT, Aim.OUTLIER):
        return Aim(seen.pipeline)
    return Aim(seen.handoff_mode) if seen.handoff_mode in (Aim.ONE_SHOT, Aim.CATCH_UP) else None


def adjusted(aim: Aim, size: Size, seen: Seen, one_shot_max_tokens: int) -> Size:
    """A size that will more likely meet its aim, from the speeds that the last one showed."""
    if aim in (Aim.DIRECT, Aim.OUTLIER) or not seen.pipeline or seen.reason.startswith(_AT_CEILING):
        return size  # a relay that was full says nothing about sizes
    if seen.pipeline == "direct":
        change = 1.35
    elif seen.transfer_s and seen.token_s:
        change = eager_target(aim, one_shot_max_tokens) * seen.token_s / seen.transfer_s
    else:
        return size
    change = _in_the_right_direction(change, aim, outcome_of(seen))
    # Half of the way, on a logarithmic scale: one slow moment should not throw the next request off.
    change = min(_BOLDEST_CHANGE, max(1 / _BOLDEST_CHANGE, change)) ** 0.5
    return replace(size, new_tokens=round(min(_LARGEST_TOKENS, max(_SMALLEST_TOKENS, size.new_tokens * change))))


def _in_the_right_direction(change: float, aim: Aim, met: Aim | None) -> float:
    """What happened outweighs the speeds, which an unsteady machine shows too late.

    An answer that ended before any handoff had too much to wait for; so had one that caught up instead of one shot.
    """
    if met is None or (aim is Aim.ONE_SHOT and met is Aim.CATCH_UP):
        return min(change, 0.7)
    if aim is Aim.CATCH_UP and met is Aim.ONE_SHOT:
        return max(change, 1.4)
    return change


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Index of the first token in which two answers differ; None when they are equal."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
