"""The relay's figures in Prometheus form, read from the links when scraped."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engine_agents.wan.link import ShapedLink


class LinkCollector(Collector):
    """Turns the counters of the links into metric families."""

    def __init__(self, links: Iterable[ShapedLink]) -> None:
        self._links = tuple(links)

    def collect(self) -> Iterator[Metric]:
        """One family each for bytes, flows, queue and utilisation."""
        sent = CounterMetricFamily(
            "pdd_kv_transfer_bytes", "KV bytes that entered the link.", labels=("link", "pipeline")
        )
        flows = GaugeMetricFamily("pdd_kv_transfers_in_flight", "Transfers on the link now.", labels=("link",))
        queued = GaugeMetricFamily("pdd_link_queued_bytes", "Bytes read that wait for the link.", labels=("link",))
        used = GaugeMetricFamily(
            "pdd_link_utilization_ratio", "Bytes per second over the last second / capacity.", labels=("link",)
        )
        for link in self._links:
            for pipeline, count in link.bytes_by_pipeline.items():
                sent.add_metric((link.name, pipeline), count)
            flows.add_metric((link.name,), len(link.flows))
            queued.add_metric((link.name,), sum(flow.queued_bytes for flow in link.flows))
            used.add_metric((link.name,), link.utilization())
        yield from (sent, flows, queued, used)


def link_registry(links: Iterable[ShapedLink]) -> CollectorRegistry:
    """A registry with nothing but the links."""
    registry = CollectorRegistry()
    registry.register(LinkCollector(links))
    return registry
