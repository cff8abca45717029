"""What users were promised, and the hit-rate buckets by which requests are told apart."""

import bisect
from dataclasses import dataclass

HIT_RATE_BUCKET_EDGES = (0.0, 0.90, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0)
HIT_RATE_BUCKETS = len(HIT_RATE_BUCKET_EDGES) - 1


@dataclass(frozen=True, slots=True)
class Objectives:
    """Objectives of one service class, seconds."""

    ttft_p90_s: float = 10.0
    ttft_p99_s: float = 15.0
    tpot_p90_s: float = 0.05


def hit_rate_bucket(rate: float) -> int:
    """Index of the bucket a prefix hit rate falls in; a bucket holds its lower edge, the last one both.

    Raises:
        ValueError: the rate is not within 0 and 1.
    """
    if not 0 <= rate <= 1:
        raise ValueError("a hit rate is within 0 and 1")
    return min(bisect.bisect_right(HIT_RATE_BUCKET_EDGES, rate), HIT_RATE_BUCKETS) - 1


def meets_objectives(ttft_s: float | None, tpot_s: float | None, objectives: Objectives) -> bool:
    """Whether one completed request counts as goodput.

    One request cannot meet a quantile, so it is held against the loosest bound promised: P99 of TTFT, P90 of TPOT. An
    answer of one token has no TPOT; one without a first token meets nothing.
    """
    if ttft_s is None or ttft_s > objectives.ttft_p99_s:
        return False
    return tpot_s is None or tpot_s <= objectives.tpot_p90_s
