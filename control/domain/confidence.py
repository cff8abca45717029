"""What a few samples surely say: lower bounds that a true share or quantile stays below once in a thousand. Pure."""

import math

from control.domain.histogram import Histogram

_DOUBT = 0.001
_Z = 3.0902  # of the normal distribution, one-sided, at that doubt
_MAX_EXACT = 700.0


def share_at_least(hits: int, total: int) -> float | None:
    """Lower bound of a share of which `hits` out of `total` were seen (Wilson's score interval); None without any."""
    if not total:
        return None
    seen, spread = hits / total, _Z * _Z / total
    centre = seen + spread / 2
    margin = _Z * math.sqrt(seen * (1 - seen) / total + spread / (4 * total))
    return max(0.0, (centre - margin) / (1 + spread))


def quantile_at_least(durations: Histogram, rank: float) -> float | None:
    """Lower bound of a quantile: the sample that so many others exceed as a true one hardly ever lets them.

    P99 of twenty samples is the largest of them, which tells of one request; the third or fourth largest tells more.
    """
    count = durations.count
    if not count:
        return None
    above = min(_hardly_ever(count * (1 - rank)), count)
    return durations.quantile((count - above + 1) / count)


def _hardly_ever(mean: float) -> int:
    """The least number that is reached once in a thousand where so many are expected (Poisson)."""
    if mean > _MAX_EXACT:
        return math.ceil(mean + _Z * math.sqrt(mean))
    term = total = math.exp(-mean)
    number = 1
    while 1 - total > _DOUBT:
        term *= mean / number
        total += term
        number += 1
    return number
