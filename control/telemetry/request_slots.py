"""Ten seconds of requests, summed up so that any run of slots can be merged."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from control.domain.histogram import Histogram
from control.domain.rollups import UNKNOWN_BUCKET, Exemplar, RequestKey, RequestSums
from control.domain.slo import HIT_RATE_BUCKETS
from control.telemetry.records import RequestRecord

PIPELINES = ("direct", "relay", "outlier")
CATCH_UP = "catch_up"
HANDOFF_MODES = ("one_shot", CATCH_UP)
DEMO = "demo"
OTHER = "other"
MAX_CLASSES = 16


def _bucket_histograms() -> list[Histogram]:
    return [Histogram() for _ in range(HIT_RATE_BUCKETS)]


@dataclass(slots=True)
class ClassSlot:
    """Requests of one service class that ended in one slot."""

    requests: int = 0
    errors: int = 0
    good: int = 0
    ttft: Histogram = field(default_factory=Histogram)

    def add(self, sums: RequestSums) -> None:
        """Count some."""
        self.requests += sums.requests
        self.errors += sums.errors
        self.good += sums.good
        self.ttft.include(sums.ttft)


@dataclass(slots=True)
class RequestSlot:
    """Requests that ended in one slot; `is_known` tells a slot without requests from one nobody reported on."""

    is_known: bool = False
    requests: int = 0
    demo: int = 0
    errors: int = 0
    served: int = 0
    good: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    stall: Histogram = field(default_factory=Histogram)
    bucket_requests: list[int] = field(default_factory=lambda: [0] * HIT_RATE_BUCKETS)
    bucket_ttft: list[Histogram] = field(default_factory=_bucket_histograms)
    bucket_slowest: list[Exemplar] = field(default_factory=lambda: [Exemplar()] * HIT_RATE_BUCKETS)
    classes: dict[str, ClassSlot] = field(default_factory=dict)
    pipelines: Counter[str] = field(default_factory=Counter)
    handoffs: Counter[str] = field(default_factory=Counter)
    eager_tokens: int = 0
    output_tokens: int = 0
    lag_token_s: float = 0.0
    lag_by_node: dict[str, float] = field(default_factory=dict)

    def add(self, key: RequestKey, sums: RequestSums) -> None:
        """Count requests of one key."""
        self.is_known = True
        self.requests += sums.requests
        self.demo += sums.demo
        self.errors += sums.errors
        self.served += sums.answered
        self.good += sums.good
        self.pipelines[key.pipeline] += sums.requests
        self.handoffs["one_shot"] += sums.handoffs - sums.catch_up
        self.handoffs[CATCH_UP] += sums.catch_up
        self.output_tokens += sums.output_tokens
        self.eager_tokens += sums.eager_tokens
        self.lag_token_s += sums.lag_token_s
        self.stall.include(sums.stall)
        self.ttft.include(sums.ttft)
        if key.hit_bucket != UNKNOWN_BUCKET:
            self.bucket_requests[key.hit_bucket] += sums.requests
            self.bucket_ttft[key.hit_bucket].include(sums.ttft)
            self.bucket_slowest[key.hit_bucket] += sums.slowest
        name = key.service_class
        if name not in self.classes and len(self.classes) >= MAX_CLASSES:
            name = OTHER
        self.classes.setdefault(name, ClassSlot()).add(sums)

    def add_lag(self, node: str, lag_token_s: float) -> None:
        """Count what a main node waited for."""
        if lag_token_s:
            self.lag_by_node[node] = self.lag_by_node.get(node, 0.0) + lag_token_s


def ttft_quantiles(slots: Iterable[RequestSlot]) -> dict[str, float] | None:
    """P50, P90 and P99 of TTFT over some slots, seconds; None without a first token."""
    found = Histogram.merged(slot.ttft for slot in slots).quantiles(0.5, 0.9, 0.99)
    return None if found is None else dict(zip(("p50", "p90", "p99"), (round(one, 6) for one in found), strict=True))


def class_pictures(slots: Sequence[RequestSlot]) -> dict[str, dict[str, Any]]:
    """Requests, errors, goodput and TTFT of each service class over some slots, by name."""
    names = sorted({name for slot in slots for name in slot.classes})
    pictures = {}
    for name in names:
        parts = [slot.classes[name] for slot in slots if name in slot.classes]
        found = Histogram.merged(part.ttft for part in parts).quantiles(0.5, 0.9, 0.99)
        pictures[name] = {
            "requests": sum(part.requests for part in parts),
            "errors": sum(part.errors for part in parts),
            "good": sum(part.good for part in parts),
            "ttft": None if found is None else dict(zip(("p50", "p90", "p99"), map(rounded, found), strict=True)),
        }
    return pictures


SLOT_FIELDS = (
    "requests",
    "demo",
    "errors",
    "ttft",
    "buckets",
    "bucket_ttft_p99",
    "bucket_slowest",
    "pipelines",
    "handoffs",
    "stall_p99_s",
    "eager_tokens",
    "output_tokens",
    "served",
    "good",
    "lag_token_s",
)


def slot_picture(slot: RequestSlot | None, window: Sequence[RequestSlot]) -> dict[str, Any]:
    """The request fields of a slot; quantiles are those of the window that ends with it. Unknown is null, not 0."""
    if slot is None or not slot.is_known:
        return dict.fromkeys(SLOT_FIELDS)
    tails = (
        Histogram.merged(one.bucket_ttft[bucket] for one in window).quantile(0.99) for bucket in range(HIT_RATE_BUCKETS)
    )
    return {
        "requests": slot.requests,
        "demo": slot.demo,
        "errors": slot.errors,
        "ttft": ttft_quantiles(window),
        "buckets": list(slot.bucket_requests),
        "bucket_ttft_p99": [rounded(tail) for tail in tails],
        "bucket_slowest": [one.request_id or None for one in slot.bucket_slowest],
        "pipelines": {name: slot.pipelines[name] for name in PIPELINES},
        "handoffs": {name: slot.handoffs[name] for name in HANDOFF_MODES},
        "stall_p99_s": rounded(Histogram.merged(one.stall for one in window).quantile(0.99)),
        "eager_tokens": slot.eager_tokens,
        "output_tokens": slot.output_tokens,
        "served": slot.served,
        "good": slot.good,
        "lag_token_s": rounded(slot.lag_token_s),
    }


def rounded(value: float | None) -> float | None:
    """Six decimals are enough for a picture, and shorter on the wire."""
    return None if value is None else round(value, 6)


def request_row(record: RequestRecord) -> dict[str, Any]:
    """One request as a row of the live table."""
    return {
        "id": record.request_id,
        "at_s": record.received_at_s,
        "site": record.site,
        "traffic": record.traffic,
        "hit_rate": rounded(record.prefix_hit_rate),
        "drc_hit_rate": rounded(record.drc_hit_rate),
        "uncached_tokens": record.uncached_tokens,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "eager_tokens": record.eager_tokens,
        "pipeline": record.pipeline,
        "reason": record.reason,
        "predicted_transfer_s": rounded(record.predicted_transfer_s),
        "transfer_s": rounded(record.transfer_s),
        "pulled_tokens": record.pulled_tokens,
        "reported_drc_hit_rate": rounded(record.reported_drc_hit_rate),
        "extend_resident_tokens": record.extend_resident_tokens,
        "repulls": record.repulls,
        "predicted_hit_rate": rounded(record.predicted_prefix_hit_rate),
        "expected_recomputed_tokens": record.expected_recomputed_tokens,
        "recomputed_tokens": record.recomputed_tokens,
        "output_bound_tokens": record.output_bound_tokens,
        "output_bound_source": record.output_bound_source,
        "tenant": record.tenant,
        "service_class": record.service_class,
        "ttft_s": rounded(record.ttft_s),
        "ttst_s": rounded(record.ttst_s),
        "tpot_s": rounded(record.tpot_s),
        "max_itl_s": rounded(record.max_itl_s),
        "e2e_s": rounded(record.e2e_s),
        "handoff_mode": record.handoff_mode,
        "handoff_stall_s": rounded(record.handoff_stall_s),
        "nodes": {"prefill": record.prefill_node, "relay": record.relay_node, "main": record.main_node},
        "revision": record.policy_revision,
        "outcome": record.outcome,
        "stages": [[stage.name, rounded(stage.start_s), rounded(stage.end_s)] for stage in record.stages],
    }
