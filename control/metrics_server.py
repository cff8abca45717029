"""`/metrics` of processes that serve nothing else."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from control.metric_catalogue import Kind, MetricFacts

Reading = tuple[MetricFacts, Iterable[tuple[tuple[str, ...], float]]]
"""A metric, and its series by the values of their labels."""


class _Reader(Collector):
    def __init__(self, readings: Callable[[], Iterable[Reading]]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """All metrics as they stand now."""
        for facts, series in self._readings():
            kind = CounterMetricFamily if facts.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(facts.family, facts.text, labels=facts.labels)
            for values, value in series:
                family.add_metric(values, value)
            yield family


def registry_of(readings: Callable[[], Iterable[Reading]]) -> CollectorRegistry:
    """A registry of what is read at each scrape, in another thread, and of the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_Reader(readings))
    return registry


def serve_metrics(address: str, readings: Callable[[], Iterable[Reading]]) -> None:
    """Answer `GET /metrics` on `host:port` from a thread as long as the process lives; no address means nothing.

    Raises:
        ValueError: the address is none.
        OSError: it cannot be listened on.
    """
    if not address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"PDD_METRICS_ADDRESS must be host:port, not {address!r}.")
    start_http_server(int(port), host.strip("[]"), registry_of(readings))
