import numpy as np
import pytest

from control.domain.slo import HIT_RATE_BUCKETS
from control.telemetry.records import LinkSample, NodeSample, RequestBatch, RequestRecord, SampleBatch, StageTime
from control.telemetry.windows import KEPT_ROWS, KEPT_S, KEPT_SLOTS, SETTLE_S, SLOT_S, LiveWindows

T0 = 1_800_000_000.0
EPOCH = 7


class Senders:
    """Batches with the keys that a gateway and an observer would give them."""

    def __init__(self, windows):
        self.windows = windows
        self.sequence = 0

    def requests(self, *records, at_s=T0, now_s=None, gateway="gw", sequence=None, **fields):
        self.sequence += 1
        batch = RequestBatch(
            gateway, "ams", EPOCH, self.sequence if sequence is None else sequence, at_s, tuple(records), **fields
        )
        self.windows.take_requests(batch, at_s if now_s is None else now_s)

    def samples(self, at_s, *, nodes=(), links=(), observer="obs-ams", now_s=None):
        self.sequence += 1
        batch = SampleBatch(observer, "ams", EPOCH, self.sequence, at_s, tuple(nodes), tuple(links))
        self.windows.take_samples(batch, at_s if now_s is None else now_s)


@pytest.fixture
def windows():
    return LiveWindows()


@pytest.fixture
def send(windows):
    return Senders(windows)


def record(*, ended_at_s=T0, e2e_s=1.0, **fields):
    values = {
        "request_id": "r",
        "gateway": "gw",
        "site": "ams",
        "model": "m",
        "pipeline": "direct",
        "reason": "hit_rate_high",
        "outcome": "completed",
        "status": 200,
        "policy_revision": 1,
        "input_tokens": 1000,
        "output_tokens": 100,
        "cached_tokens": 960,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
    }
    return RequestRecord(**{**values, "received_at_s": ended_at_s - e2e_s, "e2e_s": e2e_s, **fields})


def link(total, *, direct=0, relay=0, name="ams-fra", capacity=1000.0, **fields):
    by_pipeline = {"direct": direct, "relay": relay}
    return LinkSample(name, "ams", "fra", capacity, 0.03, total, by_pipeline, **fields)


def node(name="rld", role="relay", state="ready", **fields):
    return NodeSample(name, "ams", role, state, **fields)


def open_slot(windows, now_s):
    return windows.tick(now_s)["slot"]


def test_nothing_reported_is_null_and_not_zero(windows):
    picture = windows.snapshot(T0)
    slot, tiles = picture["slots"][-1], picture["tiles"]
    assert [slot[name] for name in ("requests", "ttft", "buckets", "pipelines", "relay")] == [None] * 5
    assert [tiles[name] for name in ("requests", "rps", "goodput_rps", "rld_share", "wan_use")] == [None] * 5
    assert (tiles["cache_lag_tokens"], tiles["relay_utilization"]) == (None, None)


def test_a_heartbeat_makes_no_requests_zero_and_not_null(windows, send):
    send.requests(at_s=T0 + 5)
    slot = open_slot(windows, T0 + 6)
    tiles = windows.snapshot(T0 + 6)["tiles"]
    assert (slot["requests"], slot["ttft"], slot["buckets"]) == (0, None, [0] * HIT_RATE_BUCKETS)
    assert (tiles["requests"], tiles["rps"], tiles["cache_lag_tokens"], tiles["rld_share"]) == (0, 0, 0, None)


def test_a_request_counts_in_the_slot_in_which_it_ended(windows, send):
    send.requests(record(ended_at_s=T0 + 9, e2e_s=30), at_s=T0 + 11)
    counts = {slot["at_s"]: slot["requests"] for slot in windows.snapshot(T0 + 15)["slots"]}
    assert counts == {T0: 1, T0 + SLOT_S: 0}


