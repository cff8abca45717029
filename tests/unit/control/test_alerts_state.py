"""An alert's life as a state machine: whatever the data does, nothing begins or ends on what is not known."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.alert_metrics import METRICS, METRICS_BY_NAME, Reading
from control.domain.alert_rules import BUILT_IN_RULES, AlertRule, rule_problems
from control.domain.alerts import (
    FLAP_CALM_S,
    FLAP_FIRINGS,
    REPEAT_AFTER,
    AlertEvent,
    AlertState,
    Notice,
    Told,
    due_notice,
    fingerprint,
    next_step,
)
from control.domain.collapse import RelayPicture, collapse_growth
from control.domain.silences import Matcher, Operator, match_all

T0 = datetime(2030, 1, 1, tzinfo=UTC)
RULE = AlertRule("r", "ttft_p99_s", 10.0, clear_threshold=8.0, for_s=60, clear_for_s=30)
BREACH, BAND, CLEAR = 11.0, 9.0, 5.0
EVERY_S = 10


def run(values, *, rule=RULE, recent_firings=0):
    """Evaluations every ten seconds; gives the steps."""
    track, steps = None, []
    for index, value in enumerate(values):
        step = next_step(track, Reading({}, value), rule, T0 + timedelta(seconds=EVERY_S * index), recent_firings)
        steps.append(step)
        is_over = step.track is None or step.track.state is AlertState.RESOLVED
        track = None if is_over else step.track
    return steps


def states(steps):
    return [None if step.track is None else step.track.state.value for step in steps]


def events(steps):
    return [event for step in steps for event in step.events]


def test_waits_before_it_fires_and_before_it_ends():
    steps = run([BREACH] * 7 + [CLEAR] * 4)
    assert states(steps) == ["pending"] * 6 + ["firing"] * 4 + ["resolved"]
    assert events(steps) == [AlertEvent.FIRED, AlertEvent.RESOLVED]


def test_a_value_that_falls_back_while_pending_never_was():
    assert states(run([BREACH, BREACH, CLEAR])) == ["pending", "pending", None]
    assert states(run([BREACH, BAND])) == ["pending", None]


def test_between_the_thresholds_it_stays_as_it_is():
    steps = run([BREACH] * 7 + [CLEAR] * 2 + [BAND] + [CLEAR] * 3 + [CLEAR])
    assert states(steps)[7:] == ["firing"] * 6 + ["resolved"]


def test_missing_data_neither_ripens_nor_resolves_and_says_so_once():
    steps = run([BREACH] * 6 + [None] + [BREACH] * 7)
    assert states(steps) == ["pending"] * 13 + ["firing"]
    firing = run([BREACH] * 7 + [CLEAR] * 2 + [None] * 50 + [CLEAR] * 3)
    assert states(firing)[7:] == ["firing"] * 55
    assert events(firing) == [AlertEvent.FIRED, AlertEvent.UNKNOWN, AlertEvent.KNOWN]
    assert firing[-4].track.is_unknown
    assert not firing[-1].track.is_unknown


def test_nothing_begins_where_a_value_alone_is_no_reason():
    held_back = Reading({}, BREACH, may_start=False)
    assert next_step(None, held_back, RULE, T0).track is None
    pending = next_step(None, Reading({}, BREACH), RULE, T0).track
    assert next_step(pending, held_back, RULE, T0 + timedelta(seconds=60)).track.state is AlertState.FIRING


def test_one_that_fires_again_and_again_rests_until_it_has_been_calm_for_long():
    at_once = AlertRule("r", "ttft_p99_s", 10.0, for_s=0, clear_for_s=0)
    steps = run([BREACH, *[CLEAR] * 10], rule=at_once, recent_firings=FLAP_FIRINGS - 1)
    assert steps[0].events == (AlertEvent.FIRED, AlertEvent.FLAPPING)
    assert set(states(steps)) == {"firing"}
    calm = run([BREACH, *[CLEAR] * int(FLAP_CALM_S / EVERY_S + 1)], rule=at_once, recent_firings=FLAP_FIRINGS - 1)
    assert states(calm)[-2:] == ["firing", "resolved"]
    assert states(run([BREACH, CLEAR], rule=at_once, recent_firings=FLAP_FIRINGS - 2)) == ["firing", "resolved"]


readings = st.lists(st.sampled_from([BREACH, BAND, CLEAR, None]), max_size=80)


@given(values=readings)
def test_it_fires_only_after_enough_breaches_in_a_row_and_ends_only_after_enough_good_values_in_a_row(values):
    steps = run(values)
    for index, step in enumerate(steps):
        if AlertEvent.FIRED in step.events:
            assert values[index - 6 : index + 1] == [BREACH] * 7
        if AlertEvent.RESOLVED in step.events:
            assert values[index - 3 : index + 1] == [CLEAR] * 4
        if values[index] is None:
            assert not {AlertEvent.FIRED, AlertEvent.RESOLVED} & set(step.events)
    fired, resolved = (events(steps).count(event) for event in (AlertEvent.FIRED, AlertEvent.RESOLVED))
    assert fired - resolved == (bool(steps) and states(steps)[-1] == "firing")


@given(values=readings)
def test_a_rule_below_is_the_mirror_of_a_rule_above(values):
    below = AlertRule("r", "ttft_p99_s", -10.0, above=False, clear_threshold=-8.0, for_s=60, clear_for_s=30)
    assert states(run([None if value is None else -value for value in values], rule=below)) == states(run(values))


@pytest.mark.parametrize(
    ("state", "told", "silenced", "acknowledged", "expected"),
    [
        ("pending", Told(), False, False, None),
        ("firing", Told(), False, False, Notice.FIRING),
        ("firing", Told(), True, False, None),
        ("firing", Told("firing", T0), False, False, None),
        ("firing", Told("firing", T0 - REPEAT_AFTER), False, False, Notice.FIRING),
        ("firing", Told("firing", T0 - REPEAT_AFTER), False, True, None),
        ("firing", Told(), False, True, Notice.FIRING),
        ("resolved", Told("firing", T0), False, False, Notice.RESOLVED),
        ("resolved", Told("firing", T0), True, False, Notice.RESOLVED),
        ("resolved", Told(), False, False, None),
        ("resolved", Told("resolved", T0), False, False, None),
    ],
)
def test_what_receivers_are_told(state, told, silenced, acknowledged, expected):
    found = due_notice(AlertState(state), told, T0, is_silenced=silenced, is_acknowledged=acknowledged)
    assert found is expected


def test_fingerprints_tell_series_apart_but_not_the_order_of_labels():
    first = fingerprint("r", {"site": "ams", "class": "x"})
    assert first == fingerprint("r", {"class": "x", "site": "ams"})
    assert len({first, fingerprint("q", {"site": "ams", "class": "x"}), fingerprint("r", {"site": "ams"})}) == 3


def test_built_in_rules_are_valid_and_every_metric_is_documented():
    assert [rule_problems(rule) for rule in BUILT_IN_RULES] == [[]] * len(BUILT_IN_RULES)
    assert all(rule.summary.endswith((".", "it.")) for rule in BUILT_IN_RULES)
    assert len(METRICS_BY_NAME) == len(METRICS)
    assert all(metric.help and metric.unit for metric in METRICS)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "No"}, "name"),
        ({"metric": "nothing"}, "metric"),
        ({"labels": {"link": "ams-fra"}}, "labels"),
        ({"window_s": 10}, "window_s"),
        ({"for_s": -1}, "for_s"),
        ({"clear_threshold": 11.0}, "clear_threshold"),
    ],
)
def test_rules_that_cannot_be_evaluated_are_refused(change, field):
    fields = {"name": "r", "metric": "ttft_p99_s", "threshold": 10.0, **change}
    assert [problem.path for problem in rule_problems(AlertRule(**fields))] == [field]


QUIET = RelayPicture(1000, 0.03, 0.5, 500.0, 3.0)


@pytest.mark.parametrize(
    ("recent", "grown", "may_start"),
    [
        (RelayPicture(100, 0.12, 2.0, 2000.0, 3.1), True, True),
        (RelayPicture(100, 0.12, 2.0, 2000.0, 9.0), True, False),  # users feel it: the objectives' alerts tell
        (RelayPicture(100, 0.12, 2.0, 500.0, 3.0), False, True),
        (RelayPicture(100, 0.03, 2.0, 2000.0, 3.0), False, True),
        (RelayPicture(100, 0.12, 0.5, 2000.0, 3.0), False, True),
    ],
)
def test_collapse_is_all_three_figures_rising_while_ttft_is_flat(recent, grown, may_start):
    found = collapse_growth(recent, QUIET)
    assert (found.value > 1.5) is grown
    assert found.may_start is may_start


@pytest.mark.parametrize(
    ("recent", "reference"),
    [
        (RelayPicture(5, 0.5, 9.0, 9000.0, 3.0), QUIET),
        (RelayPicture(100, None, 9.0, 9000.0, 3.0), QUIET),
        (RelayPicture(100, 0.5, None, 9000.0, 3.0), QUIET),
        (RelayPicture(100, 0.5, 9.0, 9000.0, None), QUIET),
        (QUIET, RelayPicture(10, 0.01, 0.1, 10.0, 3.0)),
    ],
)
def test_collapse_is_unknown_where_too_little_is_known(recent, reference):
    assert collapse_growth(recent, reference).value is None


def test_growth_from_next_to_nothing_is_no_collapse():
    idle = RelayPicture(1000, 0.0, 0.001, 1.0, 0.2)
    assert collapse_growth(RelayPicture(100, 0.005, 0.02, 20.0, 0.2), idle).value < 1.5


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        (Matcher("site", Operator.EQUAL, "ams"), True),
        (Matcher("site", Operator.EQUAL, "a"), False),
        (Matcher("site", Operator.NOT_EQUAL, "fra"), True),
        (Matcher("link", Operator.NOT_EQUAL, "x"), True),
        (Matcher("link", Operator.EQUAL, ""), True),
        (Matcher("site", Operator.LIKE, "a*"), True),
        (Matcher("site", Operator.LIKE, "f*"), False),
    ],
)
def test_matchers_compare_labels(matcher, expected):
    assert matcher.matches({"site": "ams"}) is expected
    assert Matcher.from_document(matcher.to_document()) == matcher
    assert match_all([matcher, Matcher("site", Operator.LIKE, "*")], {"site": "ams"}) is expected
