"""Ten seconds of requests, summed up so that any run of slots can be merged."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from control.domain.histogram import Histogram
from control.domain.outcome import Outcome
from control.domain.policy_fields import is_member_name
from control.domain.slo import HIT_RATE_BUCKETS, Objectives, hit_rate_bucket, meets_objectives
from control.telemetry.records import RequestRecord

PIPELINES = ("direct", "relay", "outlier")
CATCH_UP = "catch_up"
HANDOFF_MODES = ("one_shot", CATCH_UP)
ERRORS = frozenset({Outcome.FAILED, Outcome.SHED})
SERVED = frozenset({Outcome.COMPLETED, Outcome.CLIENT_CLOSED})
DEMO = "demo"
OTHER = "other"


def _bucket_histograms() -> list[Histogram]:
    return [Histogram() for _ in range(HIT_RATE_BUCKETS)]


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
    pipelines: Counter[str] = field(default_factory=Counter)
    handoffs: Counter[str] = field(default_factory=Counter)
    eager_tokens: int = 0
    output_tokens: int = 0
    lag_token_s: float = 0.0
    lag_by_node: dict[str, float] = field(default_factory=dict)

    def add(self, record: RequestRecord, objectives: Objectives) -> None:
        """Count one request."""
        self.is_known = True
        self.requests += 1
        self.demo += record.traffic == DEMO
        self.errors += record.outcome in ERRORS
        self.served += record.outcome in SERVED
        self.good += record.outcome == Outcome.COMPLETED and meets_objectives(record.ttft_s, record.tpot_s, objectives)
        self.pipelines[record.pipeline] += 1
        self.handoffs[record.handoff_mode] += 1
        self.output_tokens += record.output_tokens
        self.eager_tokens += min(record.eager_tokens, record.output_tokens)
        lag = lag_token_s(record)
        self.lag_token_s += lag
        if lag:
            node = main_node_of(record)
            self.lag_by_node[node] = self.lag_by_node.get(node, 0.0) + lag
        if record.handoff_stall_s is not None:
            self.stall.add(record.handoff_stall_s)
        self._add_ttft(record)

    def _add_ttft(self, record: RequestRecord) -> None:
        hit_rate = record.prefix_hit_rate
        bucket = None if hit_rate is None else hit_rate_bucket(hit_rate)
        if bucket is not None:
            self.bucket_requests[bucket] += 1
        if record.ttft_s is None:
            return
        self.ttft.add(record.ttft_s)
        if bucket is not None:
            self.bucket_ttft[bucket].add(record.ttft_s)


def lag_token_s(record: RequestRecord) -> float:
    """Tokens P held and MD was waiting for, times the seconds it waited.

    Cache lag is the mean over time of the tokens on their way (Little's law: the sum of this over a window / the
    window). An outlier sends nothing. An older gateway does not say how long P had waited: there it is the time of the
    transfer, or at least that of the request where nobody saw the transfer end.
    """
    if record.pipeline not in {"direct", "relay"}:
        return 0.0
    waited_s = record.cache_lag_s
    if waited_s is None:
        waited_s = record.e2e_s if record.transfer_s is None else record.transfer_s
    return record.uncached_tokens * waited_s


def main_node_of(record: RequestRecord) -> str:
    """The main node that a request was for; what no node can be called becomes one word, so that names stay few."""
    return record.main_node if is_member_name(record.main_node) else OTHER


def ttft_quantiles(slots: Iterable[RequestSlot]) -> dict[str, float] | None:
    """P50, P90 and P99 of TTFT over some slots, seconds; None without a first token."""
    found = Histogram.merged(slot.ttft for slot in slots).quantiles(0.5, 0.9, 0.99)
    return None if found is None else dict(zip(("p50", "p90", "p99"), (round(one, 6) for one in found), strict=True))


SLOT_FIELDS = (
    "requests",
    "demo",
    "errors",
    "ttft",
    "buckets",
    "bucket_ttft_p99",
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