def test_a_slot_stays_open_until_its_last_batches_are_there(windows, send):
    send.requests(at_s=T0 + 1)
    send.requests(record(ended_at_s=T0 + 9.9), at_s=T0 + 10.2)
    assert open_slot(windows, T0 + SLOT_S + 2) == {**open_slot(windows, T0 + SLOT_S + 2), "at_s": T0, "requests": 1}
    assert open_slot(windows, T0 + SLOT_S + SETTLE_S)["at_s"] == T0 + SLOT_S


def test_counts_by_kind_are_exact(windows, send):
    send.requests(
        record(),
        record(traffic="demo", pipeline="relay", handoff_mode="one_shot", eager_tokens=40),
        record(outcome="failed", ttft_s=None, tpot_s=None, output_tokens=0),
        record(outcome="shed", ttft_s=None, tpot_s=None, output_tokens=0, cached_tokens=None),
        record(outcome="client_closed", pipeline="outlier", cached_tokens=0, eager_tokens=100),
        record(pipeline="relay", handoff_mode="catch_up", cached_tokens=1000, eager_tokens=60),
        at_s=T0 + 1,
    )
    slot = open_slot(windows, T0 + 3)
    assert (slot["requests"], slot["demo"], slot["errors"]) == (6, 1, 2)
    assert slot["pipelines"] == {"direct": 3, "relay": 2, "outlier": 1}
    assert slot["handoffs"] == {"one_shot": 1, "catch_up": 1}
    assert slot["buckets"] == [1, 0, 0, 3, 0, 0, 1]
    assert (slot["eager_tokens"], slot["output_tokens"]) == (200, 400)
    assert windows.snapshot(T0 + 3)["tiles"]["rld_share"] == 0.5


def test_ttft_slides_over_sixty_seconds(windows, send):
    send.requests(record(ttft_s=1.0), at_s=T0)
    for second in range(10, 90, 10):
        send.requests(at_s=T0 + second)
    quantiles = {slot["at_s"] - T0: slot["ttft"] for slot in windows.snapshot(T0 + 85)["slots"]}
    assert quantiles[50]["p50"] == pytest.approx(1.0, rel=0.01)
    assert quantiles[60] is None


def test_a_late_batch_changes_the_quantiles_of_every_window_that_holds_it(windows, send):
    for second in range(0, 80, 10):
        send.requests(at_s=T0 + second)
    assert all(slot["ttft"] is None for slot in windows.snapshot(T0 + 73)["slots"])
    send.requests(record(ended_at_s=T0 + 15, ttft_s=2.0), at_s=T0 + 15.5, now_s=T0 + 73)
    seen = [slot["at_s"] - T0 for slot in windows.snapshot(T0 + 73)["slots"] if slot["ttft"]]
    assert seen == [10, 20, 30, 40, 50, 60]


