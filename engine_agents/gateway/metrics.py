"""Prometheus metrics of one gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from control.domain.outcome import Outcome
from control.domain.topology import Role
from control.telemetry.records import RequestRecord
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.planning import relay_utilization
from engine_agents.gateway.state import GatewayState

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0)
_LONG_SECONDS = (*_SECONDS, 45.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
_ERROR_RATIOS = (-0.9, -0.75, -0.5, -0.25, -0.1, -0.05, 0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_RATIOS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0)


class GatewayMetrics:
    """What a gateway counts; each has its own registry, so several can live in one process."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.registry = CollectorRegistry()
        by_pipeline = ["site", "pipeline"]
        self._requests = Counter(
            "pdd_requests", "Requests by outcome.", [*by_pipeline, "outcome"], registry=self.registry
        )
        self._reasons = Counter(
            "pdd_routing_decisions", "Routing decisions by reason.", [*by_pipeline, "reason"], registry=self.registry
        )
        self._ttft = self._histogram("pdd_request_ttft_seconds", "Time to first token.", by_pipeline, _LONG_SECONDS)
        self._tpot = self._histogram("pdd_request_tpot_seconds", "Time per later token.", by_pipeline, _TOKEN_SECONDS)
        self._e2e = self._histogram("pdd_request_e2e_seconds", "Whole request.", by_pipeline, _LONG_SECONDS)
        self._prefix_hit = self._histogram("pdd_prefix_hit_ratio", "Prompt share cached on P.", ["site"], _RATIOS)
        self._drc_hit = self._histogram(
            "pdd_drc_hit_ratio", "Prompt share on MD or on its way to it.", ["site"], _RATIOS
        )
        self._transfer = self._histogram(
            "pdd_kv_transfer_seconds", "KV transfers to MD.", ["link", "pipeline"], _LONG_SECONDS
        )
        self._transfer_bytes = Counter(
            "pdd_kv_transfer_bytes", "KV bytes that MD reports as pulled.", ["link", "pipeline"], registry=self.registry
        )
        self._handoff = self._histogram("pdd_handoff_seconds", "Pause at the handoff.", ["mode"], _SECONDS)
        self._handoffs = Counter("pdd_handoffs", "Handoffs.", ["mode", "outcome"], registry=self.registry)
        self._eager = Counter("pdd_eager_tokens", "Tokens made by relay nodes.", ["site"], registry=self.registry)
        self._output = Counter("pdd_output_tokens", "Output tokens.", ["role"], registry=self.registry)
        self._resumes = Counter("pdd_resumes", "Times an answer went on elsewhere.", ["site"], registry=self.registry)
        self._overhead = self._histogram(
            "pdd_gateway_overhead_seconds", "Own work up to the first token.", ["site"], _TOKEN_SECONDS
        )
        self._in_flight = self._gauge("pdd_requests_in_flight", "Requests being answered.")
        self._transfers = self._gauge("pdd_kv_transfers_in_flight", "KV transfers under way.")
        self._transfer_error = self._histogram(
            "pdd_transfer_prediction_error_ratio",
            "(predicted - measured) / the larger of the two, of KV transfers' times.",
            ["site"],
            _ERROR_RATIOS,
        )
        self._hit_error = self._histogram(
            "pdd_prefix_hit_prediction_error_ratio",
            "(predicted - engine-reported) cached tokens on P / prompt tokens.",
            ["site"],
            _ERROR_RATIOS,
        )
        self._recomputed = Counter(
            "pdd_recomputed_tokens",
            "Eager tokens that MD computed in catch-up batches and extends, and what it computed beyond, evicted.",
            ["kind"],
            registry=self.registry,
        )
        self._repulls = Counter(
            "pdd_repulls", "Times MD had lost a prompt's KV and pulled it again.", ["site"], registry=self.registry
        )
        self._class_requests = Counter(
            "pdd_class_requests",
            "Requests by service class and outcome.",
            ["site", "service_class", "outcome"],
            registry=self.registry,
        )
        self._cache_lag = self._node_gauge("pdd_cache_lag_tokens", "Tokens prefilled for a main node, on their way.")
        self._stranded = self._node_gauge("pdd_stranded_kv_bytes", "Bytes leased while nobody reads them.")
        self._stranded_age = self._node_gauge(
            "pdd_stranded_kv_age_seconds", "Age of the oldest lease that nobody reads."
        )
        self._relay_use = self._gauge("pdd_relay_utilization_ratio", "Generations on relay nodes / their slots.")
        self._mismatches = self._gauge(
            "pdd_handoff_token_mismatches", "Catch-up batches where MD would have gone on with another token."
        )
        self._dropped = self._gauge("pdd_telemetry_dropped_records", "Records lost because the spool was full.")
        self._revision = Gauge(
            "pdd_policy_revision_info", "The running policy revision.", ["site", "revision"], registry=self.registry
        )

    def count(self, record: RequestRecord) -> None:
        """Add one request."""
        site, pipeline = self.site, record.pipeline or "none"
        self._requests.labels(site, pipeline, record.outcome).inc()
        self._class_requests.labels(site, record.service_class, record.outcome).inc()
        if record.reason:
            self._reasons.labels(site, pipeline, record.reason).inc()
        if record.outcome != Outcome.COMPLETED.value:
            return
        self._e2e.labels(site, pipeline).observe(record.e2e_s)
        self._overhead.labels(site).observe(record.gateway_overhead_s)
        if record.ttft_s is not None:
            self._ttft.labels(site, pipeline).observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot.labels(site, pipeline).observe(record.tpot_s)
        if record.prefix_hit_rate is not None:
            self._prefix_hit.labels(site).observe(record.prefix_hit_rate)
        self._count_predictions(record)
        self._drc_hit.labels(site).observe(record.drc_hit_rate)
        self._eager.labels(site).inc(record.eager_tokens)
        self._output.labels(Role.RELAY.value).inc(record.eager_tokens)
        self._output.labels(Role.MAIN.value).inc(record.output_tokens - record.eager_tokens)
        self._resumes.labels(site).inc(record.resumes)
        if record.handoff_mode:
            self._handoffs.labels(record.handoff_mode, "resumed" if record.resumes else "completed").inc()
        if record.handoff_mode and record.handoff_stall_s is not None:
            self._handoff.labels(record.handoff_mode).observe(record.handoff_stall_s)

    def _count_predictions(self, record: RequestRecord) -> None:
        """Add what was foretold of prefixes against what engines reported."""
        if record.prefix_hit_rate is not None:
            error = record.predicted_prefix_hit_rate - record.prefix_hit_rate
            self._hit_error.labels(self.site).observe(error)
        self._recomputed.labels("catch_up").inc(record.caught_up_tokens)
        if record.recomputed_tokens is not None:
            expected = min(record.recomputed_tokens, record.expected_recomputed_tokens or 0)
            self._recomputed.labels("extend").inc(expected)
            self._recomputed.labels("evicted").inc(record.recomputed_tokens - expected)
        self._repulls.labels(self.site).inc(record.repulls)

    def count_transfer(
        self, link: str, pipeline: str, seconds: float, size_bytes: int, predicted_s: float | None
    ) -> None:
        """Add one transfer that arrived, also after its request had ended; `predicted_s` is None for a second one."""
        if predicted_s is not None and (larger_s := max(predicted_s, seconds)) > 0.0:
            self._transfer_error.labels(self.site).observe((predicted_s - seconds) / larger_s)
        self._transfer.labels(link, pipeline).observe(seconds)
        self._transfer_bytes.labels(link, pipeline).inc(size_bytes)

    def count_unread(self) -> None:
        """Add a request that was refused before it could be read."""
        self._requests.labels(self.site, "none", Outcome.REJECTED.value).inc()

    def render(self, state: GatewayState, config: RunningConfig | None, dropped_records: int) -> bytes:
        """All metrics in Prometheus's text format, gauges read now."""
        self._in_flight.labels(self.site).set(state.requests_in_flight)
        self._transfers.labels(self.site).set(state.index.transfers)
        self._mismatches.labels(self.site).set(state.token_mismatches)
        self._dropped.labels(self.site).set(dropped_records)
        self._revision.clear()
        for gauge in (self._cache_lag, self._stranded, self._stranded_age):
            gauge.clear()
        if config is not None:
            for node in config.fleet.nodes_of(Role.MAIN):
                blocks = state.index.in_flight_blocks(node.name)
                self._cache_lag.labels(self.site, node.name).set(blocks * config.fleet.block_tokens)
            for node in config.fleet.nodes_of(Role.PREFILL):
                if (stranded := state.stranded.get(node.name)) is not None:
                    self._stranded.labels(self.site, node.name).set(stranded.size_bytes)
                    self._stranded_age.labels(self.site, node.name).set(stranded.age_s)
            self._relay_use.labels(self.site).set(relay_utilization(state, config.fleet.nodes_of(Role.RELAY)))
            self._revision.labels(self.site, str(config.revision)).set(1)
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _node_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["site", "node"], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["site"], registry=self.registry)
