from dataclasses import replace
from datetime import timedelta

import pytest
from sqlmodel import select

from control.services.access import Principal, Role
from control.services.policies import RevisionDraft, create_revision
from control.services.reports import MAX_WAITING_ORDERS
from control.services.rollout import (
    Report,
    RolloutState,
    load_statuses,
    record_report,
    sweep_gateways,
)
from control.store.tables import GatewayReportRow

ACTIVE = 2


@pytest.fixture
def rolled(seeded, orders):
    """Revision 2 is active, and its orders are gone."""
    draft = RevisionDraft("why", 1, changes={"handoff.one_shot_max_tokens": 7}, apply=True)
    create_revision(seeded, Principal("olga", Role.OPERATOR), draft)
    orders.clear()
    return seeded


@pytest.fixture
def report(clock):
    return Report("order", "ams-gw-01", "ams", ACTIVE, "applied", "", clock.now)


def status(plane):
    with plane.database.reading() as session:
        [only] = load_statuses(session, ACTIVE, plane.now())
    return only


def sweep(plane, waiting=0):
    return sweep_gateways(plane, lambda _: waiting)


def test_a_report_is_read_from_the_tasks_arguments(report):
    arguments = {
        "order_id": "order",
        "gateway": "ams-gw-01",
        "site": "ams",
        "revision": 2,
        "state": "applied",
        "error": None,
        "applied_at_s": report.observed_at.timestamp(),
    }
    assert Report.from_arguments(arguments) == report
    with pytest.raises(KeyError):
        Report.from_arguments({})


def test_a_gateway_that_never_reported_is_unknown(rolled):
    assert (status(rolled).state, status(rolled).revision, status(rolled).age_s) == (RolloutState.UNKNOWN, None, None)


@pytest.mark.parametrize(
    ("change", "age_s", "expected"),
    [
        ({}, 0, RolloutState.APPLIED),
        ({"revision": 1}, 0, RolloutState.PENDING),
        ({"revision": 1, "state": "failed", "error": "no"}, 0, RolloutState.FAILED),
        ({"revision": None, "state": "failed", "error": "no"}, 0, RolloutState.FAILED),
        ({}, 31, RolloutState.STALE),
    ],
)
def test_a_gateways_status_follows_from_its_last_report(rolled, report, change, age_s, expected):
    clock = rolled.now
    assert record_report(rolled, replace(report, **change))
    clock.advance(seconds=age_s)
    found = status(rolled)
    assert (found.state, found.age_s, found.error) == (expected, age_s, change.get("error", ""))
    assert found.is_drifted == (expected is not RolloutState.APPLIED)


def test_a_late_report_does_not_replace_a_newer_one(rolled, report):
    assert record_report(rolled, report)
    assert not record_report(rolled, replace(report, revision=1, observed_at=report.observed_at - timedelta(seconds=1)))
    assert not record_report(rolled, replace(report, revision=1))
    assert status(rolled).revision == ACTIVE
    assert record_report(rolled, replace(report, revision=3, observed_at=report.observed_at + timedelta(seconds=1)))
    assert status(rolled).revision == 3


def test_a_report_of_an_unknown_gateway_is_dropped(rolled, report):
    assert not record_report(rolled, replace(report, gateway="elsewhere"))
    with rolled.database.reading() as session:
        assert session.exec(select(GatewayReportRow)).all() == []


def test_a_gateway_that_runs_the_active_revision_is_left_alone_until_it_falls_silent(rolled, orders, clock, report):
    record_report(rolled, report)
    clock.advance(seconds=14)
    assert sweep(rolled) == []
    clock.advance(seconds=1)
    assert sweep(rolled) == ["ams-gw-01"]
    assert [(order.queue, order.arguments["revision"]) for order in orders] == [("site.ams", ACTIVE)]


@pytest.mark.parametrize("change", [None, {"revision": 1}, {"revision": ACTIVE, "state": "failed"}])
def test_a_gateway_that_lags_or_failed_is_sent_the_active_revision_again(rolled, orders, report, change):
    if change is not None:
        record_report(rolled, replace(report, **change))
    assert sweep(rolled) == ["ams-gw-01"]
    assert [order.arguments["force"] for order in orders] == [False]


def test_a_number_that_was_never_given_out_here_is_overruled(rolled, orders, report):
    record_report(rolled, replace(report, revision=9))
    sweep(rolled)
    assert [order.arguments["force"] for order in orders] == [True]


def test_orders_do_not_pile_up_for_a_site_whose_agent_is_away(rolled, orders):
    assert sweep(rolled, MAX_WAITING_ORDERS) == []
    assert orders == []


def test_nothing_is_sent_before_the_first_policy(plane, orders):
    assert sweep(plane) == []
    assert orders == []
