"""Many records at once add up to what they would one by one."""

from collections import Counter

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.domain.histogram import Histogram
from control.domain.rollups import RequestKey, RequestSums, is_in_valley
from control.domain.slo import Objectives, hit_rate_bucket, meets_objectives
from control.telemetry import folding
from control.telemetry.folding import Received
from control.telemetry.received import decode_requests
from control.telemetry.records import RequestBatch, RequestRecord, StageTime
from control.telemetry.rollups import RollupBuffer

T0 = 1_800_000_000.0
PROMISED = {"default": Objectives(1.0, 2.0, 0.1), "gold": Objectives(0.2, 0.5, 0.02)}
durations = st.none() | st.floats(0.0, 600.0)
tokens = st.integers(0, 10**6)

records = st.builds(
    RequestRecord,
    request_id=st.text("abc", min_size=1, max_size=4),
    gateway=st.just("gw"),
    site=st.sampled_from(["ams", "fra"]),
    received_at_s=st.floats(T0 - 300, T0 - 100),
    model=st.just("m"),
    pipeline=st.sampled_from(["direct", "relay", "outlier", "", "odd"]),
    reason=st.just("x"),
    outcome=st.sampled_from(["completed", "client_closed", "rejected", "shed", "failed", "odd"]),
    status=st.just(200),
    policy_revision=st.integers(-1, 2),
    traffic=st.sampled_from(["live", "demo"]),
    service_class=st.sampled_from(["default", "gold", "silver", "Odd One"]),
    input_tokens=st.sampled_from([0, 10**6]) | tokens,
    output_tokens=tokens,
    eager_tokens=tokens,
    cached_tokens=st.none() | st.sampled_from([0, 900_000, 930_000, 990_000, 10**6]),
    uncached_tokens=tokens,
    transfer_s=durations,
    pulled_bytes=st.none() | st.integers(0, 10**12),
    handoff_mode=st.sampled_from(["", "one_shot", "catch_up"]),
    handoff_stall_s=durations,
    ttft_s=durations,
    tpot_s=durations,
    e2e_s=st.floats(0.0, 100.0),
    stages=st.just((StageTime("prefill", 0.0, 1.0),)),
)


def is_true(record):
    return not record.cached_tokens or not record.input_tokens or record.cached_tokens <= record.input_tokens


