"""Every metric that a process of ours emits: its name, type, labels and meaning, from which code, docs and boards come.

`python -m control.metric_catalogue` writes METRICS.md beside this file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DOCUMENT = Path(__file__).with_name("METRICS.md")
_UNITS = ("seconds", "bytes", "tokens", "ratio", "info")


class Process(StrEnum):
    """What emits metrics."""

    GATEWAY = "gateway"
    NODE = "node"
    WAN = "WAN relay"
    WEB = "web"
    TELEMETRY = "telemetry consumer"
    OBSERVER = "observer"
    WORKER = "control worker"
    AGENT = "agent"


class Kind(StrEnum):
    """What kind of figure it is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """One metric of one process. Names are as they are scraped; those of histograms without `_bucket` and the like."""

    process: Process
    kind: Kind
    name: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """Its unit, which is part of its name."""
        words = self.family.rsplit("_", 1)[-1]
        return words if words in _UNITS and words != "info" else ""

    @property
    def family(self) -> str:
        """The name without what counters end in, as client libraries want it."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name

    @property
    def samples(self) -> tuple[str, ...]:
        """Names of its samples."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.name,)
        ends = ("_bucket", "_count") if self.name in _WITHOUT_SUM else ("_bucket", "_count", "_sum")
        return tuple(self.name + end for end in ends)


