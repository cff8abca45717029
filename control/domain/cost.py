"""What a fleet costs and what it is worth: cost ratio, benefit-cost ratio (BCR), cost per million tokens, goodput.

Prices are relative to one chip A of the baseline unless they carry a currency. BCR as PDD's authors define it: the
ratio of requests per second within the SLA over the ratio of costs, PDD to baseline.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Chips A and B, what one B costs in As, and what the line between the sites costs in As."""

    chips_a: float
    chips_b: float = 0.0
    price_b: float = 1.0
    line: float = 0.0

    @property
    def total(self) -> float:
        """In prices of one chip A."""
        return self.chips_a + self.chips_b * self.price_b + self.line


def cost_ratio(fleet: FleetCost, baseline: FleetCost) -> float:
    """Cost of a fleet over that of a baseline."""
    return fleet.total / baseline.total


def benefit_cost_ratio(rps_ratio: float, cost_ratio_: float) -> float:
    """BCR = (RPS1/RPS0) / (cost1/cost0)."""
    return rps_ratio / cost_ratio_


def cost_per_token_change(bcr: float) -> float:
    """By what share a token's cost changes at a BCR: 1/BCR − 1. A BCR of 1.3757 is −27.3 %, not −37.6 %."""
    return 1.0 / bcr - 1.0


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """In the currency of the price, at a sustained rate of tokens."""
    return price_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * 1e6


@dataclass(frozen=True, slots=True)
class Objective:
    """What one request must meet to count; seconds."""

    ttft_s: float
    tpot_s: float


def goodput_rps(requests: Iterable[tuple[float, float]], objective: Objective, duration_s: float) -> float:
    """Completed requests, given as (TTFT, TPOT), per second that meet every objective (DistServe, OSDI 2024)."""
    good = sum(ttft_s <= objective.ttft_s and tpot_s <= objective.tpot_s for ttft_s, tpot_s in requests)
    return good / duration_s