def key_of(record):
    hit_rate = record.prefix_hit_rate
    return RequestKey(
        int((record.received_at_s + record.e2e_s) // 10) * 10,
        record.site,
        record.pipeline if record.pipeline in {"direct", "relay", "outlier"} else "other",
        -1 if hit_rate is None else hit_rate_bucket(hit_rate),
        max(record.policy_revision, 0),
        "other" if record.service_class == "Odd One" else record.service_class,
    )


def sums_of(many):
    """Sums of some records, one by one."""
    total = RequestSums()
    for record in many:
        hit_rate, objectives = record.prefix_hit_rate, PROMISED.get(record.service_class, PROMISED["default"])
        total.requests += 1
        if record.outcome != "odd":
            setattr(total, record.outcome, getattr(total, record.outcome) + 1)
        total.demo += record.traffic == "demo"
        total.good += record.outcome == "completed" and meets_objectives(record.ttft_s, record.tpot_s, objectives)
        total.hit_known += hit_rate is not None
        total.valley += hit_rate is not None and is_in_valley(hit_rate)
        for name in ("input_tokens", "uncached_tokens", "output_tokens"):
            setattr(total, name, getattr(total, name) + getattr(record, name))
        total.cached_tokens += record.cached_tokens or 0
        total.eager_tokens += min(record.eager_tokens, record.output_tokens)
        total.pulled_bytes += record.pulled_bytes or 0
        total.handoffs += bool(record.handoff_mode)
        total.catch_up += record.handoff_mode == "catch_up"
    return total


def durations_of(many, name):
    return Histogram.of([value for record in many if (value := getattr(record, name)) is not None])


def batch(many, sequence=1):
    classes = {name: (one.ttft_p90_s, one.ttft_p99_s, one.tpot_p90_s) for name, one in PROMISED.items()}
    return RequestBatch("gw", "ams", 1, sequence, T0, tuple(many), 1, 0, 0, 1.0, 2.0, 0.1, class_objectives=classes)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(many=st.lists(records, max_size=40))
def test_sums_of_columns_equal_sums_of_records(many):
    raw = [msgspec.msgpack.encode(batch(many[:10], 1)), msgspec.msgpack.encode(batch(many[10:], 2))]
    folded = Received([decode_requests(one)[0] for one in raw], T0).fold([True, True], 0.0)
    possible = [record for record in many if is_true(record)]
    assert folded.impossible == len(many) - len(possible)
    by_key = {}
    for record in possible:
        by_key.setdefault(key_of(record), []).append(record)
    assert {group.key for group in folded.groups} == set(by_key)
    for group in folded.groups:
        expected, same = sums_of(by_key[group.key]), by_key[group.key]
        for name in folding._INTEGERS:
            assert getattr(group.sums, name) == getattr(expected, name), name
        for name, figure in folding._HISTOGRAMS:
            assert getattr(group.sums, name) == durations_of(same, figure), name
        waited = [record.ttft_s for record in same if record.ttft_s is not None]
        assert group.sums.slowest.ttft_s == max(waited, default=0.0)


def test_many_keys_are_folded_in_parts_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(folding, "GROUPS_AT_A_TIME", 7)
    monkeypatch.setattr(folding, "MAX_CODE", 10)
    base = RequestRecord("r", "gw", "ams", T0 - 500, "m", "direct", "x", "completed", 200, 1)
    many = [
        msgspec.structs.replace(base, received_at_s=T0 - 10 * n, policy_revision=n % 3, ttft_s=n / 10)
        for n in range(60)
    ]
    groups = Received([batch(many)], T0).fold([True], 0.0).groups
    assert Counter(group.sums.requests for group in groups) == {1: 60}
    assert len({group.key for group in groups}) == 60


def test_both_readers_of_a_batch_get_the_same_sums_and_another_choice_gets_others():
    received = Received([batch([]), batch([RequestRecord("r", "gw", "ams", T0, "m", "", "", "failed", 502, 1)], 2)], T0)
    assert received.fold([True, True], 0.0).groups is received.fold([False, True], 0.0).groups
    assert received.fold([True, False], 0.0).groups == ()
    late = received.fold([True, True], T0 + 1)
    assert (late.late, late.groups) == (1, ())


def test_slow_and_failed_requests_are_kept_and_of_the_rest_a_share_with_the_slowest():
    rng = np.random.default_rng(7)
    base = RequestRecord("r", "gw", "ams", T0 - 12, "m", "direct", "x", "completed", 200, 1, e2e_s=5.0)
    ordinary = [
        msgspec.structs.replace(base, request_id=f"o{n}", ttft_s=float(value))
        for n, value in enumerate(rng.uniform(0.1, 0.9, 5000))
    ]
    slow = [msgspec.structs.replace(base, request_id=f"s{n}", ttft_s=1.5) for n in range(150)]
    failed = [msgspec.structs.replace(base, request_id=f"f{n}", outcome="failed") for n in range(100)]
    quick = [msgspec.structs.replace(base, request_id=f"q{n}", pipeline="relay", ttft_s=0.01 * n) for n in range(50)]
    buffer = RollupBuffer()
    buffer.take_requests(batch([*ordinary, *slow, *failed, *quick]), T0)
    rows = buffer.samples.drain()
    assert {row["request_id"] for row in rows} >= {record.request_id for record in (*slow, *failed)}
    assert "q49" in {row["request_id"] for row in rows}
    assert len(rows) < 800
    assert sum(row["weight"] for row in rows if not row["is_notable"]) > 4000
    slowest = max(record.ttft_s for record in ordinary)
    assert max(sums.slowest.ttft_s for sums in buffer.rollups.requests.values()) == 1.5 > slowest