def test_quantiles_are_within_one_percent_of_the_records(windows, send):
    values = np.random.default_rng(3).lognormal(-1, 1.5, 3000).clip(0.001, 600)
    stalls = np.random.default_rng(4).lognormal(-2, 1, 3000).clip(0.001, 600)
    records = [record(ttft_s=float(v), handoff_stall_s=float(s)) for v, s in zip(values, stalls, strict=True)]
    send.requests(*records, at_s=T0)
    slot, tiles = open_slot(windows, T0 + 3), windows.snapshot(T0 + 3)["tiles"]
    exact = dict(zip(("p50", "p90", "p99"), np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf"), strict=True))
    assert slot["ttft"] == pytest.approx(exact, rel=0.01)
    assert tiles["ttft"] == pytest.approx(exact, rel=0.01)
    assert slot["bucket_ttft_p99"][3] == pytest.approx(exact["p99"], rel=0.01)
    assert slot["bucket_ttft_p99"][:3] == [None] * 3
    assert slot["stall_p99_s"] == pytest.approx(np.quantile(stalls, 0.99, method="inverted_cdf"), rel=0.01)


def test_goodput_is_what_meets_the_objectives_that_the_gateway_runs_under(windows, send):
    slo = {"slo_ttft_p90_s": 0.3, "slo_ttft_p99_s": 0.6, "slo_tpot_p90_s": 0.03}
    send.requests(at_s=T0, **slo)
    send.requests(
        record(ttft_s=0.5, tpot_s=0.02),
        record(ttft_s=0.7, tpot_s=0.02),
        record(ttft_s=0.5, tpot_s=0.04),
        record(ttft_s=0.5, outcome="failed"),
        at_s=T0 + 10,
        **slo,
    )
    tiles = windows.snapshot(T0 + 10)["tiles"]
    assert tiles["slo"] == {"ttft_p90_s": 0.3, "ttft_p99_s": 0.6}
    assert (tiles["requests"], tiles["rps"], tiles["goodput_rps"]) == (4, 0.3, 0.1)


def test_service_classes_are_told_apart_with_what_each_was_promised(windows, send):
    send.requests(
        *(record(ttft_s=1.5, service_class="gold") for _ in range(3)),
        record(ttft_s=1.5),
        record(outcome="failed", service_class="gold", ttft_s=None),
        class_objectives={"default": (1.0, 2.0, 0.1), "gold": (0.5, 1.0, 0.1)},
        slo_ttft_p90_s=1.0,
        slo_ttft_p99_s=2.0,
        slo_tpot_p90_s=0.1,
    )
    default, gold = windows.tick(T0 + 3)["tiles"]["classes"]
    assert (default["name"], default["requests"], default["good"], default["slo"]["ttft_p99_s"]) == ("default", 1, 1, 2)
    assert (gold["requests"], gold["errors"], gold["good"], gold["slo"]["ttft_p99_s"]) == (4, 1, 0, 1.0)
    assert gold["ttft"]["p50"] == pytest.approx(1.5, rel=0.01)


def test_each_bucket_names_the_request_that_waited_longest(windows, send):
    send.requests(
        record(request_id="quick", ttft_s=0.1),
        record(request_id="slow", ttft_s=9.0),
        record(request_id="cold", cached_tokens=0, ttft_s=3.0),
    )
    send.requests(record(request_id="between", ttft_s=5.0))
    slot = windows.snapshot(T0 + 3)["slots"][-1]
    assert (slot["bucket_slowest"][0], slot["bucket_slowest"][3], slot["bucket_slowest"][6]) == ("cold", "slow", None)


def test_rates_of_a_young_fleet_are_over_its_life_and_then_over_five_minutes(windows, send):
    send.requests(record(ended_at_s=T0), at_s=T0)
    assert windows.snapshot(T0 + 20)["tiles"]["rps"] == pytest.approx(1 / 20)
    send.requests(record(ended_at_s=T0 + 600), at_s=T0 + 600)
    assert windows.snapshot(T0 + 600)["tiles"]["rps"] == pytest.approx(1 / 290, rel=0.04)


def test_cache_lag_is_the_mean_of_tokens_on_their_way(windows, send):
    send.requests(at_s=T0)
    send.requests(
        record(pipeline="relay", uncached_tokens=500, transfer_s=2.0),
        record(pipeline="direct", uncached_tokens=100, transfer_s=None, e2e_s=10.0),
        record(pipeline="outlier", uncached_tokens=9000, transfer_s=None),
        at_s=T0 + 10,
    )
    assert windows.snapshot(T0 + 10)["tiles"]["cache_lag_tokens"] == (500 * 2 + 100 * 10) / 10


def test_each_main_node_has_the_lag_of_what_was_sent_to_it(windows, send):
    send.requests(at_s=T0)
    send.samples(T0 + 9, nodes=[NodeSample("fra-md-03", "fra", "main", "ready")])
    send.requests(
        record(pipeline="relay", main_node="fra-md-01", uncached_tokens=500, transfer_s=1.0, cache_lag_s=2.0),
        record(pipeline="direct", main_node="fra-md-02", uncached_tokens=100, transfer_s=2.0, cache_lag_s=3.0),
        record(pipeline="direct", main_node="fra-md-01", uncached_tokens=100, cache_lag_s=0.0),
        record(pipeline="outlier", uncached_tokens=9000, cache_lag_s=5.0),
        record(pipeline="direct", main_node="What a name!", uncached_tokens=10, cache_lag_s=1.0),
        at_s=T0 + 10,
    )
    tiles = windows.snapshot(T0 + 10)["tiles"]
    assert tiles["cache_lag_by_node"] == {"fra-md-01": 100.0, "fra-md-02": 30.0, "fra-md-03": 0.0, "other": 1.0}
    assert tiles["cache_lag_tokens"] == 131.0


def test_link_rates_are_differences_of_counters(windows, send):
    send.samples(T0, links=[link(5000, direct=5000)])
    assert open_slot(windows, T0 + 3)["links"]["ams-fra"]["bytes_per_s"] is None
    by_class = {"default": 1000, "gold": 200}
    waits = {"queue_depth": 2, "longest_wait_s": 4.0, "waits_total": 4, "waited_s_total": 6.0}
    send.samples(
        T0 + 2,
        links=[link(6200, direct=6000, relay=200, flows=3, queued_bytes=9, bytes_by_class=by_class, **waits)],
    )
    assert open_slot(windows, T0 + 3)["links"]["ams-fra"] == {
        "bytes_per_s": 600,
        "direct_bytes_per_s": 500,
        "relay_bytes_per_s": 100,
        "class_bytes_per_s": {"default": 500, "gold": 100},
        "flows": 3,
        "queued_bytes": 9,
        "queue_depth": 2,
        "wait_s": 1.5,
    }
    (now,) = windows.snapshot(T0 + 2.5)["links"]
    assert (now["queue_depth"], now["longest_wait_s"], now["wait_s"]) == (2, 4.0, 1.5)
    assert windows.snapshot(T0 + 2.5)["tiles"]["wan_use"] == {
        "link": "ams-fra",
        "ratio": 0.6,
        "bytes_per_s": 600,
        "capacity_bytes_per_s": 1000,
    }


def test_a_relay_that_starts_again_from_zero_makes_no_negative_rate(windows, send):
    send.samples(T0, links=[link(5000, direct=3000, relay=2000)])
    send.samples(T0 + 1, links=[link(100, direct=100)])
    rates = open_slot(windows, T0 + 3)["links"]["ams-fra"]
    assert (rates["bytes_per_s"], rates["direct_bytes_per_s"], rates["relay_bytes_per_s"]) == (100, 100, 0)


def test_bytes_of_a_gap_in_observation_are_spread_over_the_gap(windows, send):
    send.samples(T0, links=[link(0)])
    send.samples(T0 + 60, links=[link(6000)])
    assert windows.snapshot(T0 + 61)["tiles"]["wan_use"]["bytes_per_s"] == 100


def test_two_observers_of_one_link_do_not_double_it(windows, send):
    for second in range(5):
        send.samples(T0 + second, links=[link(100 * second)], observer="obs-ams")
        send.samples(T0 + second + 0.5, links=[link(100 * second + 50)], observer="obs-fra")
    assert windows.snapshot(T0 + 5)["tiles"]["wan_use"]["bytes_per_s"] == 100


def test_another_observer_takes_over_a_link_whose_own_is_silent(windows, send):
    send.samples(T0, links=[link(0)], observer="obs-ams")
    send.samples(T0 + 10, links=[link(500)], observer="obs-fra")
    assert windows.snapshot(T0 + 10)["links"][0]["bytes_per_s"] == 50


def test_a_silent_relay_is_a_state_and_carries_null(windows, send):
    send.samples(T0, links=[link(0)])
    send.samples(T0 + 1, links=[link(100)])
    send.samples(T0 + 12, links=[LinkSample("ams-fra", "ams", "fra", 1000.0, 0.0, state="unreachable")])
    picture = windows.snapshot(T0 + 13)
    assert (picture["links"][0]["state"], picture["links"][0]["bytes_per_s"]) == ("unreachable", None)
    assert picture["slots"][-1]["links"] == {"ams-fra": None}
    assert picture["tiles"]["wan_use"] is None


def test_relay_load_adds_up_the_nodes_that_answer(windows, send):
    nodes = [
        node("a", running=2, waiting=1, slots=4),
        node("b", running=1, slots=4),
        node("c", state="unreachable", slots=4),
        node("p", role="prefill", running=9, slots=9),
    ]
    send.samples(T0, nodes=nodes)
    assert open_slot(windows, T0 + 3)["relay"] == {"running": 3, "waiting": 1, "slots": 8}
    picture = windows.snapshot(T0 + 3)
    assert picture["tiles"]["relay_utilization"] == 3 / 8
    assert {n["name"]: n["running"] for n in picture["nodes"]} == {"a": 2, "b": 1, "c": None, "p": 9}


def test_relay_load_is_a_mean_over_the_samples(windows, send):
    for second, running in enumerate((0, 4, 0, 0, 1)):
        send.samples(T0 + second, nodes=[node("a", running=running, waiting=2, slots=4)])
    send.samples(T0 + 5, nodes=[node("a", state="unreachable")])
    assert open_slot(windows, T0 + 5)["relay"] == {"running": 1, "waiting": 2, "slots": 4}
    send.samples(T0 + 6, nodes=[node("a", running=1, slots=4)])
    assert windows.snapshot(T0 + 6)["tiles"]["relay_utilization"] == 0.25


def test_old_figures_are_stale_and_not_shown_as_live(windows, send):
    send.requests(at_s=T0)
    send.samples(T0 - 1, links=[link(0)])
    send.samples(T0, nodes=[node(running=1, slots=2)], links=[link(500)])
    fresh, old = windows.snapshot(T0 + 4), windows.snapshot(T0 + 6)
    assert [source["stale"] for source in fresh["sources"]] == [False, False]
    assert [(source["kind"], source["stale"], source["age_s"]) for source in old["sources"]] == [
        ("gateway", True, 6.0),
        ("observer", True, 6.0),
    ]
    assert fresh["tiles"]["relay_utilization"] == 0.5
    assert old["tiles"]["relay_utilization"] is None
    assert old["tiles"]["wan_use"] is None
    assert (old["nodes"][0]["stale"], old["links"][0]["stale"]) == (True, True)


def test_a_gap_in_the_slots_is_null(windows, send):
    send.requests(at_s=T0)
    send.requests(at_s=T0 + 30)
    assert [slot["requests"] for slot in windows.snapshot(T0 + 33)["slots"]] == [0, None, None, 0]


def test_a_batch_that_comes_twice_counts_once(windows, send):
    for _ in range(2):
        send.requests(record(), at_s=T0, sequence=1)
    send.requests(record(), at_s=T0, sequence=1, gateway="other")
    assert windows.snapshot(T0 + 3)["tiles"]["requests"] == 2
    assert windows.dropped == {"duplicate": 1}


def test_what_is_older_than_the_windows_is_dropped(windows, send):
    send.requests(record(ended_at_s=T0 - KEPT_S - 5), at_s=T0)
    send.requests(record(), at_s=T0 - KEPT_S - 5, now_s=T0)
    assert windows.dropped == {"late": 2}
    assert windows.snapshot(T0)["tiles"]["requests"] == 0


def test_an_older_round_of_an_observer_does_not_overwrite_a_newer(windows, send):
    send.samples(T0 + 1, nodes=[node(running=1)])
    send.samples(T0, nodes=[node(running=2)], now_s=T0 + 1)
    assert windows.snapshot(T0 + 1)["nodes"][0]["running"] == 1
    assert windows.dropped == {"late": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"ttft_s": -0.1},
        {"ttft_s": float("nan")},
        {"e2e_s": float("inf")},
        {"e2e_s": -1.0},
        {"tpot_s": float("inf")},
        {"handoff_stall_s": -1.0},
        {"output_tokens": -1},
        {"uncached_tokens": -1},
        {"cached_tokens": 1001},
        {"received_at_s": T0 + 1000},
        {"received_at_s": float("nan")},
    ],
)
def test_an_impossible_record_is_dropped_and_counted(windows, send, fields):
    send.requests(record(**fields), record(), at_s=T0)
    assert windows.snapshot(T0 + 3)["tiles"]["requests"] == 1
    assert windows.dropped == {"impossible": 1}


