"""The guard of a roll-out: what aborts, what holds, and that missing data never lets anything forward."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.guard_rules import (
    Decision,
    GroupFigures,
    Groups,
    Guard,
    SignalRule,
    SignalVerdict,
    judge_canary,
)
from control.domain.guard_signals import GUARD_SIGNALS
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.rollups import RequestSums

NAMES = [signal.name for signal in GUARD_SIGNALS]
GUARD = Guard.of_policy(DEFAULT_POLICY_DOCUMENT)
FINE = {"ttft_p99": 2.0, "error_rate": 0.0, "rld_share": 0.1, "transfer_p99": 1.0, "cache_lag": 10.0}


def group(requests=100, **values):
    return GroupFigures(requests, {**FINE, **values})


def judge(canary=None, control=None, before=None, guard=GUARD, blind=()):
    return judge_canary(guard, Groups(canary or group(), control or group(), before or group()), blind)


def test_equal_groups_go_forward():
    judgement = judge()
    assert (judgement.decision, judgement.reasons) == (Decision.FORWARD, ())
    assert [reading.signal for reading in judgement.readings] == NAMES
    assert {reading.verdict for reading in judgement.readings} == {SignalVerdict.OK}


@pytest.mark.parametrize(
    ("name", "bad"),
    [("ttft_p99", 3.1), ("error_rate", 0.03), ("rld_share", 0.21), ("transfer_p99", 2.1), ("cache_lag", 501.0)],
)
def test_what_is_worse_than_both_references_and_the_floor_aborts(name, bad):
    judgement = judge(canary=group(**{name: bad}))
    [breach] = [reading for reading in judgement.readings if reading.verdict is SignalVerdict.BREACH]
    assert (judgement.decision, breach.signal, breach.canary) == (Decision.ABORT, name, bad)
    [reason] = judgement.reasons
    assert reason.startswith(f"{name} is {bad:.3g}")


@pytest.mark.parametrize(("before", "control"), [(2.0, 9.0), (9.0, 2.0)])
def test_what_is_worse_than_one_reference_only_is_suspect_and_holds(before, control):
    judgement = judge(group(ttft_p99=5.0), group(ttft_p99=control), group(ttft_p99=before))
    assert (judgement.decision, judgement.is_suspect) == (Decision.HOLD, True)
    reading = judgement.readings[0]
    assert (reading.verdict, reading.hold_bound, reading.bound) == (SignalVerdict.SUSPECT, 3.0, 13.5)


def test_a_reference_without_a_value_counts_as_none_happened_so_the_floor_is_the_bound():
    assert SignalRule(1.5, 2.0).bound(None) == 2.0
    none = group(transfer_p99=None)
    assert judge(group(transfer_p99=1.9), none, none).decision is Decision.FORWARD
    assert judge(group(transfer_p99=2.1), none, none).decision is Decision.ABORT
    assert judge(none).decision is Decision.FORWARD


def test_a_signal_that_is_switched_off_says_nothing():
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, {"guard.ttft_p99_max_ratio": None})
    judgement = judge(group(ttft_p99=3600.0), guard=Guard.of_policy(document))
    assert (judgement.decision, judgement.readings[0].verdict) == (Decision.FORWARD, SignalVerdict.OFF)


def test_a_guard_without_any_signal_holds():
    rules = {name: replace(rule, max_ratio=None) for name, rule in GUARD.rules.items()}
    assert judge(guard=replace(GUARD, rules=rules)).decision is Decision.HOLD


@pytest.mark.parametrize("few", ["canary", "control", "before"])
def test_too_few_requests_in_any_group_hold_and_do_not_abort(few):
    judgement = judge(**{"canary": group(error_rate=1.0), few: group(49, error_rate=1.0)})
    assert (judgement.decision, judgement.is_suspect) == (Decision.HOLD, False)
    assert "49 requests of the 50" in judgement.reasons[0]
    assert {reading.verdict for reading in judgement.readings} == {SignalVerdict.MISSING}


def test_stale_data_hold_and_do_not_abort():
    judgement = judge(canary=group(error_rate=1.0), blind=["telemetry has not been summed up for 40 s"])
    assert (judgement.decision, judgement.reasons) == (
        Decision.HOLD,
        ("telemetry has not been summed up for 40 s",),
    )


some_value = st.none() | st.floats(0, 1e6)
some_group = st.builds(GroupFigures, st.integers(0, 200), st.fixed_dictionaries(dict.fromkeys(NAMES, some_value)))


@given(some_group, some_group, st.none() | some_group, st.lists(st.just("stale"), max_size=1))
def test_it_never_goes_forward_on_missing_or_stale_data_nor_beyond_a_bound(canary, control, before, blind):
    judgement = judge_canary(GUARD, Groups(canary, control, before), blind)
    sizes = (canary.requests, control.requests, before.requests if before else 0)
    is_known = not blind and min(sizes) >= GUARD.min_requests
    assert is_known or judgement.decision is Decision.HOLD
    if judgement.decision is Decision.FORWARD:
        for reading in judgement.readings:
            assert reading.canary_at_least is None or reading.canary_at_least <= reading.hold_bound
    assert (judgement.decision is Decision.FORWARD) == (not judgement.reasons)


@given(some_group, some_group, some_group, st.sampled_from(NAMES), st.floats(0, 1e6))
def test_a_worse_canary_is_never_judged_better(canary, control, before, name, more):
    groups = Groups(canary, control, before)
    worse = replace(canary, values={**canary.values, name: (canary.values[name] or 0.0) + more})
    ranks = [Decision.FORWARD, Decision.HOLD, Decision.ABORT]
    first, second = (judge_canary(GUARD, replace(groups, canary=one)).decision for one in (canary, worse))
    assert ranks.index(second) >= ranks.index(first)


def test_a_guard_and_its_figures_survive_their_way_through_json():
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, {"guard.rld_share_max_ratio": None, "guard.bake_s": 7.0})
    guard = Guard.of_policy(document)
    assert Guard.from_values(guard.to_values()) == guard
    assert GroupFigures.from_values(group(ttft_p99=None).to_values()) == group(ttft_p99=None)
    assert GroupFigures.from_values(None) is None


def test_one_slow_request_of_a_few_aborts_nothing_and_many_do():
    def canary(slow, count):
        sums = RequestSums(requests=count, completed=count)
        for number in range(count):
            sums.ttft.add(30.0 if number < slow else 1.0)
        return GroupFigures.of_sums(sums)

    judged = [judge(canary(slow, 60)).decision for slow in (1, 3, 6, 60)]
    assert judged == [Decision.FORWARD, Decision.FORWARD, Decision.ABORT, Decision.ABORT]
    assert judge(canary(30, 1000)).decision is Decision.ABORT
    seen = judge(canary(1, 60)).readings[0]
    assert seen.canary == pytest.approx(30.0, rel=0.02)
    assert seen.canary_at_least == pytest.approx(1.0, rel=0.02)


def test_one_failed_request_of_a_few_aborts_nothing_and_many_do():
    def canary(failed, count):
        return GroupFigures.of_sums(RequestSums(requests=count, completed=count - failed, failed=failed))

    judged = [judge(canary(failed, 60)).decision for failed in (1, 3, 9, 60)]
    assert judged == [Decision.FORWARD, Decision.FORWARD, Decision.ABORT, Decision.ABORT]


def test_figures_come_from_the_sums_of_a_group():
    sums = RequestSums(requests=10, completed=6, client_closed=1, shed=2, failed=1, output_tokens=200, eager_tokens=50)
    sums.lag_token_s = 30.0
    sums.ttft.add(2.0)
    figures = GroupFigures.of_sums(sums)
    assert figures.requests == 10
    assert figures.values["ttft_p99"] == pytest.approx(2.0, rel=0.02)
    assert figures.values["error_rate"] == pytest.approx(0.3)
    assert (figures.values["rld_share"], figures.values["cache_lag"]) == (0.25, 3.0)
    assert figures.values["transfer_p99"] is None
    assert GroupFigures.of_sums(None) == GroupFigures()
