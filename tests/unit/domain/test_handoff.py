"""When to hand over, and how."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.handoff import (
    MAX_CATCH_UP_BATCHES,
    HandoffKnobs,
    HandoffMode,
    HandoffStep,
    choose_handoff_mode,
    next_handoff_step,
    recompute_limit_tokens,
)
from control.domain.performance import (
    decode_step_s,
    flow_rate_bytes_per_s,
    handoff_stall_s,
    predict_transfer_s,
    prefill_s,
)

KNOBS = HandoffKnobs(HandoffMode.AUTO, 64, 32)


@pytest.mark.parametrize(
    ("eager", "is_full", "mode", "expected"),
    [
        (64, False, HandoffMode.AUTO, HandoffMode.ONE_SHOT),
        (65, False, HandoffMode.AUTO, HandoffMode.CATCH_UP),
        (65, True, HandoffMode.AUTO, HandoffMode.ONE_SHOT),
        (1, False, HandoffMode.CATCH_UP, HandoffMode.CATCH_UP),
        (900, False, HandoffMode.ONE_SHOT, HandoffMode.ONE_SHOT),
    ],
)
def test_mode_follows_eager_tokens_and_relay_load(eager, is_full, mode, expected) -> None:
    assert choose_handoff_mode(eager, is_full, KNOBS._replace(mode=mode)) is expected


def test_one_shot_cuts_at_once() -> None:
    assert next_handoff_step(HandoffMode.ONE_SHOT, 500, 0, 0, KNOBS) is HandoffStep.CUT


@given(st.integers(0, 2000), st.floats(0.001, 0.05), st.floats(0.0, 0.5), st.floats(0.0, 0.05))
def test_catch_up_always_ends(eager: int, step_s: float, x0_s: float, x1_s: float) -> None:
    pending, last, batches = eager, 0, 0
    while next_handoff_step(HandoffMode.CATCH_UP, pending, last, batches, KNOBS) is HandoffStep.BATCH:
        pending, last = int(handoff_stall_s(pending, 0.03, x0_s, x1_s) / step_s), pending
        batches += 1
    assert batches <= MAX_CATCH_UP_BATCHES


def test_catch_up_leaves_a_small_last_batch_where_main_is_faster() -> None:
    pending, last, batches = 200, 0, 0
    while next_handoff_step(HandoffMode.CATCH_UP, pending, last, batches, KNOBS) is HandoffStep.BATCH:
        pending, last = int(handoff_stall_s(pending, 0.03, 0.05, 0.007) / 0.027), pending
        batches += 1
    assert pending <= KNOBS.catch_up_batch_tokens


def test_a_transfer_is_as_fast_as_its_share_or_its_cap() -> None:
    assert flow_rate_bytes_per_s(5e6, 1.5e6, other_flows=0) == 1.5e6
    assert flow_rate_bytes_per_s(5e6, 1.5e6, other_flows=9) == 5e5
    assert flow_rate_bytes_per_s(5e6, 0.0, other_flows=0) == 5e6
    assert flow_rate_bytes_per_s(5e6, 1.5e6, other_flows=0, streams=2) == 3e6


def test_nothing_to_send_takes_no_time() -> None:
    assert predict_transfer_s(0, 0, 1.5e6, 0.03) == 0.0
    assert predict_transfer_s(1.5e6, 3e6, 1.5e6, 0.03) == pytest.approx(3.06)


def test_costs_of_compute() -> None:
    assert decode_step_s(4, 0.02, 0.001) == pytest.approx(0.024)
    assert prefill_s(1000, 0, 1000.0, 1e12) == pytest.approx(1.0)
    assert prefill_s(1000, 500, 1000.0, 1000.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("expected", "compute_s", "transfer_s", "limit"),
    [(20, 0.010, 0.002, 20 + 15), (20, 0.002, 0.010, None), (20, 0.0, 0.0, None), (0, 1.0, 0.0, 1)],
)
def test_an_evicted_prefix_is_pulled_again_where_that_is_faster(expected, compute_s, transfer_s, limit) -> None:
    assert recompute_limit_tokens(expected, compute_s, transfer_s, setup_s=0.12) == limit
