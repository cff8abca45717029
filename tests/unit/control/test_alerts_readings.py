"""Every metric from the sums in SQL: right where there is data, unknown where there is none."""

from datetime import timedelta

import pytest

from control.domain.alert_metrics import METRICS
from control.services.alert_readings import MetricReader
from control.services.rollout import Report, record_report
from tests.unit.control.rollup_writers import consume, hear, write_link, write_requests, write_site


def read(plane, metric, window_s=300):
    with plane.database.reading() as session:
        readings = MetricReader(session, plane.now()).read(metric, window_s)
    return {tuple(reading.labels.values()): reading.value for reading in readings}


def test_every_metric_of_the_list_can_be_read_and_is_unknown_without_data(seeded):
    names = [metric.name for metric in METRICS]
    assert {value for name in names for value in read(seeded, name).values()} == {None}
    consume(seeded)
    known = {name for name in names if set(read(seeded, name).values()) - {None}}
    assert known == {"telemetry_lag_s"}


def test_labels_are_those_that_the_list_says(seeded):
    write_requests(seeded)
    hear(seeded)
    with seeded.database.reading() as session:
        reader = MetricReader(session, seeded.now())
        for metric in METRICS:
            for reading in reader.read(metric.name, 300):
                assert tuple(reading.labels) == metric.labels, metric.name


def test_requests_make_quantiles_ratios_and_rates(seeded):
    consume(seeded)
    write_requests(seeded, 90, ttft_s=1.0)
    write_requests(seeded, 10, ttft_s=20.0, pipeline="relay", eager_tokens=50, transfer_s=4.0, cached_tokens=400)
    write_requests(seeded, 25, outcome="failed", ttft_s=None, tpot_s=None, output_tokens=0, cached_tokens=None)
    ams = ("ams", "default")
    assert read(seeded, "ttft_p50_s")[ams] == pytest.approx(1.0, rel=0.02)
    assert read(seeded, "ttft_p99_s")[ams] == pytest.approx(20.0, rel=0.02)
    assert read(seeded, "error_ratio")[ams] == 0.2
    assert read(seeded, "rld_share") == {("ams",): 0.05, ("fra",): None}
    assert read(seeded, "transfer_p99_s")[("ams",)] == pytest.approx(4.0, rel=0.02)
    assert read(seeded, "valley_share")[("ams",)] == 0.1


def test_no_traffic_is_zero_only_where_a_gateway_says_so(seeded):
    consume(seeded)
    write_site(seeded, gateway_batches=40)
    assert read(seeded, "requests_per_s") == {("ams",): 0.0, ("fra",): None}
    write_requests(seeded, 61)
    assert 61 / 310 <= read(seeded, "requests_per_s")[("ams",)] <= 61 / 300


def test_cache_lag_is_the_mean_over_time_of_tokens_on_their_way(seeded):
    consume(seeded)
    write_requests(seeded, 10, pipeline="relay", uncached_tokens=600, transfer_s=5.0)
    assert 10 * 600 * 5 / 310 <= read(seeded, "cache_lag_tokens")[("ams",)] <= 10 * 600 * 5 / 300


def test_links_and_nodes_report_through_their_samples(seeded):
    consume(seeded)
    write_link(seeded, samples=10, down_samples=2, flaps=4, total_bytes=500, capacity_bytes=1000.0, seconds=1.0)
    write_site(seeded, observer_batches=10, stranded_bytes=5000, relay_running=30, relay_slots=40)
    assert read(seeded, "link_utilization") == {("ams-fra",): 0.5}
    assert read(seeded, "link_down_share") == {("ams-fra",): 0.2}
    assert read(seeded, "link_flaps") == {("ams-fra",): 4.0}
    assert read(seeded, "stranded_kv_bytes")[("ams",)] == 500.0
    assert read(seeded, "relay_utilization")[("ams",)] == 0.75


def test_silence_is_counted_from_whoever_was_heard_last(seeded, clock):
    hear(seeded, age_s=50)
    hear(seeded, kind="observer", name="ams-observer", age_s=3)
    assert read(seeded, "site_silence_s") == {("ams",): pytest.approx(3.0), ("fra",): None}
    clock.advance(seconds=40)
    consume(seeded)
    assert read(seeded, "site_silence_s")[("ams",)] == pytest.approx(43.0)


def test_when_the_consumer_stands_still_all_that_it_sums_up_is_unknown(seeded, clock):
    write_requests(seeded, 10)
    hear(seeded)
    clock.advance(seconds=61)
    assert read(seeded, "ttft_p99_s") == {("ams", "default"): None}
    assert read(seeded, "site_silence_s") == {("ams",): None, ("fra",): None}
    assert read(seeded, "telemetry_lag_s") == {(): 61.0}


def test_drift_is_known_only_of_gateways_that_were_heard(seeded, clock):
    assert read(seeded, "drifted_gateways") == {("ams",): None}
    for revision, expected in ((1, 0.0), (7, 1.0)):
        clock.advance(seconds=1)
        at = seeded.now()
        record_report(seeded, Report("o", "ams-gw-01", "ams", revision, "applied", "", at))
        assert read(seeded, "drifted_gateways") == {("ams",): expected}
    clock.advance(seconds=31)
    assert read(seeded, "drifted_gateways") == {("ams",): None}


def test_objectives_burn_per_name(seeded):
    consume(seeded)
    write_requests(seeded, 50, ttft_s=12.0)
    rates = read(seeded, "slo_burn_fast")
    assert rates[("default-ttft-p90",)] == pytest.approx(10.0)
    assert rates[("default-ttft-p99",)] == 0.0
    assert rates[("default-availability",)] == 0.0


def test_collapse_compares_with_the_hours_before(seeded, clock):
    for _ in range(5):
        write_requests(seeded, 20, pipeline="relay", eager_tokens=3, transfer_s=0.3, uncached_tokens=100)
        clock.advance(minutes=30)
    consume(seeded)
    assert read(seeded, "collapse_growth") == {("ams",): None, ("fra",): None}
    write_requests(seeded, 30, pipeline="relay", eager_tokens=40, transfer_s=9.0, uncached_tokens=900)
    assert read(seeded, "collapse_growth")[("ams",)] > 5
    write_requests(seeded, 30, pipeline="relay", eager_tokens=40, transfer_s=9.0, uncached_tokens=900, ttft_s=60.0)
    with seeded.database.reading() as session:
        [ams, _] = MetricReader(session, seeded.now() + timedelta(seconds=1)).read("collapse_growth", 300)
    assert not ams.may_start