# Histograms of values of both signs have no sum: it would not only grow.
_WITHOUT_SUM = frozenset(
    {
        "pdd_prefix_hit_prediction_error_ratio",
        "pdd_drc_hit_prediction_error_ratio",
        "pdd_transfer_prediction_error_ratio",
    }
)


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_GATEWAY = (
    (_C, "pdd_requests_total", "site pipeline outcome", "Requests by outcome."),
    (_C, "pdd_class_requests_total", "site service_class outcome", "Requests by service class and outcome."),
    (_C, "pdd_routing_decisions_total", "site pipeline reason", "Routing decisions by reason."),
    (_H, "pdd_request_ttft_seconds", "site pipeline", "Time to first token."),
    (_H, "pdd_request_tpot_seconds", "site pipeline", "Time per later token."),
    (_H, "pdd_request_e2e_seconds", "site pipeline", "Whole request."),
    (_H, "pdd_gateway_overhead_seconds", "site", "Own work up to the first token."),
    (_C, "pdd_resumes_total", "site", "Times an answer went on elsewhere."),
    (_H, "pdd_prefix_hit_ratio", "site", "Prompt share cached on P."),
    (_H, "pdd_drc_hit_ratio", "site", "Prompt share on MD or on its way to it."),
    (
        _H,
        "pdd_prefix_hit_prediction_error_ratio",
        "site",
        "(predicted - engine-reported) cached tokens on P / prompt tokens.",
    ),
    (
        _H,
        "pdd_drc_hit_prediction_error_ratio",
        "site",
        "(predicted - engine-reported) tokens on MD or on their way / prompt tokens.",
    ),
    (_C, "pdd_repulls_total", "site", "Times MD had lost a prompt's KV and pulled it again."),
    (_C, "pdd_eager_tokens_total", "site", "Tokens made by relay nodes."),
    (_C, "pdd_output_tokens_total", "role", "Output tokens."),
    (_H, "pdd_handoff_seconds", "mode", "Pause at the handoff."),
    (_C, "pdd_handoffs_total", "mode outcome", "Handoffs."),
    (
        _C,
        "pdd_recomputed_tokens_total",
        "kind",
        "Eager tokens that MD computed in catch-up batches and extends, and what it computed beyond, evicted.",
    ),
    (_H, "pdd_kv_transfer_seconds", "link pipeline", "KV transfers to MD."),
    (_C, "pdd_kv_transfer_bytes_total", "link pipeline", "KV bytes that MD reports as pulled."),
    (
        _H,
        "pdd_transfer_prediction_error_ratio",
        "site",
        "(predicted - measured) / the larger of the two, of KV transfers' times.",
    ),
    (_G, "pdd_requests_in_flight", "site", "Requests being answered."),
    (_G, "pdd_kv_transfers_in_flight", "site", "KV transfers under way."),
    (_G, "pdd_relay_utilization_ratio", "site", "Generations on relay nodes / their slots."),
    (
        _G,
        "pdd_handoff_token_mismatches",
        "site",
        "Catch-up batches where MD would have gone on with another token.",
    ),
    (_G, "pdd_telemetry_dropped_records", "site", "Records lost because the spool was full."),
    (_G, "pdd_policy_revision_info", "site revision", "The running policy revision."),
    (
        _G,
        "pdd_policy_canary_revision_info",
        "site revision",
        "The revision that some requests run under before it holds.",
    ),
    (
        _G,
        "pdd_link_waiting_transfers",
        "site link",
        "Transfers that wait for a link that no WAN relay shapes.",
    ),
    (_G, "pdd_cache_lag_tokens", "site node", "Tokens that P has and a main node lacks, on their way."),
    (_G, "pdd_stranded_kv_bytes", "site node", "Bytes leased while nobody reads them."),
    (_G, "pdd_stranded_kv_age_seconds", "site node", "Age of the oldest lease that nobody reads."),
)
_NODE = (
    (_G, "vllm:num_requests_running", "", "Requests that hold a slot."),
    (_G, "vllm:num_requests_waiting", "", "Requests that wait for a slot."),
    (_G, "vllm:kv_cache_usage_perc", "", "Resident share of the block store, 0 to 1."),
    (_C, "vllm:prompt_tokens_total", "", "Prompt tokens of requests that began."),
    (_C, "vllm:generation_tokens_total", "", "Tokens generated."),
    (_C, "vllm:prompt_tokens_by_source_total", "source", "Prompt tokens by where their KV came from."),
    (_G, "pdd_node_slots", "", "Requests that can run at once."),
    (_G, "pdd_node_pulls_running", "", "Pulls under way."),
    (_G, "pdd_node_store_resident_tokens", "", "Tokens whose KV is resident."),
    (_G, "pdd_node_store_resident_bytes", "", "Bytes of resident KV."),
    (_G, "pdd_node_store_capacity_tokens", "", "Tokens that the store has room for."),
    (_G, "pdd_node_leases", "", "Live leases."),
    (_G, "pdd_node_leased_bytes", "", "Bytes that leases keep resident."),
    (_G, "pdd_stranded_kv_bytes", "", "Bytes leased while nobody reads them."),
    (_G, "pdd_stranded_kv_age_seconds", "", "Age of the oldest lease that nobody reads."),
    (_G, "pdd_node_progress_age_seconds", "", "Seconds since anything moved."),
    (_C, "pdd_node_requests_total", "", "Requests received."),
    (_C, "pdd_node_request_outcomes_total", "outcome", "Requests by how they ended."),
    (_C, "pdd_node_pulls_total", "", "Pulls begun."),
    (_C, "pdd_node_failed_pulls_total", "", "Pulls that failed."),
    (_C, "pdd_node_resumed_pulls_total", "", "Times a pull went on after it was broken."),
    (_C, "pdd_node_pulled_bytes_total", "", "Bytes received by pulls."),
    (_C, "pdd_node_joined_bytes_total", "", "Bytes not pulled, as a block began with resident KV."),
    (_C, "pdd_node_failed_joins_total", "", "Resident beginnings that were not the sender's KV."),
    (_C, "pdd_node_served_bytes_total", "", "Bytes of KV served to other nodes."),
    (_C, "pdd_node_expired_leases_total", "", "Leases that expired unread."),
    (_C, "pdd_node_stored_blocks_total", "", "Blocks that entered the store."),
    (_C, "pdd_node_evicted_blocks_total", "", "Blocks evicted for room."),
    (_C, "pdd_node_refused_blocks_total", "", "Blocks refused because all room was pinned."),
)
_NODE_LABELS = ("model_name", "engine")
_WAN = (
    (_G, "pdd_kv_transfers_in_flight", "link", "Transfers on the link now."),
    (_G, "pdd_link_streams", "link", "Connections of those transfers."),
    (_G, "pdd_link_queue_depth", "link", "Transfers that wait for a place on the link."),
    (
        _G,
        "pdd_link_longest_wait_seconds",
        "link",
        "How long the transfer that waits longest has waited so far.",
    ),
    (_G, "pdd_link_queued_bytes", "link", "Bytes read that wait for the link."),
    (_G, "pdd_link_utilization_ratio", "link", "Bytes per second over the last second / capacity."),
    (_C, "pdd_kv_transfer_bytes_total", "link pipeline service_class", "KV bytes that entered the link."),
    (_C, "pdd_link_cut_transfers_total", "link", "Transfers cut by an operator."),
    (_H, "pdd_link_queue_wait_seconds", "link", "How long transfers waited for a place on the link."),
)
_WEB = (
    (_G, "pdd_live_subscribers", "", "Browsers that listen to the live feed."),
    (_C, "pdd_live_ticks_total", "", "Ticks read from the live stream."),
)
_TELEMETRY = (
    (_C, "pdd_telemetry_records_total", "", "Request records read from the streams."),
    (_C, "pdd_telemetry_entries_total", "stream", "Entries read from the streams, by kind of stream."),
    (_C, "pdd_telemetry_left_out_total", "reason", "What was read and did not count, by reason."),
    (_C, "pdd_telemetry_ticks_total", "", "Ticks published."),
    (_C, "pdd_telemetry_saves_total", "outcome", "Transactions that were to write rollups, by outcome."),
    (_G, "pdd_telemetry_save_age_seconds", "", "Seconds since rollups were last written."),
)
_OBSERVER = (
    (_C, "pdd_observer_rounds_total", "site", "Rounds of samples taken."),
    (_G, "pdd_observer_waiting_batches", "site", "Rounds that wait for Redis."),
    (_C, "pdd_observer_dropped_batches_total", "site", "Rounds lost because Redis was away for too long."),
)
_TASKS = ((_C, "pdd_tasks_received_total", "task", "Orders taken from the queue."),)


