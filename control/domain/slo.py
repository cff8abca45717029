"""What users were promised, and the hit-rate buckets by which requests are told apart."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from control.domain.burn_rate import Tally
from control.domain.policy import ServiceClass
from control.domain.rollups import RequestSums

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


class Indicator(StrEnum):
    """What an objective is about."""

    TTFT = "ttft"
    TPOT = "tpot"
    AVAILABILITY = "availability"


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: `target` of the events are good, between 0 and 1.

    For TTFT and TPOT an event is a request that has one, and good within `threshold_s`; "90 % within 10 s" is the same
    as "P90 at most 10 s". For availability an event is a request that the client put rightly, and good if answered.
    None as class or site stands for all.
    """

    name: str
    indicator: Indicator
    target: float
    threshold_s: float | None = None
    service_class: str | None = None
    site: str | None = None

    def covers(self, site: str, service_class: str) -> bool:
        """Whether it is about requests of this class at this site."""
        return self.service_class in {None, service_class} and self.site in {None, site}


def tally_events(sums: RequestSums, slo: Slo) -> Tally:
    """Good and bad events among some requests; a duration within 2 % of the threshold may count as good."""
    if slo.indicator is Indicator.AVAILABILITY:
        return Tally(sums.answered, sums.errors)
    histogram = sums.ttft if slo.indicator is Indicator.TTFT else sums.tpot
    bad = histogram.count_above(slo.threshold_s or 0.0)
    return Tally(histogram.count - bad, bad)


def policy_slos(classes: Mapping[str, ServiceClass]) -> list[Slo]:
    """The objectives that a policy's service classes state."""
    return [slo for name, objectives in classes.items() for slo in _class_slos(name, objectives)]


def _class_slos(name: str, objectives: ServiceClass) -> list[Slo]:
    stated = [
        Slo(f"{name}-ttft-p90", Indicator.TTFT, 0.90, objectives.ttft_p90_s, name),
        Slo(f"{name}-ttft-p99", Indicator.TTFT, 0.99, objectives.ttft_p99_s, name),
        Slo(f"{name}-tpot-p90", Indicator.TPOT, 0.90, objectives.tpot_p90_s, name),
    ]
    if 0 < objectives.availability < 1:  # 0 and 1 leave no budget to burn
        stated.append(Slo(f"{name}-availability", Indicator.AVAILABILITY, objectives.availability, None, name))
    return stated
