"""Metrics of the request path read as the Prometheus library's own would."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from engine_agents.gateway.metric_series import Counters, Histograms

VALUES = (-2.0, 0.0, 0.1, 0.11, 1.0, 7.0, 1e9)


def text_of(registry):
    """What is read, but for the times at which the library's series were made."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@pytest.mark.parametrize("bounds", [(0.1, 1.0, 30.0), (-1.0, 0.0, 1.0)])
def test_counters_and_histograms_read_like_the_librarys(bounds):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counters = Counters(ours, "pdd_x", "X.", ("site", "pipeline"), fixed=("ams",))
    counter = Counter("pdd_x", "X.", ("site", "pipeline"), registry=theirs)
    histograms = Histograms(ours, "pdd_y_seconds", "Y.", ("site", "pipeline"), bounds=bounds, fixed=("ams",))
    histogram = Histogram("pdd_y_seconds", "Y.", ("site", "pipeline"), buckets=bounds, registry=theirs)
    for pipeline in ("relay", "direct"):
        counters[pipeline,] += 3
        counter.labels("ams", pipeline).inc(3)
        for value in VALUES:
            histograms[pipeline,].observe(value)
            histogram.labels("ams", pipeline).observe(value)
    assert text_of(ours) == text_of(theirs)
    assert 'pdd_x_total{pipeline="relay",site="ams"} 3.0' in text_of(ours)


def test_a_metric_without_series_still_has_its_name_taken():
    registry = CollectorRegistry()
    Counters(registry, "pdd_x", "X.", (), fixed=())
    assert text_of(registry) == ["# HELP pdd_x_total X.", "# TYPE pdd_x_total counter"]