def test_a_request_with_impossible_stages_counts_but_makes_no_row(windows, send):
    send.requests(record(stages=(StageTime("prefill", 0.0, float("nan")),)), record(request_id="good"), at_s=T0)
    picture = windows.snapshot(T0 + 3)
    assert picture["tiles"]["requests"] == 2
    assert [row["id"] for row in picture["requests"]] == ["good"]


def test_a_batch_from_the_future_is_impossible(windows, send):
    send.requests(at_s=T0 + 1000, now_s=T0)
    assert windows.dropped == {"impossible": 1}


def test_a_new_policy_revision_makes_one_mark_for_all_gateways(windows, send):
    send.requests(at_s=T0, policy_revision=2, gateway="a")
    send.requests(at_s=T0, policy_revision=2, gateway="b")
    send.requests(at_s=T0 + 1, policy_revision=3, gateway="a")
    send.requests(at_s=T0 + 2, policy_revision=3, gateway="b")
    send.requests(at_s=T0 + 3, policy_revision=3, gateway="a")
    assert windows.tick(T0 + 3)["marks"] == [{"at_s": T0 + 1, "kind": "policy", "label": "r3"}]
    windows.forget_new()
    assert windows.tick(T0 + 4)["marks"] == []
    assert len(windows.snapshot(T0 + 4)["marks"]) == 1


