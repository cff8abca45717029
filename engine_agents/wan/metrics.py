"""The relay's figures in Prometheus form, read from the links when scraped."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from control.metric_catalogue import Process, metric
from engine_agents.wan.link import ShapedLink

_GAUGES: dict[str, Callable[[ShapedLink], float]] = {
    "pdd_kv_transfers_in_flight": lambda link: len(link.transfers),
    "pdd_link_streams": lambda link: len(link.flows),
    "pdd_link_queue_depth": lambda link: link.waiting_transfers,
    "pdd_link_longest_wait_seconds": lambda link: link.longest_wait_s,
    "pdd_link_queued_bytes": lambda link: sum(flow.queued_bytes for flow in link.flows),
    "pdd_link_utilization_ratio": lambda link: link.utilization(),
}


class LinkCollector(Collector):
    """Turns the counters of the links into metric families."""

    def __init__(self, links: Iterable[ShapedLink]) -> None:
        self._links = tuple(links)

    def collect(self) -> Iterator[Metric]:
        """All families, as they stand now."""
        for name, value in _GAUGES.items():
            facts = metric(Process.WAN, name)
            gauge = GaugeMetricFamily(name, facts.text, labels=facts.labels)
            for link in self._links:
                gauge.add_metric((link.name,), value(link))
            yield gauge
        yield self._sent()
        yield self._cut()
        yield self._waits()

    def _sent(self) -> Metric:
        facts = metric(Process.WAN, "pdd_kv_transfer_bytes")
        sent = CounterMetricFamily(facts.family, facts.text, labels=facts.labels)
        for link in self._links:
            for (pipeline, service_class), count in link.bytes_by.items():
                sent.add_metric((link.name, pipeline, service_class), count)
        return sent

    def _cut(self) -> Metric:
        facts = metric(Process.WAN, "pdd_link_cut_transfers")
        cut = CounterMetricFamily(facts.family, facts.text, labels=facts.labels)
        for link in self._links:
            cut.add_metric((link.name,), link.cut_transfers_total)
        return cut

    def _waits(self) -> Metric:
        facts = metric(Process.WAN, "pdd_link_queue_wait_seconds")
        waits = HistogramMetricFamily(facts.family, facts.text, labels=facts.labels)
        for link in self._links:
            waits.add_metric((link.name,), link.waits.cumulative(), link.waits.sum_s)
        return waits


def link_registry(links: Iterable[ShapedLink]) -> CollectorRegistry:
    """A registry with nothing but the links."""
    registry = CollectorRegistry()
    registry.register(LinkCollector(links))
    return registry
