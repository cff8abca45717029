"""Burn rates and objectives: pure figures, and unknown where there are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.burn_rate import (
    FAST,
    WINDOW_PAIRS,
    BurnState,
    PairBurn,
    Tally,
    budget_left,
    burn_rate,
    burn_state,
    slo_state,
)
from control.domain.histogram import Histogram
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, ServiceClass, parse_policy
from control.domain.rollups import RequestSums
from control.domain.slo import Indicator, Slo, policy_slos, tally_events

targets = st.floats(0.5, 0.9999)
tallies = st.builds(Tally, st.integers(0, 10_000), st.integers(0, 10_000))
rates = st.none() | st.floats(0, 1000)


@given(tally=tallies, target=targets)
def test_a_rate_of_one_spends_exactly_the_budget(tally, target):
    rate, left = burn_rate(tally, target), budget_left(tally, target)
    if not tally.total:
        assert (rate, left) == (None, None)
        return
    assert rate * (1 - target) * tally.total == pytest.approx(tally.bad)
    assert left == pytest.approx(1 - rate)
    assert (left < 0) == (tally.bad > (1 - target) * tally.total)


@given(first=tallies, second=tallies, target=targets)
def test_the_rate_of_both_lies_between_the_rates_of_each(first, second, target):
    known = [rate for rate in (burn_rate(first, target), burn_rate(second, target)) if rate is not None]
    both = burn_rate(first + second, target)
    if known:
        assert min(known) * (1 - 1e-9) <= both <= max(known) * (1 + 1e-9)
    else:
        assert both is None


@given(long_rate=rates, short_rate=rates)
def test_a_pair_burns_only_if_both_windows_do_and_is_good_only_if_both_are_known(long_rate, short_rate):
    state = PairBurn(FAST, long_rate, short_rate).state
    known = long_rate is not None and short_rate is not None
    assert (state is BurnState.UNKNOWN) is not known
    if known:
        assert (state is BurnState.BURNING) is (long_rate > 14.4 and short_rate > 14.4)


@given(pairs=st.lists(st.tuples(rates, rates), min_size=2, max_size=2))
def test_what_is_not_known_is_never_good(pairs):
    burns = [PairBurn(pair, *found) for pair, found in zip(WINDOW_PAIRS, pairs, strict=True)]
    state = burn_state(burns)
    if any(burn.state is BurnState.BURNING for burn in burns):
        assert state is BurnState.BURNING
    elif any(rate is None for found in pairs for rate in found):
        assert state is BurnState.UNKNOWN
    else:
        assert state is BurnState.OK


@given(pairs=st.lists(st.tuples(rates, rates), min_size=2, max_size=2), left=st.none() | st.floats(-10, 1))
def test_an_objective_is_kept_only_while_some_of_its_budget_is_left(pairs, left):
    burns = [PairBurn(pair, *found) for pair, found in zip(WINDOW_PAIRS, pairs, strict=True)]
    state = slo_state(burns, left)
    assert (state is BurnState.BURNING) is (burn_state(burns) is BurnState.BURNING)
    if state is BurnState.OK:
        assert left is None or left > 0
    if state is not BurnState.EXHAUSTED:
        assert state is burn_state(burns)


def test_no_pairs_at_all_are_unknown_too():
    assert burn_state([]) is BurnState.UNKNOWN


@pytest.mark.parametrize("target", [0, 1, -1, 2])
def test_a_target_that_leaves_no_budget_is_refused(target):
    with pytest.raises(ValueError, match="between"):
        burn_rate(Tally(1, 1), target)


def test_events_are_told_by_the_threshold_or_by_the_outcome():
    sums = RequestSums(
        requests=12,
        completed=8,
        client_closed=1,
        rejected=1,
        shed=1,
        failed=1,
        ttft=Histogram.of([0.5] * 7 + [20.0] * 2),
        tpot=Histogram.of([0.01] * 5 + [0.2]),
    )
    assert tally_events(sums, Slo("a", Indicator.TTFT, 0.9, 10.0)) == Tally(7, 2)
    assert tally_events(sums, Slo("b", Indicator.TPOT, 0.9, 0.05)) == Tally(5, 1)
    assert tally_events(sums, Slo("c", Indicator.AVAILABILITY, 0.999)) == Tally(9, 2)


def test_service_classes_state_objectives_of_their_own():
    classes = parse_policy(DEFAULT_POLICY_DOCUMENT).classes
    assert [(slo.name, slo.target, slo.threshold_s) for slo in policy_slos(classes)] == [
        ("default-ttft-p90", 0.9, 10.0),
        ("default-ttft-p99", 0.99, 15.0),
        ("default-tpot-p90", 0.9, 0.05),
        ("default-availability", 0.999, None),
    ]
    no_budget = {"x": ServiceClass(1, 2, 3, availability=1.0)}
    assert [slo.name for slo in policy_slos(no_budget)] == ["x-ttft-p90", "x-ttft-p99", "x-tpot-p90"]
    covered = policy_slos(classes)[0]
    assert covered.covers("ams", "default")
    assert not covered.covers("ams", "gold")