def test_a_spooled_batch_of_an_old_revision_makes_no_mark(windows, send):
    send.requests(at_s=T0 + 5, policy_revision=3)
    send.requests(at_s=T0, policy_revision=2, now_s=T0 + 5)
    send.requests(at_s=T0 + 6, policy_revision=3)
    assert windows.tick(T0 + 6)["marks"] == []


def test_rows_are_new_until_a_tick_has_carried_them(windows, send):
    send.requests(record(request_id="a"), record(request_id="b"), at_s=T0)
    assert [row["id"] for row in windows.tick(T0)["requests"]] == ["b", "a"]
    assert [row["id"] for row in windows.tick(T0)["requests"]] == ["b", "a"]
    windows.forget_new()
    send.requests(record(request_id="c"), at_s=T0 + 1)
    assert [row["id"] for row in windows.tick(T0 + 1)["requests"]] == ["c"]
    assert [row["id"] for row in windows.snapshot(T0 + 1)["requests"]] == ["c", "b", "a"]


def test_a_consumer_that_replays_does_not_send_rows_again(windows, send):
    send.requests(record(request_id="sent"), at_s=T0)
    send.requests(record(request_id="missed"), at_s=T0 + 2)
    windows.forget_new(sent_before_s=T0 + 1)
    assert [row["id"] for row in windows.tick(T0 + 3)["requests"]] == ["missed"]


