"""Objectives over the store and over REST: stated, set, judged; unknown without data."""

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.burn_rate import BurnState
from control.domain.slo import Indicator, Slo
from control.domain.versions import ANY_VERSION
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, StaleRevisionError
from control.services.access import Principal, Role
from control.services.audit import load_events
from control.services.credentials import ensure_token
from control.services.slos import create_slo, delete_slo, load_slo, load_slos, load_statuses, replace_slo
from control.settings import Settings
from tests.unit.control.rollup_writers import write_requests

API = "/api/v1/slos"
OLGA, VERA = Principal("olga", Role.OPERATOR), Principal("vera", Role.VIEWER)
MINE = Slo("mine", Indicator.TTFT, 0.9, 2.0, "default", "ams")
HOUR_S = 3600


def status(plane, slo):
    with plane.database.reading() as session:
        return load_statuses(session, [slo], plane.now().timestamp())[slo.name]


def fill(plane, *, good=0, bad=0, age_s=30.0):
    if good:
        write_requests(plane, good, age_s=age_s, ttft_s=0.5)
    if bad:
        write_requests(plane, bad, age_s=age_s, ttft_s=5.0)


def test_without_data_nothing_is_good(seeded):
    found = status(seeded, MINE)
    assert (found.state, found.budget_left, found.pairs[0].rate) == (BurnState.UNKNOWN, None, None)
    fill(seeded, good=5, age_s=2 * HOUR_S)
    found = status(seeded, MINE)
    assert (found.state, found.budget_left) == (BurnState.UNKNOWN, 1.0)


@pytest.mark.parametrize(
    ("recent", "older", "expected"),
    [
        ({"good": 10}, {"good": 90}, BurnState.OK),
        ({"bad": 100}, {"bad": 100}, BurnState.OK),
    ],
)
def test_a_loose_target_cannot_burn_fourteen_times_too_fast(seeded, recent, older, expected):
    fill(seeded, **recent)
    fill(seeded, **older, age_s=1000)
    assert status(seeded, MINE).pairs[0].state is expected


def test_burns_when_long_and_short_window_do(seeded):
    tight = Slo("tight", Indicator.TTFT, 0.99, 2.0)
    fill(seeded, good=50, bad=50)
    found = status(seeded, tight)
    assert found.state is BurnState.BURNING
    assert found.pairs[0].rate == pytest.approx(50)
    assert found.budget_left == pytest.approx(-49)


def test_a_spent_budget_is_not_said_to_be_kept(seeded, clock):
    tight = Slo("tight", Indicator.TTFT, 0.99, 2.0)
    fill(seeded, good=950, bad=50)
    clock.advance(hours=12)
    fill(seeded, good=50)
    clock.advance(minutes=3)
    fill(seeded, good=50)
    found = status(seeded, tight)
    assert [pair.state for pair in found.pairs] == [BurnState.OK, BurnState.OK]
    assert found.budget_left < 0
    assert found.state is BurnState.EXHAUSTED
    tenth = Slo("loose", Indicator.TTFT, 0.9, 2.0)
    assert status(seeded, tenth).state is BurnState.OK


def test_stops_burning_when_the_short_window_is_good_again(seeded, clock):
    tight = Slo("tight", Indicator.TTFT, 0.99, 2.0)
    fill(seeded, bad=50)
    clock.advance(minutes=20)
    fill(seeded, good=50)
    fast, slow = status(seeded, tight).pairs
    assert (fast.short_rate, fast.state) == (0, BurnState.OK)
    assert fast.long_rate == pytest.approx(50)
    assert slow.state is BurnState.BURNING


def test_only_requests_of_the_class_and_site_count(seeded):
    write_requests(seeded, 5, ttft_s=9.0, service_class="gold")
    write_requests(seeded, 5, ttft_s=9.0, site="fra")
    write_requests(seeded, 4)
    assert (status(seeded, MINE).budget.good, status(seeded, MINE).budget.bad) == (4, 0)
    assert status(seeded, Slo("all", Indicator.TTFT, 0.9, 2.0)).budget.bad == 10


def test_a_row_takes_the_place_of_the_policys_objective_until_it_is_deleted(seeded):
    with seeded.database.reading() as session:
        assert [one.slo.name for one in load_slos(session)] == [
            "default-availability",
            "default-tpot-p90",
            "default-ttft-p90",
            "default-ttft-p99",
        ]
    set_ = create_slo(seeded, OLGA, Slo("default-ttft-p90", Indicator.TTFT, 0.95, 1.0, "default"))
    with seeded.database.reading() as session:
        assert load_slo(session, "default-ttft-p90") == set_
    delete_slo(seeded, OLGA, "default-ttft-p90", {set_.version})
    with seeded.database.reading() as session:
        assert load_slo(session, "default-ttft-p90").updated_at is None
    with pytest.raises(ConflictError, match="policy"):
        delete_slo(seeded, OLGA, "default-ttft-p90", ANY_VERSION)


