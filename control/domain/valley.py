"""The bathtub: what a second of prefill earns, against the share of the prompt that was cached.

Cached input is billed at a discount and costs next to nothing to prefill; what is left is cut into chunks whose last
piece may cost as much as a whole one. Earnings are high at both ends and low between them (PDD's authors, 2026).
"""

from dataclasses import dataclass

from control.domain.performance import PrefillSpeed, chunked_prefill_cost_s


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """The parts of a prompt's prefill cost: linear share a and attention share s, together 1, and fixed overhead o."""

    linear: float
    attention: float
    overhead: float = 0.0


def revenue_per_prefill_s(hit_rate: float, cached_price: float, cost: PrefillCost) -> float:
    """R(h) = (1 − (1−d)·h) / ((1−h)·a + (1−h²)·s + o), relative: d is the price of cached input over that of fresh.

    (1−h²)·s: what is left attends to all of the prompt, h of which is there already.
    """
    earned = 1.0 - (1.0 - cached_price) * hit_rate
    left = 1.0 - hit_rate
    return earned / (left * cost.linear + (1.0 - hit_rate * hit_rate) * cost.attention + cost.overhead)


def falls_from_zero(cached_price: float, cost: PrefillCost) -> bool:
    """Whether a few hits earn less than none: R'(0) < 0, which is s > a·d/(1−d) − o.

    R'(0) has the sign of a − (1−d)·(a + s + o).
    """
    return cost.attention > cost.linear * cached_price / (1.0 - cached_price) - cost.overhead


def chunked_revenue_per_s(hit_rate: float, cached_price: float, input_tokens: int, speed: PrefillSpeed) -> float:
    """Earnings (in prices of a fresh token) per second of prefill, tail chunk included: R(h) with its dips."""
    cached = int(hit_rate * input_tokens)
    earned = (input_tokens - cached) + cached_price * cached
    return earned / chunked_prefill_cost_s(cached, input_tokens, speed)


def tail_waste_s(uncached_tokens: int, chunk_tokens: int, tokens_per_s: float, floor_s: float) -> float:
    """Seconds that a tail chunk r = u mod c costs beyond its own work, because no chunk is below the floor."""
    tail = uncached_tokens % chunk_tokens
    return max(0.0, floor_s - tail / tokens_per_s) if tail else 0.0
