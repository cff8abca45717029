import pytest

from control.domain.waterfall import StageSpan, critical_path
from webapp.waterfall import hidden_transfer_s, lay_out

RELAYED = (
    StageSpan("queue", 0.0, 1.0),
    StageSpan("prefill", 1.0, 2.0),
    StageSpan("kv_rdma", 2.0, 2.1),
    StageSpan("relay_decode", 2.1, 6.0),
    StageSpan("kv_wan", 2.0, 5.0),
    StageSpan("handoff", 5.0, 6.0),
    StageSpan("main_decode", 6.0, 60.0),
)
MEDIAN = (StageSpan("queue", 0.0, 0.2), StageSpan("prefill", 0.2, 1.0))


def laid_out(stages=RELAYED, **more):
    path = critical_path(stages, 2.2)
    moments = {"ttft_s": 2.2, "e2e_s": 60.0, "slo_s": 4.0, "median_ttft_s": 1.1} | more
    return lay_out(stages, path, MEDIAN, **moments)


def test_rows_come_in_causal_order_and_a_long_decode_is_cut():
    layout = laid_out()
    assert [row.name for row in layout.rows] == [
        *("queue", "prefill", "kv_rdma", "relay_decode", "kv_wan", "handoff", "main_decode")
    ]
    assert layout.length_s < 20
    assert [row.name for row in layout.rows if any(bar.is_cut for bar in row.bars)] == ["main_decode"]
    for row in layout.rows:
        for bar in row.bars:
            assert 0 <= bar.left <= bar.left + bar.width <= 100.01


def test_what_held_up_the_first_token_is_measured_against_the_median():
    layout = laid_out()
    assert [(one.name, round(one.seconds, 3)) for one in layout.excess] == [
        ("queue", 0.8),
        ("prefill", 0.2),
        ("kv_rdma", 0.1),
        ("relay_decode", 0.1),
    ]
    assert [row.name for row in layout.rows if row.critical] == ["queue", "prefill", "kv_rdma", "relay_decode"]


def test_only_a_relay_hides_a_transfer():
    assert hidden_transfer_s(RELAYED, 2.2) == pytest.approx(2.8)
    direct = tuple(span for span in RELAYED if span.name != "relay_decode")
    assert hidden_transfer_s(direct, 5.5) == 0.0


def test_a_request_without_a_first_token_or_stages_can_still_be_drawn():
    layout = lay_out((), (), (), ttft_s=None, e2e_s=0.0, slo_s=None, median_ttft_s=None)
    assert (layout.rows, layout.ttft, layout.excess) == ((), None, ())
    assert layout.length_s > 0


def test_a_moment_behind_the_axis_is_not_drawn():
    assert laid_out(slo_s=500.0).slo is None
