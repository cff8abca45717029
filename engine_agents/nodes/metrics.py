"""A node's `/metrics`: vLLM's names where it has one, ours for leases and KV exchange, read when scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.metric_catalogue import Process, metric
from engine_agents.nodes.node import Node

LABELS = ("model_name", "engine")


class NodeCollector(Collector):
    """Turns one node's state into metric families; keeps nothing of its own."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._labels = (node.engine.model, "0")

    def collect(self) -> Iterator[Metric]:
        """All families, as they stand now."""
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterator[Metric]:
        node, store = self._node, self._node.engine.store
        stranded = node.leases.stranded()
        rows: tuple[tuple[str, float], ...] = (
            ("vllm:num_requests_running", node.admission.running),
            ("vllm:num_requests_waiting", node.admission.waiting),
            ("vllm:kv_cache_usage_perc", _share(node)),
            ("pdd_node_slots", node.engine.slots),
            ("pdd_node_pulls_running", node.puller.running),
            ("pdd_node_store_resident_tokens", store.resident_tokens),
            ("pdd_node_store_resident_bytes", store.resident_bytes),
            ("pdd_node_store_capacity_tokens", store.capacity_tokens),
            ("pdd_node_leases", len(node.leases)),
            ("pdd_node_leased_bytes", node.leases.leased_bytes()),
            ("pdd_stranded_kv_bytes", stranded.size_bytes),
            ("pdd_stranded_kv_age_seconds", stranded.oldest_age_s),
            ("pdd_node_progress_age_seconds", node.progress.age_s()),
        )
        for name, value in rows:
            family = GaugeMetricFamily(name, metric(Process.NODE, name).text, labels=LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        node, counters, store = self._node, self._node.counters, self._node.engine.store.counters
        rows: tuple[tuple[str, float], ...] = (
            ("vllm:prompt_tokens", counters.prompt_tokens),
            ("vllm:generation_tokens", counters.decode_tokens),
            ("pdd_node_requests", counters.requests),
            ("pdd_node_pulls", counters.pulls),
            ("pdd_node_failed_pulls", counters.failed_pulls),
            ("pdd_node_resumed_pulls", counters.resumed_pulls),
            ("pdd_node_pulled_bytes", counters.pulled_bytes),
            ("pdd_node_joined_bytes", counters.joined_bytes),
            ("pdd_node_failed_joins", counters.failed_joins),
            ("pdd_node_served_bytes", counters.served_bytes),
            ("pdd_node_expired_leases", node.leases.expired_total),
            ("pdd_node_stored_blocks", store.stored_blocks),
            ("pdd_node_evicted_blocks", store.evicted_blocks),
            ("pdd_node_refused_blocks", store.refused_blocks),
        )
        for name, value in rows:
            family = CounterMetricFamily(name, metric(Process.NODE, name).text, labels=LABELS)
            family.add_metric(self._labels, value)
            yield family
        yield self._by_source()
        yield self._by_outcome()

    def _by_source(self) -> Metric:
        counters = self._node.counters
        family = _counter("vllm:prompt_tokens_by_source")
        family.add_metric((*self._labels, "local_compute"), counters.prefill_tokens)
        family.add_metric((*self._labels, "local_cache_hit"), counters.resident_tokens)
        family.add_metric(
            (*self._labels, "external_kv_transfer"),
            counters.prompt_tokens - counters.prefill_tokens - counters.resident_tokens,
        )
        return family

    def _by_outcome(self) -> Metric:
        counters = self._node.counters
        family = _counter("pdd_node_request_outcomes")
        for outcome in ("completed", "client_closed", "rejected", "failed"):
            family.add_metric((*self._labels, outcome), getattr(counters, outcome))
        return family


def _counter(name: str) -> CounterMetricFamily:
    facts = metric(Process.NODE, name)
    return CounterMetricFamily(name, facts.text, labels=facts.labels)


def _share(node: Node) -> float:
    capacity = node.engine.store.capacity_tokens
    return node.engine.store.resident_tokens / capacity if capacity else 0.0


def registry_of(node: Node) -> CollectorRegistry:
    """A registry of this node alone, so that many nodes fit in one process."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return registry
