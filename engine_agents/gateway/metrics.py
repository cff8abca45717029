"""Prometheus metrics of one gateway."""

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from control.domain.outcome import Outcome
from control.domain.topology import Role
from control.metric_catalogue import MetricFacts, Process, metric
from control.telemetry.records import RequestRecord
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.metric_series import Counters, Histograms
from engine_agents.gateway.planning import relay_utilization
from engine_agents.gateway.state import GatewayState

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0)
_LONG_SECONDS = (*_SECONDS, 45.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
_ERROR_RATIOS = (-0.9, -0.75, -0.5, -0.25, -0.1, -0.05, 0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_RATIOS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0)


_RELAY, _MAIN = (Role.RELAY.value,), (Role.MAIN.value,)


class _Makers:
    """Makes the metrics of one registry as the catalogue has them; the first label of many is the site itself."""

    def __init__(self, registry: CollectorRegistry, site: str) -> None:
        self._registry = registry
        self._site = site

    def counter(self, name: str) -> Counters:
        """A counter, named without `_total`."""
        facts = metric(Process.GATEWAY, name)
        return Counters(self._registry, name, facts.text, facts.labels, fixed=self._fixed(facts))

    def histogram(self, name: str, buckets: tuple[float, ...]) -> Histograms:
        """A histogram."""
        facts = metric(Process.GATEWAY, name)
        return Histograms(self._registry, name, facts.text, facts.labels, bounds=buckets, fixed=self._fixed(facts))

    def gauge(self, name: str) -> Gauge:
        """A gauge of the site."""
        facts = metric(Process.GATEWAY, name)
        return Gauge(name, facts.text, facts.labels, registry=self._registry)

    def _fixed(self, facts: MetricFacts) -> tuple[str, ...]:
        return (self._site,) if facts.labels[:1] == ("site",) else ()


class _RequestMetrics:
    """How many requests, how they were served, and how long they took."""

    def __init__(self, make: _Makers) -> None:
        self._requests = make.counter("pdd_requests")
        self._class_requests = make.counter("pdd_class_requests")
        self._reasons = make.counter("pdd_routing_decisions")
        self._ttft = make.histogram("pdd_request_ttft_seconds", _LONG_SECONDS)
        self._tpot = make.histogram("pdd_request_tpot_seconds", _TOKEN_SECONDS)
        self._e2e = make.histogram("pdd_request_e2e_seconds", _LONG_SECONDS)
        self._overhead = make.histogram("pdd_gateway_overhead_seconds", _TOKEN_SECONDS)[()]
        self._resumes = make.counter("pdd_resumes")

    def count(self, record: RequestRecord) -> None:
        """Add a request that ended in any way."""
        pipeline = record.pipeline or "none"
        self._requests[pipeline, record.outcome] += 1
        self._class_requests[record.service_class, record.outcome] += 1
        if record.reason:
            self._reasons[pipeline, record.reason] += 1

    def count_unread(self) -> None:
        """Add a request that was refused before it could be read."""
        self._requests["none", Outcome.REJECTED.value] += 1

    def time(self, record: RequestRecord) -> None:
        """Add the times of a request that was completed."""
        pipeline = (record.pipeline or "none",)
        self._e2e[pipeline].observe(record.e2e_s)
        self._overhead.observe(record.gateway_overhead_s)
        if record.ttft_s is not None:
            self._ttft[pipeline].observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot[pipeline].observe(record.tpot_s)
        if record.resumes:
            self._resumes[()] += record.resumes


class _PrefixMetrics:
    """What nodes had of the prompts, and how well that was foretold."""

    def __init__(self, make: _Makers) -> None:
        self._prefix_hit = make.histogram("pdd_prefix_hit_ratio", _RATIOS)[()]
        self._drc_hit = make.histogram("pdd_drc_hit_ratio", _RATIOS)[()]
        self._hit_error = make.histogram("pdd_prefix_hit_prediction_error_ratio", _ERROR_RATIOS)[()]
        self._drc_error = make.histogram("pdd_drc_hit_prediction_error_ratio", _ERROR_RATIOS)[()]
        self._repulls = make.counter("pdd_repulls")

    def count(self, record: RequestRecord) -> None:
        """Add a request that was completed."""
        hit_rate = record.prefix_hit_rate
        if hit_rate is not None:
            self._prefix_hit.observe(hit_rate)
            self._hit_error.observe(record.predicted_prefix_hit_rate - hit_rate)
        self._drc_hit.observe(record.drc_hit_rate)
        if (reported := record.reported_drc_hit_rate) is not None:
            self._drc_error.observe(record.drc_hit_rate - reported)
        if record.repulls:
            self._repulls[()] += record.repulls


class _HandoffMetrics:
    """Who made the tokens, and what a handoff cost."""

    def __init__(self, make: _Makers) -> None:
        self._eager = make.counter("pdd_eager_tokens")
        self._output = make.counter("pdd_output_tokens")
        self._handoff = make.histogram("pdd_handoff_seconds", _SECONDS)
        self._handoffs = make.counter("pdd_handoffs")
        self._recomputed = make.counter("pdd_recomputed_tokens")

    def count(self, record: RequestRecord) -> None:
        """Add a request that was completed."""
        self._eager[()] += record.eager_tokens
        self._output[_RELAY] += record.eager_tokens
        self._output[_MAIN] += record.output_tokens - record.eager_tokens
        if record.caught_up_tokens:
            self._recomputed["catch_up",] += record.caught_up_tokens
        if record.recomputed_tokens is not None:
            expected = min(record.recomputed_tokens, record.expected_recomputed_tokens or 0)
            self._recomputed["extend",] += expected
            self._recomputed["evicted",] += record.recomputed_tokens - expected
        if record.handoff_mode:
            self._handoffs[record.handoff_mode, "resumed" if record.resumes else "completed"] += 1
            if record.handoff_stall_s is not None:
                self._handoff[record.handoff_mode,].observe(record.handoff_stall_s)


class _TransferMetrics:
    """KV on its way to MD."""

    def __init__(self, make: _Makers) -> None:
        self._seconds = make.histogram("pdd_kv_transfer_seconds", _LONG_SECONDS)
        self._bytes = make.counter("pdd_kv_transfer_bytes")
        self._error = make.histogram("pdd_transfer_prediction_error_ratio", _ERROR_RATIOS)[()]

    def count(self, link: str, pipeline: str, seconds: float, size_bytes: int, predicted_s: float | None) -> None:
        """Add one transfer that arrived."""
        if predicted_s is not None and (larger_s := max(predicted_s, seconds)) > 0.0:
            self._error.observe((predicted_s - seconds) / larger_s)
        self._seconds[link, pipeline].observe(seconds)
        self._bytes[link, pipeline] += size_bytes


class _Gauges:
    """What holds now."""

    def __init__(self, make: _Makers, site: str) -> None:
        self._site = site
        self._in_flight = make.gauge("pdd_requests_in_flight")
        self._transfers = make.gauge("pdd_kv_transfers_in_flight")
        self._waiting = make.gauge("pdd_link_waiting_transfers")
        self._relay_use = make.gauge("pdd_relay_utilization_ratio")
        self._mismatches = make.gauge("pdd_handoff_token_mismatches")
        self._dropped = make.gauge("pdd_telemetry_dropped_records")
        self._revision = make.gauge("pdd_policy_revision_info")
        self._canary = make.gauge("pdd_policy_canary_revision_info")
        self._cache_lag = make.gauge("pdd_cache_lag_tokens")
        self._stranded = make.gauge("pdd_stranded_kv_bytes")
        self._stranded_age = make.gauge("pdd_stranded_kv_age_seconds")

    def read(self, state: GatewayState, config: RunningConfig | None, dropped_records: int) -> None:
        """Set all of them; series of nodes and revisions that are gone end."""
        self._in_flight.labels(self._site).set(state.requests_in_flight)
        self._transfers.labels(self._site).set(state.index.transfers)
        self._mismatches.labels(self._site).set(state.token_mismatches)
        self._dropped.labels(self._site).set(dropped_records)
        for gauge in (
            self._revision,
            self._canary,
            self._cache_lag,
            self._stranded,
            self._stranded_age,
            self._waiting,
        ):
            gauge.clear()
        if config is None:
            return
        for link in config.fleet.links:
            self._waiting.labels(self._site, link.name).set(state.places.waiting(link.name))
        for node in config.fleet.nodes_of(Role.MAIN):
            self._cache_lag.labels(self._site, node.name).set(state.cache_lag.of_node(node.name))
        for node in config.fleet.nodes_of(Role.PREFILL):
            if (stranded := state.stranded.get(node.name)) is not None:
                self._stranded.labels(self._site, node.name).set(stranded.size_bytes)
                self._stranded_age.labels(self._site, node.name).set(stranded.age_s)
        self._relay_use.labels(self._site).set(relay_utilization(state, config.fleet.nodes_of(Role.RELAY)))
        self._revision.labels(self._site, str(config.revision)).set(1)
        if config.canary is not None:
            self._canary.labels(self._site, str(config.canary.revision)).set(1)


class GatewayMetrics:
    """What a gateway counts; each has its own registry, so several can live in one process."""

    def __init__(self, site: str) -> None:
        self.registry = CollectorRegistry()
        make = _Makers(self.registry, site)
        self._requests = _RequestMetrics(make)
        self._prefixes = _PrefixMetrics(make)
        self._handoffs = _HandoffMetrics(make)
        self._transfers = _TransferMetrics(make)
        self._gauges = _Gauges(make, site)

    def count(self, record: RequestRecord) -> None:
        """Add one request."""
        self._requests.count(record)
        if record.outcome == Outcome.COMPLETED.value:
            self._requests.time(record)
            self._prefixes.count(record)
            self._handoffs.count(record)

    def count_unread(self) -> None:
        """Add a request that was refused before it could be read."""
        self._requests.count_unread()

    def count_transfer(
        self, link: str, pipeline: str, seconds: float, size_bytes: int, predicted_s: float | None
    ) -> None:
        """Add one transfer that arrived, also after its request had ended; `predicted_s` is None for a second one."""
        self._transfers.count(link, pipeline, seconds, size_bytes, predicted_s)

    def render(self, state: GatewayState, config: RunningConfig | None, dropped_records: int) -> bytes:
        """All metrics in Prometheus's text format, gauges read now."""
        self._gauges.read(state, config, dropped_records)
        return generate_latest(self.registry)