def test_a_row_says_what_the_table_shows(windows, send):
    send.requests(
        record(request_id="x", drc_resident_tokens=500, relay_node="rld", stages=(StageTime("prefill", 0.0, 0.25),)),
        at_s=T0,
    )
    row = windows.snapshot(T0)["requests"][0]
    assert (row["id"], row["hit_rate"], row["drc_hit_rate"]) == ("x", 0.96, 0.5)
    assert row["nodes"] == {"prefill": "", "relay": "rld", "main": ""}
    assert row["stages"] == [["prefill", 0.0, 0.25]]


def test_days_of_traffic_do_not_grow_the_windows(windows, send):
    for hour in range(48):
        at_s = T0 + 1800 * hour
        send.requests(record(), *[record(ended_at_s=at_s)] * 50, at_s=at_s, gateway=f"gw-{hour}")
        send.samples(at_s, nodes=[node(f"n-{hour}")], links=[link(hour, name=f"l-{hour}")], observer=f"o-{hour}")
        windows.tick(at_s)
    picture = windows.snapshot(T0 + 1800 * 47)
    assert len(picture["slots"]) <= KEPT_SLOTS
    assert len(picture["requests"]) == KEPT_ROWS
    assert [len(picture[name]) for name in ("nodes", "links", "sources")] == [1, 1, 2]