def _rows(
    process: Process, rows: tuple[tuple[Kind, str, str, str], ...], first: tuple[str, ...] = ()
) -> list[MetricFacts]:
    return [MetricFacts(process, kind, name, (*first, *labels.split()), text) for kind, name, labels, text in rows]


METRICS = (
    *_rows(Process.GATEWAY, _GATEWAY),
    *_rows(Process.NODE, _NODE, _NODE_LABELS),
    *_rows(Process.WAN, _WAN),
    *_rows(Process.WEB, _WEB),
    *_rows(Process.TELEMETRY, _TELEMETRY),
    *_rows(Process.OBSERVER, _OBSERVER),
    *_rows(Process.WORKER, _TASKS),
    *_rows(Process.AGENT, _TASKS),
)
_BY_FAMILY = {(one.process, one.family): one for one in METRICS}


def metric(process: Process, family: str) -> MetricFacts:
    """What is known of a metric; counters without `_total`.

    Raises:
        KeyError: the process has none of that name: add it to the catalogue first.
    """
    return _BY_FAMILY[process, family]


def catalogue_document() -> str:
    """The catalogue as a page."""
    return "\n".join(_lines()) + "\n"


_HEAD = """# Metrics

Made from `metric_catalogue.py` by `python -m control.metric_catalogue`; not edited by hand.

Each process answers `GET /metrics` in Prometheus's text format: gateway, nodes, WAN relay (admin port) and web on
the port that they serve, all others on the host and port in `PDD_METRICS_ADDRESS`, if it is set. Where a name stands
with several processes it is the same thing seen from there, told apart by its labels. Units are part of the names:
seconds, bytes, tokens, ratios from 0 to 1. All but gateway, nodes and WAN relay add `process_…` and `python_info`."""


def _lines() -> Iterator[str]:
    yield _HEAD
    for process in Process:
        yield from ("", f"## {process.value[0].upper()}{process.value[1:]}", "")
        yield from ("| name | type | unit | labels | meaning |", "|---|---|---|---|---|")
        for one in METRICS:
            if one.process is process:
                labels = ", ".join(f"`{label}`" for label in one.labels)
                yield f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.text} |"


if __name__ == "__main__":
    DOCUMENT.write_text(catalogue_document(), encoding="utf-8")
