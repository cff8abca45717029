"""How long transfers waited for a place on a link: a histogram with fixed bounds."""

from bisect import bisect_left
from itertools import accumulate
from typing import Any

BOUNDS_S = (0.0, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class WaitHistogram:
    """Counts per upper bound, in seconds; the last count is of longer waits. Only ever grows."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, wait_s: float) -> None:
        """Count one wait."""
        self.counts[bisect_left(BOUNDS_S, wait_s)] += 1
        self.sum_s += wait_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Bounds and counts up to them, as Prometheus has them."""
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))

    def state(self) -> dict[str, Any]:
        """The histogram as the admin API shows it; `counts` has one entry more than `bounds_s`."""
        return {"bounds_s": BOUNDS_S, "counts": self.counts, "count": sum(self.counts), "sum_s": self.sum_s}
