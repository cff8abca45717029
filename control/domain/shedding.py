"""When a request that is turned away now may be served: from what stands in its way."""

import math
from collections.abc import Iterable

from control.domain.routing import CEILING_HYSTERESIS

SHORTEST_RETRY_S, LONGEST_RETRY_S = 1, 60


def relay_wait_s(running: int, slots: int, ceiling: float, mean_hold_s: float) -> float:
    """Seconds until a relay pool takes requests again: until load has fallen below the ceiling's hysteresis.

    `running` generations of `mean_hold_s` seconds each end at a rate of running / mean_hold_s.
    """
    if running <= 0:
        return 0.0
    may_stay = math.floor(max(0.0, ceiling - CEILING_HYSTERESIS) * slots)
    return max(0, running - may_stay) * mean_hold_s / running


def direct_wait_s(predicted_ttft_s: float, limit_s: float) -> float:
    """Seconds until the queues in front of main decode are short enough: they drain one second per second."""
    return max(0.0, predicted_ttft_s - limit_s)


def retry_after_s(waits_s: Iterable[float]) -> int:
    """Whole seconds for Retry-After: the shortest way to an answer, within a second and a minute."""
    shortest_s = min(waits_s, default=0.0)
    return min(LONGEST_RETRY_S, max(SHORTEST_RETRY_S, math.ceil(min(shortest_s, LONGEST_RETRY_S))))
