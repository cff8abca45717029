"""A node's `/metrics`: vLLM's names where it has one, ours for leases and KV exchange, read when scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
        rows: tuple[tuple[str, str, float], ...] = (
            ("vllm:num_requests_running", "Requests that hold a slot.", node.admission.running),
            ("vllm:num_requests_waiting", "Requests that wait for a slot.", node.admission.waiting),
            ("vllm:kv_cache_usage_perc", "Resident share of the block store, 0 to 1.", _share(node)),
            ("pdd_node_slots", "Requests that can run at once.", node.engine.slots),
            ("pdd_node_pulls_running", "Pulls under way.", node.puller.running),
            ("pdd_node_store_resident_tokens", "Tokens whose KV is resident.", store.resident_tokens),
            ("pdd_node_store_resident_bytes", "Bytes of resident KV.", store.resident_bytes),
            ("pdd_node_store_capacity_tokens", "Tokens that the store has room for.", store.capacity_tokens),
            ("pdd_node_leases", "Live leases.", len(node.leases)),
            ("pdd_node_leased_bytes", "Bytes that leases keep resident.", node.leases.leased_bytes()),
            ("pdd_stranded_kv_bytes", "Bytes leased while nobody reads them.", stranded.size_bytes),
            ("pdd_stranded_kv_age_seconds", "Age of the oldest lease that nobody reads.", stranded.oldest_age_s),
            ("pdd_node_progress_age_seconds", "Seconds since anything moved.", node.progress.age_s()),
        )
        for name, text, value in rows:
            family = GaugeMetricFamily(name, text, labels=LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        node, counters, store = self._node, self._node.counters, self._node.engine.store.counters
        rows: tuple[tuple[str, str, float], ...] = (
            ("vllm:prompt_tokens", "Prompt tokens of requests that began.", counters.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", counters.decode_tokens),
            ("pdd_node_requests", "Requests received.", counters.requests),
            ("pdd_node_pulls", "Pulls begun.", counters.pulls),
            ("pdd_node_failed_pulls", "Pulls that failed.", counters.failed_pulls),
            ("pdd_node_resumed_pulls", "Times a pull went on after it was broken.", counters.resumed_pulls),
            ("pdd_node_pulled_bytes", "Bytes received by pulls.", counters.pulled_bytes),
            ("pdd_node_joined_bytes", "Bytes not pulled, as a block began with resident KV.", counters.joined_bytes),
            ("pdd_node_failed_joins", "Resident beginnings that were not the sender's KV.", counters.failed_joins),
            ("pdd_node_served_bytes", "Bytes of KV served to other nodes.", counters.served_bytes),
            ("pdd_node_expired_leases", "Leases that expired unread.", node.leases.expired_total),
            ("pdd_node_stored_blocks", "Blocks that entered the store.", store.stored_blocks),
            ("pdd_node_evicted_blocks", "Blocks evicted for room.", store.evicted_blocks),
            ("pdd_node_refused_blocks", "Blocks refused because all room was pinned.", store.refused_blocks),
        )
        for name, text, value in rows:
            family = CounterMetricFamily(name, text, labels=LABELS)
            family.add_metric(self._labels, value)
            yield family
        yield self._by_source()
        yield self._by_outcome()

    def _by_source(self) -> Metric:
        counters = self._node.counters
        family = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from.", labels=(*LABELS, "source")
        )
        family.add_metric((*self._labels, "local_compute"), counters.prefill_tokens)
        family.add_metric((*self._labels, "local_cache_hit"), counters.resident_tokens)
        family.add_metric(
            (*self._labels, "external_kv_transfer"),
            counters.prompt_tokens - counters.prefill_tokens - counters.resident_tokens,
        )
        return family

    def _by_outcome(self) -> Metric:
        counters = self._node.counters
        family = CounterMetricFamily(
            "pdd_node_request_outcomes", "Requests by how they ended.", labels=(*LABELS, "outcome")
        )
        for outcome in ("completed", "client_closed", "rejected", "failed"):
            family.add_metric((*self._labels, outcome), getattr(counters, outcome))
        return family


def _share(node: Node) -> float:
    capacity = node.engine.store.capacity_tokens
    return node.engine.store.resident_tokens / capacity if capacity else 0.0


def registry_of(node: Node) -> CollectorRegistry:
    """A registry of this node alone, so that many nodes fit in one process."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return registry
