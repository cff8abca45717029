"""Sums over any range of time over REST: what nobody asked is zero, what nobody reported is null."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.rollups import COARSE, FINE, MIDDLE
from control.services.access import Role
from control.services.credentials import ensure_token
from control.services.history import MAX_POINTS, fitting_spans, span_starts
from control.settings import Settings
from tests.unit.control.rollup_writers import record_of, write_batch, write_link, write_site

API = "/api/v1/history"
HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture
def client(seeded):
    ensure_token(seeded, "vera", Role.VIEWER, "secret")
    with TestClient(create_api(Settings.from_environment({}), seeded)) as opened:
        opened.headers["Authorization"] = "Bearer secret"
        yield opened


def history(client, kind="requests", **params):
    answer = client.get(f"{API}/{kind}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_no_data_is_null_and_no_traffic_is_zero(client, seeded, clock):
    write_site(seeded, age_s=100, gateway_batches=40)
    write_batch(seeded, record_of(seeded, age_s=10))
    found = history(client)
    [series] = found["series"]
    known = {at_s: count for at_s, count in zip(found["at_s"], series["requests"], strict=True) if count is not None}
    assert sorted(known.values()) == [0, 0, 1]
    assert len(series["requests"]) > 300
    at = series["requests"].index(0)
    assert (series["ttft_p99_s"][at], series["cache_lag_tokens"][at], series["slowest_id"][at]) == (None, 0.0, None)


def test_quantiles_equal_those_of_the_records_within_one_percent_and_counts_exactly(client, seeded):
    rng = np.random.default_rng(5)
    first_s, each_s = rng.lognormal(-1, 1, 2000).clip(0.001, 100), rng.lognormal(-4, 0.5, 2000).clip(0.001, 10)
    write_batch(
        seeded,
        *(
            record_of(seeded, f"r{n}", age_s=20 + n % 20, ttft_s=float(first), tpot_s=float(each), e2e_s=1.0)
            for n, (first, each) in enumerate(zip(first_s, each_s, strict=True))
        ),
    )
    now = seeded.now()
    found = history(client, since=(now.replace(hour=0)).isoformat(), until=now.isoformat())
    assert found["span_s"] == MIDDLE.span_s
    [series] = found["series"]
    [place] = [index for index, count in enumerate(series["requests"]) if count]
    assert series["requests"][place] == 2000
    for name, values in (("ttft", first_s), ("tpot", each_s)):
        for rank, word in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            if f"{name}_{word}_s" in series:
                exact = np.quantile(values, rank, method="inverted_cdf")
                assert series[f"{name}_{word}_s"][place] == pytest.approx(exact, rel=0.01), (name, word)
    assert series["slowest_id"][place] == f"r{first_s.argmax()}"
    assert series["slowest_ttft_s"][place] == first_s.max()


def test_series_are_told_apart_and_filtered(client, seeded):
    write_batch(
        seeded,
        record_of(seeded, "a"),
        record_of(seeded, "b", pipeline="relay", cached_tokens=100, handoff_mode="catch_up", service_class="gold"),
        record_of(seeded, "c", policy_revision=2, cached_tokens=None),
    )

    def totals(**params):
        return {one["name"]: sum(n or 0 for n in one["requests"]) for one in history(client, **params)["series"]}

    assert totals(by="pipeline") == {"direct": 2, "relay": 1}
    assert totals(by="bucket") == {"0": 1, "3": 1, "unknown": 1}
    assert totals(by="revision") == {"1": 2, "2": 1}
    assert totals(by="service_class", pipeline="relay") == {"gold": 1}
    assert totals(by="site", revision=2) == {"ams": 1}
    assert totals(bucket=0) == {"all": 1}
    assert totals(site="fra") == {"all": 0}
    [series] = history(client, pipeline="relay")["series"]
    assert (sum(n or 0 for n in series["catch_up"]), sum(n or 0 for n in series["one_shot"])) == (1, 0)


def test_links_and_sites_have_histories_with_gaps(client, seeded):
    write_link(seeded, age_s=30, samples=10, seconds=10.0, total_bytes=500, relay_bytes=400, capacity_bytes=1000.0)
    write_site(seeded, age_s=30, observer_batches=10, relay_running=20, relay_slots=40)
    [link] = history(client, "links")["series"]
    assert [one for one in link["bytes_per_s"] if one is not None] == [50.0]
    assert [one for one in link["utilization"] if one is not None] == [0.5]
    [site] = history(client, "sites")["series"]
    assert [one for one in site["relay_utilization"] if one is not None] == [0.5]
    assert None in site["relay_running"]


@pytest.mark.parametrize(
    ("length_s", "ago_s", "expected"),
    [
        (300, 0, FINE),
        (2 * HOUR_S, 0, FINE),
        (300, 7 * HOUR_S, MIDDLE),
        (DAY_S, 0, MIDDLE),
        (7 * DAY_S, 0, COARSE),
        (300, 9 * DAY_S, COARSE),
        (300 * DAY_S, 0, COARSE),
    ],
)
def test_a_range_gets_the_finest_spans_that_are_kept_and_not_too_many(length_s, ago_s, expected):
    now_s = 1_900_000_000.0
    spans = fitting_spans(now_s - ago_s - length_s, now_s - ago_s, now_s)
    assert spans.resolution is expected
    assert 1 <= len(span_starts(spans)) <= MAX_POINTS + 1


def test_a_range_that_ends_before_it_begins_is_refused(client, seeded):
    answer = client.get(f"{API}/links", params={"since": "2030-01-02T03:00:00Z", "until": "2030-01-02T02:00:00Z"})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "since")
