"""Roll-outs over REST."""

import json

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.guard_signals import GUARD_SIGNALS
from control.services.access import Role
from control.services.credentials import ensure_token
from control.settings import Settings
from tests.unit.control.rollout_days import RELAY, RolloutDays

URL = "/api/v1/rollouts"
TRY = {"revision": 3, "share": 0.25, "reason": "a quicker threshold"}


@pytest.fixture
def days(seeded, clock):
    return RolloutDays(seeded, clock)


@pytest.fixture
def app(days):
    ensure_token(days.plane, "viewer", Role.VIEWER, "viewer secret")
    ensure_token(days.plane, "operator", Role.OPERATOR, "operator secret")
    return create_api(Settings.from_environment({}), days.plane)


@pytest.fixture
def operator(app):
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as client:
        yield client


@pytest.fixture
def viewer(app):
    with TestClient(app, headers={"Authorization": "Bearer viewer secret"}) as client:
        yield client


def test_a_rollout_is_planned_opened_watched_paused_and_taken_back(operator, viewer, days):
    planned = operator.post(f"{URL}?dry_run=true", json=TRY)
    assert planned.status_code == 200
    body = planned.json()
    assert [change["path"] for change in body["tried"]] == [RELAY]
    assert (body["canary"], body["base_revision"]) == ({"site": None, "share": 0.25}, 2)
    assert operator.get(URL).json()["items"] == []

    opened = operator.post(URL, json=TRY)
    assert (opened.status_code, opened.headers["location"]) == (201, f"{URL}/1")
    assert (opened.json()["phase"], opened.json()["guard"]["guard.min_requests"]) == ("draft", 20)
    first = opened.headers["etag"]
    days.pass_(rounds=5, canary={"ttft_s": 0.6})

    read = viewer.get(f"{URL}/1")
    body = read.json()
    assert read.headers["etag"] != first
    assert (body["phase"], body["decision"], body["waiting_for"]) == ("baking", "forward", [])
    assert (body["progress"], body["baked_s"], body["bake_s"]) == (0.25, 5.0, 20.0)
    # The control group's may be as many as one span of ten seconds more.
    assert body["requests"] == {"before": 20, "control": 50, "canary": 30}
    assert [signal["signal"] for signal in body["signals"]] == [signal.name for signal in GUARD_SIGNALS]
    ttft = body["signals"][0]
    assert ttft["canary"] == pytest.approx(0.6, rel=0.02)
    assert (ttft["bound"], ttft["verdict"], ttft["unit"]) == (1.0, "ok", "s")

    gateways = viewer.get("/api/v1/gateways").json()["items"]
    assert {(one["revision"], one["canary_revision"]) for one in gateways} == {(2, 3)}

    stale = operator.post(f"{URL}/1/pause", json={"reason": "wait"}, headers={"If-Match": first})
    assert (stale.status_code, stale.json()["type"]) == (412, "urn:pdd:problem:stale-revision")
    paused = operator.post(f"{URL}/1/pause", json={"reason": "wait"}, headers={"If-Match": read.headers["etag"]})
    assert (paused.status_code, paused.json()["phase"], paused.json()["paused_from"]) == (200, "paused", "baking")
    assert operator.post(f"{URL}/1/resume", json={"reason": "on"}).json()["phase"] == "baking"
    assert operator.post(f"{URL}/1/abort", json={"reason": "no"}).json()["phase"] == "aborting"
    days.pass_()
    assert [one["phase"] for one in viewer.get(f"{URL}?phase=aborted&revision=3").json()["items"]] == ["aborted"]
    assert viewer.get(f"{URL}?phase=done").json()["items"] == []


def test_what_stands_against_an_open_rollout_is_named(operator, days):
    operator.post(URL, json=TRY)
    changes = {"reason": "x", "base_revision": 2, "changes": {RELAY: 4.0}, "apply": True}
    for refused in (
        operator.post("/api/v1/policies/revisions", json=changes),
        operator.post("/api/v1/policies/revisions/3/apply", json={"reason": "x"}),
        operator.post("/api/v1/policies/revisions/1/revert", json={"reason": "x"}),
        operator.post(URL, json=TRY),
    ):
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:pdd:problem:rollout-open")
        assert "Roll-out 1 of r3 is draft" in refused.json()["detail"]
    assert operator.post("/api/v1/policies/revisions", json={**changes, "apply": False}).status_code == 201


def test_promoting_on_missing_data_is_refused_unless_forced(operator, days):
    operator.post(URL, json=TRY)
    days.pass_(rounds=2)
    refused = operator.post(f"{URL}/1/promote", json={"reason": "go"})
    assert refused.status_code == 409
    assert "requests of the 20" in refused.json()["detail"]
    forced = operator.post(f"{URL}/1/promote", json={"reason": "go", "force": True})
    assert (forced.json()["phase"], forced.json()["ending"]) == ("promoting", "go")


def test_the_same_key_opens_one_rollout(operator):
    answers = [operator.post(URL, json=TRY, headers={"Idempotency-Key": "once"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert len(operator.get(URL).json()["items"]) == 1


@pytest.mark.parametrize("verb", ["", "/1/promote", "/1/pause", "/1/resume", "/1/abort"])
def test_changes_are_for_operators(app, viewer, verb):
    body = TRY if not verb else {"reason": "x"}
    assert viewer.post(f"{URL}{verb}", json=body).status_code == 403
    with TestClient(app) as nobody:
        assert nobody.post(f"{URL}{verb}", json=body).status_code == 401


@pytest.mark.parametrize(
    "wrong", [{"revision": 0}, {"share": 1.5}, {"bake_s": 0}, {"reason": ""}, {"colour": "red"}, {"site": ""}]
)
def test_a_wrong_body_is_refused(operator, wrong):
    assert operator.post(URL, json={**TRY, **wrong}).status_code == 422


def test_what_is_not_there_is_not_found(operator):
    assert operator.get(f"{URL}/7").status_code == 404
    assert operator.post(f"{URL}/7/abort", json={"reason": "x"}).status_code == 404


def test_its_changes_are_audited_under_its_number(operator, days):
    operator.post(URL, json=TRY)
    days.pass_(rounds=2)
    events = operator.get("/api/v1/audit?target=rollout/").json()["items"]
    assert [event["action"] for event in events] == ["rollout.canary", "rollout.open"]
    assert json.dumps(events[0]["after"])