def test_changes_are_made_against_a_version_and_leave_a_trace(seeded):
    first = create_slo(seeded, OLGA, MINE, "first").version
    with pytest.raises(ConflictError):
        create_slo(seeded, OLGA, MINE)
    changed = replace_slo(seeded, OLGA, Slo("mine", Indicator.TTFT, 0.8, 3.0), "second", {first})
    assert (changed.slo.target, changed.slo.site, changed.updated_by) == (0.8, None, "olga")
    with pytest.raises(StaleRevisionError):
        replace_slo(seeded, OLGA, MINE, "", {first})
    with pytest.raises(StaleRevisionError):
        delete_slo(seeded, OLGA, "mine", {first})
    delete_slo(seeded, OLGA, "mine", {changed.version})
    with pytest.raises(NotFoundError):
        replace_slo(seeded, OLGA, MINE, "", ANY_VERSION)
    with seeded.database.reading() as session:
        events = [event for event in load_events(session, 50) if event.target == "slo/mine"]
    assert [event.action for event in events] == ["slo.delete", "slo.replace", "slo.create"]
    assert (events[1].before["target"], events[1].after["target"], events[1].actor) == (0.9, 0.8, "olga")


@pytest.mark.parametrize(
    "slo",
    [
        Slo("Bad name", Indicator.TTFT, 0.9, 1.0),
        Slo("x", Indicator.TTFT, 1.0, 1.0),
        Slo("x", Indicator.TTFT, 0.0, 1.0),
        Slo("x", Indicator.TTFT, 0.9),
        Slo("x", Indicator.TPOT, 0.9, -1.0),
        Slo("x", Indicator.AVAILABILITY, 0.9, 1.0),
    ],
)
def test_what_cannot_be_judged_is_refused(seeded, slo):
    with pytest.raises(InvalidError):
        create_slo(seeded, OLGA, slo)


def test_viewers_change_nothing(seeded):
    for attempt in (
        lambda: create_slo(seeded, VERA, MINE),
        lambda: replace_slo(seeded, VERA, MINE, "", None),
        lambda: delete_slo(seeded, VERA, "mine", None),
    ):
        with pytest.raises(ForbiddenError):
            attempt()


@pytest.fixture
def operator(seeded):
    ensure_token(seeded, "operator", Role.OPERATOR, "operator secret")
    app = create_api(Settings.from_environment({}), seeded)
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as client:
        yield client


def test_objectives_over_rest(operator, seeded):
    body = {"name": "mine", "indicator": "ttft", "target": 0.99, "threshold_s": 2, "service_class": "default"}
    made = operator.post(API, json=body)
    assert (made.status_code, made.headers["location"]) == (201, f"{API}/mine")
    tag = made.headers["etag"]
    assert (made.json()["state"], made.json()["budget_left"]) == ("unknown", None)
    fill(seeded, good=99, bad=1)
    read = operator.get(f"{API}/mine")
    assert (read.json()["state"], read.json()["budget_events"], read.json()["source"]) == ("ok", 100, "explicit")
    assert read.json()["budget_left"] == pytest.approx(0, abs=1e-6)
    del body["name"]
    assert operator.put(f"{API}/mine", json=body).status_code == 428
    assert operator.put(f"{API}/mine", json=body, headers={"If-Match": '"v7"'}).status_code == 412
    assert operator.put(f"{API}/mine", json=body, headers={"If-Match": "x"}).status_code == 412
    changed = operator.put(f"{API}/mine", json={**body, "target": 0.9}, headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["target"]) == (200, 0.9)
    assert operator.put(f"{API}/mine", json=body, headers={"If-Match": tag}).status_code == 412
    assert operator.get(f"{API}/mine").headers["etag"] == changed.headers["etag"] != tag
    listed = operator.get(API).json()["items"]
    assert [one["source"] for one in listed] == ["policy", "policy", "policy", "policy", "explicit"]
    assert operator.delete(f"{API}/mine", headers={"If-Match": "*"}).status_code == 204
    assert operator.get(f"{API}/mine").status_code == 404


def test_wrong_fields_are_refused(operator):
    for change in [{"target": 1}, {"indicator": "x"}, {"threshold_s": "NaN"}, {"more": 1}]:
        body = {"name": "mine", "indicator": "ttft", "target": 0.99, "threshold_s": 2, **change}
        assert operator.post(API, json=body).status_code == 422, change
