"""The figures that alert rules may watch: a closed list, each with its unit and what tells its series apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure; `labels` name what there is one series for each of. One that is not windowed is of this moment."""

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str
    is_windowed: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """One series of a metric now; None: unknown. Without `may_start` its value is no reason to begin an alert."""

    labels: Mapping[str, str] = field(default_factory=dict)
    value: float | None = None
    may_start: bool = True


_BY_CLASS = ("site", "service_class")
_BY_SITE = ("site",)
_BY_LINK = ("link",)

METRICS: tuple[Metric, ...] = (
    Metric("ttft_p50_s", "s", _BY_CLASS, "Median time to first token."),
    Metric("ttft_p90_s", "s", _BY_CLASS, "90 % of first tokens come within this."),
    Metric("ttft_p99_s", "s", _BY_CLASS, "99 % of first tokens come within this."),
    Metric("tpot_p90_s", "s", _BY_CLASS, "90 % of requests take at most this per further token."),
    Metric("error_ratio", "ratio", _BY_CLASS, "Failed and shed requests / requests that the client put rightly."),
    Metric("requests_per_s", "requests/s", _BY_SITE, "Requests that ended; zero only where a gateway says so."),
    Metric("rld_share", "ratio", _BY_SITE, "Output tokens made by relay decode / output tokens."),
    Metric("transfer_p99_s", "s", _BY_SITE, "99 % of KV transfers between sites take at most this."),
    Metric("cache_lag_tokens", "tokens", _BY_SITE, "Tokens that P has cached and MD waits for, mean over the window."),
    Metric("handoff_stall_p99_s", "s", _BY_SITE, "99 % of handoffs pause the stream for at most this."),
    Metric("valley_share", "ratio", _BY_SITE, "Requests with a prefix hit rate in the costly middle, 15 to 75 %."),
    Metric(
        "collapse_growth",
        "times",
        _BY_SITE,
        "How much RLD share, transfer P99 and cache lag have all grown against the six hours before; counts while "
        "TTFT hides it.",
    ),
    Metric("relay_utilization", "ratio", _BY_SITE, "Sequences that relay nodes run / their slots."),
    Metric("stranded_kv_bytes", "bytes", _BY_SITE, "KV that prefill nodes hold and nobody reads, mean of the window."),
    Metric("link_utilization", "ratio", _BY_LINK, "Bytes carried / bytes that the link could carry."),
    Metric("link_down_share", "ratio", _BY_LINK, "Samples in which the WAN relay did not answer / samples."),
    Metric("link_flaps", "changes", _BY_LINK, "How often the link went up or down."),
    Metric("site_silence_s", "s", _BY_SITE, "Since any gateway or observer of the site was heard.", is_windowed=False),
    Metric("telemetry_lag_s", "s", (), "Since telemetry was last summed up.", is_windowed=False),
    Metric("drifted_gateways", "gateways", _BY_SITE, "Gateways that do not run the active policy.", is_windowed=False),
    Metric(
        "slo_burn_fast", "times", ("slo",), "Burn rate that the last hour and 5 minutes both reach.", is_windowed=False
    ),
    Metric(
        "slo_burn_slow",
        "times",
        ("slo",),
        "Burn rate that the last 6 hours and 30 minutes both reach.",
        is_windowed=False,
    ),
)
METRICS_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
