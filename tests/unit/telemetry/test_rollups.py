"""Batches in, sums of ten seconds out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.histogram import Histogram
from control.domain.rollups import (
    COARSE,
    FINE,
    MIDDLE,
    RESOLUTIONS,
    UNKNOWN_BUCKET,
    LinkKey,
    RequestKey,
    RequestSums,
    Rollups,
    SiteKey,
)
from control.telemetry.records import LinkSample, NodeSample, RequestBatch, RequestRecord, SampleBatch
from control.telemetry.rollups import MAX_LATE_S, RollupBuffer, link_document, link_from_document

T0 = 1_800_000_000.0


class Senders:
    def __init__(self):
        self.buffer = RollupBuffer()
        self.sequence = 0

    def requests(self, *records, at_s=T0, now_s=None, sequence=None, **fields):
        self.sequence += 1
        number = self.sequence if sequence is None else sequence
        self.buffer.take_requests(RequestBatch("gw", "ams", 1, number, at_s, tuple(records), **fields), now_s or at_s)

    def samples(self, at_s, *, nodes=(), links=(), observer="obs", now_s=None):
        self.sequence += 1
        batch = SampleBatch(observer, "ams", 1, self.sequence, at_s, tuple(nodes), tuple(links))
        self.buffer.take_samples(batch, now_s or at_s)

    def total(self):
        return RequestSums.merged(self.buffer.rollups.requests.values())


@pytest.fixture
def send():
    return Senders()


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
        "policy_revision": 3,
        "input_tokens": 1000,
        "output_tokens": 100,
        "cached_tokens": 960,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
    }
    return RequestRecord(**{**values, "received_at_s": ended_at_s - e2e_s, "e2e_s": e2e_s, **fields})


def link(total, *, relay=0, state="up", **fields):
    return LinkSample("ams-fra", "ams", "fra", 1000.0, 0.03, total, {"relay": relay}, state=state, **fields)


def test_a_request_is_counted_under_all_that_tells_requests_apart(send):
    send.requests(
        record(pipeline="relay", eager_tokens=40, transfer_s=2.0, uncached_tokens=40, handoff_mode="one_shot"),
        record(cached_tokens=None, service_class="gold", outcome="failed", ttft_s=None, tpot_s=None),
        record(cached_tokens=400, ended_at_s=T0 - 10, policy_revision=2),
    )
    sums = send.buffer.rollups.requests
    assert set(sums) == {
        RequestKey(int(T0), "ams", "relay", 3, 3, "default"),
        RequestKey(int(T0), "ams", "direct", UNKNOWN_BUCKET, 3, "gold"),
        RequestKey(int(T0) - 10, "ams", "direct", 0, 2, "default"),
    }
    relayed = sums[RequestKey(int(T0), "ams", "relay", 3, 3, "default")]
    assert (relayed.requests, relayed.good, relayed.eager_tokens, relayed.handoffs) == (1, 1, 40, 1)
    assert (relayed.lag_token_s, relayed.transfer.count, relayed.ttft.count) == (80.0, 1, 1)
    assert send.total().valley == 1
    assert (send.total().errors, send.total().answered) == (1, 2)


def test_words_that_no_gateway_has_do_not_make_keys(send):
    send.requests(*(record(pipeline=f"p{i}", service_class=f"Class {i}", policy_revision=-i) for i in range(50)))
    assert {key[2:] for key in send.buffer.rollups.requests} == {("other", 3, 0, "other")}


def test_late_doubled_unordered_and_impossible_input_is_counted_and_changes_nothing_else(send):
    send.requests(record(), sequence=5)
    send.requests(record(), sequence=5)
    send.requests(record(), sequence=4)
    send.requests(record(output_tokens=-1), record(input_tokens=10**12), sequence=6)
    send.requests(record(ended_at_s=T0 - MAX_LATE_S - 10), sequence=7)
    send.requests(record(), at_s=T0 - MAX_LATE_S - 1, now_s=T0, sequence=8)
    send.requests(record(), at_s=T0 + 3600, now_s=T0, sequence=9)
    assert dict(+send.buffer.left_out) == {"duplicate": 1, "out_of_order": 1, "impossible": 3, "late": 2}
    assert send.total().requests == 2


def test_a_site_that_says_nothing_differs_from_one_without_traffic(send):
    send.requests(at_s=T0)
    assert send.buffer.rollups.sites[SiteKey(int(T0), "ams")].gateway_batches == 1
    assert SiteKey(int(T0) + 10, "ams") not in send.buffer.rollups.sites


def test_links_carry_what_their_counters_grew_by_and_flap_when_their_state_changes(send):
    send.samples(T0, links=[link(100)])
    send.samples(T0 + 1, links=[link(600, relay=500)])
    send.samples(T0 + 2, links=[link(0, state="unreachable")])
    send.samples(T0 + 3, links=[link(50, relay=50)])  # the relay began again
    sums = send.buffer.rollups.links[LinkKey(int(T0), "ams-fra")]
    assert (sums.total_bytes, sums.relay_bytes, sums.seconds, sums.capacity_bytes) == (550, 550, 3.0, 3000.0)
    assert (sums.samples, sums.down_samples, sums.flaps) == (4, 1, 2)
    state = send.buffer.links["ams-fra"]
    assert link_from_document(state.at_s, link_document(state)) == state


def test_a_link_adds_up_who_waited_for_it_and_what_each_class_sent(send):
    send.samples(T0, links=[link(100, waits_total=5, waited_s_total=10.0, bytes_by_class={"gold": 100})])
    classes = {"gold": 300, "No class": 50}
    send.samples(
        T0 + 1,
        links=[link(450, queue_depth=3, waits_total=7, waited_s_total=14.0, bytes_by_class=classes)],
    )
    again = {"waits_total": 1, "waited_s_total": 0.5, "bytes_by_class": {"gold": 20}}
    send.samples(T0 + 2, links=[link(20, queue_depth=1, **again)])  # the relay began again
    sums = send.buffer.rollups.links[LinkKey(int(T0), "ams-fra")]
    assert (sums.queued_transfers, sums.waits, sums.waited_s) == (4, 3, 4.5)
    classes = {key.service_class: sums.total_bytes for key, sums in send.buffer.rollups.link_classes.items()}
    assert classes == {"gold": 220, "other": 50}


def test_each_main_node_adds_up_its_lag(send):
    send.requests(
        record(pipeline="relay", main_node="md-1", uncached_tokens=40, cache_lag_s=2.0),
        record(main_node="md-1", uncached_tokens=10, cache_lag_s=1.0),
        record(main_node="md-2", uncached_tokens=0, cache_lag_s=0.1),
        record(pipeline="outlier", uncached_tokens=700, cache_lag_s=None),
    )
    nodes = {key.node: sums for key, sums in send.buffer.rollups.nodes.items()}
    assert {name: (sums.requests, sums.uncached_tokens, sums.lag_token_s) for name, sums in nodes.items()} == {
        "md-1": (2, 50, 90.0),
        "md-2": (1, 0, 0.0),
    }


def test_a_link_is_counted_from_one_observer_until_that_one_is_silent(send):
    send.samples(T0, links=[link(0)], observer="a")
    send.samples(T0 + 1, links=[link(100)], observer="b")
    send.samples(T0 + 2, links=[link(200)], observer="a")
    send.samples(T0 + 9, links=[link(300)], observer="b")
    assert send.buffer.rollups.links[LinkKey(int(T0), "ams-fra")].total_bytes == 300


def test_nodes_add_up_to_what_relay_nodes_do_and_what_is_stranded(send):
    nodes = [
        NodeSample("p", "ams", "prefill", "ready", stranded_bytes=500, stranded_age_s=12.0),
        NodeSample("p2", "ams", "prefill", "ready", stranded_bytes=700, stranded_age_s=2.0),
        NodeSample("rld", "ams", "relay", "ready", running=3, waiting=1, slots=4),
        NodeSample("gone", "ams", "relay", "unreachable", slots=4),
        NodeSample("liar", "ams", "relay", "ready", running=-1, stranded_bytes=10**17),
    ]
    send.samples(T0, nodes=nodes)
    site = send.buffer.rollups.sites[SiteKey(int(T0), "ams")]
    assert (site.stranded_bytes, site.relay_running, site.relay_slots) == (500, 3, 4)
    assert (site.node_samples, site.unreachable_samples, send.buffer.left_out["impossible"]) == (4, 1, 1)


@given(
    values=st.lists(st.tuples(st.integers(0, 7200), st.floats(0.001, 600)), min_size=1, max_size=100),
)
def test_longer_spans_hold_exactly_what_the_short_ones_do(values):
    send = Senders()
    send.requests(*(record(ended_at_s=T0 - age_s, ttft_s=ttft_s, e2e_s=600.0) for age_s, ttft_s in values))
    for resolution in RESOLUTIONS:
        folded = send.buffer.rollups.at(resolution, T0)
        assert {key.at_s % resolution.span_s for key in folded.requests} == {0}
        total = RequestSums.merged(folded.requests.values())
        assert total.requests == len(values)
        assert total.ttft == Histogram.of(ttft_s for _, ttft_s in values)


def test_what_would_not_be_kept_is_only_in_the_longer_spans(send):
    send.requests(record(ended_at_s=T0 - 7 * 3600))
    rollups = send.buffer.rollups
    assert [rollups.at(resolution, T0).cells for resolution in (FINE, MIDDLE, COARSE)] == [1, 2, 2]
    assert not rollups.at(FINE, T0).requests


def test_the_cost_of_storing_does_not_depend_on_the_number_of_requests(send):
    rng = np.random.default_rng(3)
    for count in (10, 2000):
        send.buffer.rollups = Rollups()
        send.requests(*(record(ttft_s=float(value)) for value in rng.lognormal(0, 1, count)))
        assert send.buffer.rollups.cells == 2
