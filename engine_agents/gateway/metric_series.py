"""Counters and histograms for the request path: counting is one step, and Prometheus's form is made when it is read."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


def _bound_text(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


class _Reader(Collector):
    """What a registry keeps of a metric; the metric itself is a dictionary, which a registry cannot keep."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Read all series."""
        return self._families()


class Counters(defaultdict[Labels, float]):
    """The series of one counter by the values of its labels: `counters["relay",] += 1`."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: Labels, *, fixed: Labels) -> None:
        """Take the names of all labels, and the values of those that stand first and are the same in each series."""
        super().__init__(float)
        self._family = (name, text, labels)
        self._fixed = fixed
        registry.register(_Reader(self.families))

    def families(self) -> Iterator[Metric]:
        """All series, in Prometheus's form."""
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in self.items():
            family.add_metric((*self._fixed, *values), count)
        yield family


class Observations:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add a value; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histograms(dict[Labels, Observations]):
    """The series of one histogram by the values of its labels: `histograms["relay",].observe(0.2)`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: Labels,
        *,
        bounds: Sequence[float],
        fixed: Labels,
    ) -> None:
        """Take the upper bounds of all buckets but the last, which has none; the rest is as with counters."""
        super().__init__()
        self._family = (name, text, labels)
        self._bounds = bounds
        self._fixed = fixed
        registry.register(_Reader(self.families))

    def __missing__(self, values: Labels) -> Observations:
        series = self[values] = Observations(self._bounds)
        return series

    def families(self) -> Iterator[Metric]:
        """All series, in Prometheus's form."""
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, series in self.items():
            where, reached = dict(zip(labels, (*self._fixed, *values), strict=True)), 0
            for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
                reached += count
                family.add_sample(f"{name}_bucket", {**where, "le": _bound_text(bound)}, reached)
            family.add_sample(f"{name}_count", where, reached)
            if self._bounds[0] >= 0:  # a sum of values of both signs is no counter
                family.add_sample(f"{name}_sum", where, series.total)
        yield family
