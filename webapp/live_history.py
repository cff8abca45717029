"""The Live page's picture of a span of time from sums in SQL, in the shape of the live feed's: slots, tiles, marks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from control.domain.rollups import RequestSums
from control.domain.slo import HIT_RATE_BUCKETS
from control.services.history import LinkSeries, RequestHistory, RequestSeries, SiteSeries
from webapp.charts import BUCKETS

Picture = dict[str, Any]


def slots_of(
    whole: RequestHistory,
    buckets: RequestHistory,
    pipelines: RequestHistory,
    links: Sequence[LinkSeries],
    sites: Sequence[SiteSeries],
) -> list[Picture]:
    """One slot for each span; what nobody reported is null, as in the feed."""
    by_bucket = {one.name: one for one in buckets.series}
    by_pipeline = {one.name: one for one in pipelines.series}
    total = whole.series[0] if whole.series else None
    return [
        {
            "at_s": at_s,
            **_requests(total, index, whole.span_s),
            **_buckets(total, by_bucket, index),
            "pipelines": _pipelines(total, by_pipeline, index),
            "links": {one.link: _link(one, index) for one in links},
            "relay": _relay(sites, index),
        }
        for index, at_s in enumerate(whole.at_s)
    ]


def _requests(total: RequestSeries | None, index: int, span_s: int) -> Picture:
    if total is None or total.requests[index] is None:
        names = ("requests", "errors", "served", "good", "ttft", "stall_p99_s", "eager_tokens", "output_tokens")
        return dict.fromkeys((*names, "lag_token_s", "handoffs"))
    lag = total.cache_lag_tokens[index]
    p50 = total.ttft_p50_s[index]
    quantiles = {"p50": p50, "p90": total.ttft_p90_s[index], "p99": total.ttft_p99_s[index]}
    return {
        "requests": total.requests[index],
        "errors": total.errors[index],
        "served": total.served[index],
        "good": total.good[index],
        "ttft": None if p50 is None else quantiles,
        "stall_p99_s": total.stall_p99_s[index],
        "eager_tokens": total.eager_tokens[index],
        "output_tokens": total.output_tokens[index],
        "lag_token_s": None if lag is None else lag * span_s,
        "handoffs": {"one_shot": total.one_shot[index], "catch_up": total.catch_up[index]},
    }


def _buckets(total: RequestSeries | None, series: Mapping[str, RequestSeries], index: int) -> Picture:
    if total is None or total.requests[index] is None:
        return {"buckets": None, "bucket_ttft_p99": None}
    found = [series.get(str(bucket)) for bucket in range(HIT_RATE_BUCKETS)]
    return {
        "buckets": [0 if one is None else one.requests[index] or 0 for one in found],
        "bucket_ttft_p99": [None if one is None else one.ttft_p99_s[index] for one in found],
    }


def _pipelines(total: RequestSeries | None, series: Mapping[str, RequestSeries], index: int) -> Picture | None:
    if total is None or total.requests[index] is None:
        return None
    return {
        name: (series[name].requests[index] or 0) if name in series else 0 for name in ("direct", "relay", "outlier")
    }


def _link(series: LinkSeries, index: int) -> Picture | None:
    if series.bytes_per_s[index] is None:
        return None
    return {
        "bytes_per_s": series.bytes_per_s[index],
        "direct_bytes_per_s": series.direct_bytes_per_s[index],
        "relay_bytes_per_s": series.relay_bytes_per_s[index],
    }


def _relay(sites: Sequence[SiteSeries], index: int) -> Picture | None:
    known = [one for one in sites if one.relay_slots[index] is not None]
    if not known:
        return None
    return {
        "running": sum(one.relay_running[index] or 0.0 for one in known),
        "waiting": sum(one.relay_waiting[index] or 0.0 for one in known),
        "slots": sum(one.relay_slots[index] or 0.0 for one in known),
    }


def tiles_of(totals: Mapping[int, RequestSums], slots: Sequence[Picture], seconds: float, slo: Picture) -> Picture:
    """The key figures of the whole span; `seconds` is how long it is, as far as anything is known of it."""
    sums = RequestSums.merged(totals.values())
    found = sums.ttft.quantiles(0.5, 0.9, 0.99)
    is_known = any(slot["requests"] is not None for slot in slots)
    output = sums.output_tokens
    return {
        "ttft": None if found is None else dict(zip(("p50", "p90", "p99"), found, strict=True)),
        "requests": sums.requests if is_known else None,
        "rps": sums.answered / seconds if is_known else None,
        "goodput_rps": sums.good / seconds if is_known else None,
        "rld_share": sums.eager_tokens / output if output else None,
        "cache_lag_tokens": sums.lag_token_s / seconds if is_known else None,
        "relay_utilization": _mean(slot["relay"] for slot in slots),
        "wan_use": None,
        "slo": slo,
    }


def _mean(loads: Iterable[Picture | None]) -> float | None:
    known = [load["running"] / load["slots"] for load in loads if load and load["slots"]]
    return sum(known) / len(known) if known else None


def bucket_rows(totals: Mapping[int, RequestSums]) -> list[Picture]:
    """TTFT quantiles and count of each hit-rate bucket over a span; null where no first token was seen."""
    rows = []
    for bucket in range(HIT_RATE_BUCKETS):
        sums = totals.get(bucket, RequestSums())
        found = sums.ttft.quantiles(0.5, 0.9, 0.99) or (None, None, None)
        names = ("p50", "p90", "p99")
        rows.append({"range": BUCKETS[bucket], "requests": sums.requests, **dict(zip(names, found, strict=True))})
    return rows
