"""Stages on one axis: medians, and what the first token waited for."""

from control.domain.waterfall import StageSpan, critical_path, median_stages

RELAYED = (
    StageSpan("tokenize", 0.0, 0.1),
    StageSpan("prefill", 0.1, 1.0),
    StageSpan("kv_rdma", 1.0, 1.1),
    StageSpan("kv_wan", 1.0, 3.0),
    StageSpan("relay_decode", 1.1, 3.1),
    StageSpan("handoff", 3.0, 3.3),
    StageSpan("main_decode", 3.3, 5.0),
)


def names(spans):
    return [span.name for span in spans]


def test_the_first_token_of_a_relayed_request_did_not_wait_for_the_wan():
    path = critical_path(RELAYED, 1.2)
    assert names(path) == ["tokenize", "prefill", "kv_rdma", "relay_decode"]
    assert path[-1] == StageSpan("relay_decode", 1.1, 1.2)


def test_the_end_of_a_relayed_request_did():
    assert names(critical_path(RELAYED, 5.0)) == ["tokenize", "prefill", "kv_wan", "handoff", "main_decode"]


def test_a_gap_is_left_out_and_no_stage_makes_no_path():
    path = critical_path((StageSpan("prefill", 0.2, 0.5), StageSpan("main_decode", 0.9, 2.0)), 1.0)
    assert path == (StageSpan("prefill", 0.2, 0.5), StageSpan("main_decode", 0.9, 1.0))
    assert critical_path((), 1.0) == ()
    assert critical_path((StageSpan("queue", 0.5, 0.5),), 1.0) == ()


def test_medians_are_of_stages_that_at_least_half_have():
    found = median_stages(
        [
            (StageSpan("prefill", 0.0, 1.0), StageSpan("main_decode", 1.0, 2.0)),
            (StageSpan("prefill", 0.2, 2.0),),
            (StageSpan("prefill", 0.4, 9.0), StageSpan("handoff", 9.0, 9.1)),
        ]
    )
    assert found == (StageSpan("prefill", 0.2, 2.0),)
    assert median_stages([]) == ()


def test_a_stage_that_was_gone_through_twice_counts_as_a_whole():
    twice = (StageSpan("kv_wan", 1.0, 2.0), StageSpan("kv_wan", 2.5, 4.0))
    assert median_stages([twice]) == (StageSpan("kv_wan", 1.0, 4.0),)
