"""Alerts, rules, silences and webhooks over REST."""

import json
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.alert_metrics import METRICS
from control.services.access import Role
from control.services.alert_evaluation import evaluate_alerts
from control.services.credentials import ensure_token
from control.settings import Settings
from tests.unit.control.rollup_writers import hear, write_requests

API = "/api/v1"
RULE = {"name": "slow", "metric": "ttft_p99_s", "threshold": 5, "window_s": 60, "for_s": 0, "clear_for_s": 0}


@pytest.fixture
def app(seeded):
    ensure_token(seeded, "viewer", Role.VIEWER, "viewer secret")
    ensure_token(seeded, "operator", Role.OPERATOR, "operator secret")
    return create_api(Settings.from_environment({}), seeded)


@pytest.fixture
def operator(app):
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as client:
        yield client


@pytest.fixture
def viewer(app):
    with TestClient(app, headers={"Authorization": "Bearer viewer secret"}) as client:
        yield client


@pytest.fixture
def firing(operator, seeded, clock):
    """An alert that fires; gives its path."""
    assert operator.post(f"{API}/alert-rules", json=RULE).status_code == 201
    for _ in range(2):
        clock.advance(seconds=10)
        hear(seeded)
        write_requests(seeded, 5, age_s=1, ttft_s=9.0)
        evaluate_alerts(seeded)
    [alert] = operator.get(f"{API}/alerts", params={"state": "firing", "rule": "slow"}).json()["items"]
    return f"{API}/alerts/{alert['id']}"


def test_an_alert_is_read_acknowledged_and_closed(operator, viewer, firing):
    read = viewer.get(firing).json()
    assert (read["state"], read["labels"]["site"], read["silenced_by"]) == ("firing", "ams", [])
    assert [event["kind"] for event in read["history"]] == ["fired"]
    assert operator.post(f"{firing}/acknowledge", json={"comment": " "}).status_code == 422
    acknowledged = operator.post(f"{firing}/acknowledge", json={"comment": "on it"}).json()
    assert (acknowledged["acknowledged_by"], acknowledged["comment"]) == ("token:operator", "on it")
    closed = operator.post(f"{firing}/close", json={"comment": "over"}).json()
    assert (closed["state"], closed["resolution"]) == ("resolved", "closed by hand")
    assert operator.post(f"{firing}/close", json={"comment": "over"}).status_code == 409
    assert operator.get(f"{API}/alerts/9999").status_code == 404


def test_alerts_are_filtered_and_come_in_parts(operator, firing, seeded, clock):
    clock.advance(seconds=60)
    hear(seeded, age_s=45)
    evaluate_alerts(seeded)
    first = operator.get(f"{API}/alerts", params={"limit": 1}).json()
    second = operator.get(f"{API}/alerts", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert (first["items"][0]["rule"], second["items"][0]["rule"]) == ("stale-site", "slow")
    assert second["next_cursor"] is None
    assert operator.get(f"{API}/alerts", params={"state": "resolved"}).json()["items"] == []
    both = operator.get(f"{API}/alerts", params={"state": ["resolved", "firing"], "severity": "warning"}).json()
    assert [one["rule"] for one in both["items"]] == ["slow"]
    assert operator.get(f"{API}/alerts", params={"state": "burning"}).status_code == 422


def test_the_list_of_metrics_is_what_rules_may_watch(operator, viewer):
    listed = viewer.get(f"{API}/alert-metrics").json()["items"]
    assert [one["name"] for one in listed] == [metric.name for metric in METRICS]
    for metric in listed:
        body = {"name": f"on-{metric['name'].replace('_', '-')}", "metric": metric["name"], "threshold": 1}
        assert operator.post(f"{API}/alert-rules", json=body).status_code == 201


WRONG_RULES = (
    *({"metric": "cpu"}, {"threshold": "much"}, {"window_s": 1}, {"severity": "fatal"}, {"name": "No!"}),
    *({"labels": {"node": "x"}}, {"clear_threshold": 6}, {"for_s": -1}, {"more": 1}),
)


def test_rules_with_wrong_fields_are_refused(operator):
    for change in WRONG_RULES:
        answer = operator.post(f"{API}/alert-rules", json={**RULE, **change})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:pdd:problem:invalid"), change


def test_built_in_rules_are_listed_changed_and_brought_back(operator):
    listed = operator.get(f"{API}/alert-rules", params={"limit": 5}).json()
    assert [one["is_built_in"] for one in listed["items"]] == [True] * 5
    rest = operator.get(f"{API}/alert-rules", params={"cursor": listed["next_cursor"]}).json()["items"]
    assert len(rest) == 4
    read = operator.get(f"{API}/alert-rules/valley")
    facts = {name: read.json()[name] for name in ("metric", "threshold", "window_s")}
    path = f"{API}/alert-rules/valley"
    assert operator.put(path, json=facts).status_code == 428
    changed = operator.put(path, json={**facts, "enabled": False}, headers={"If-Match": read.headers["etag"]})
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
    assert operator.put(path, json=facts, headers={"If-Match": read.headers["etag"]}).status_code == 412
    assert operator.delete(path, headers={"If-Match": changed.headers["etag"]}).status_code == 204
    assert operator.get(path).headers["etag"] == read.headers["etag"]
    assert operator.delete(path, headers={"If-Match": "*"}).status_code == 409


def test_a_silence_is_made_changed_and_ended(operator, viewer, firing, seeded):
    ends_at = seeded.now() + timedelta(hours=2)
    matchers = [{"label": "site", "value": "ams"}, {"label": "alertname", "operator": "~", "value": "slo*"}]
    body = {"matchers": matchers, "ends_at": ends_at.isoformat(), "comment": "maintenance"}
    made = operator.post(f"{API}/silences", json=body)
    path = made.headers["location"]
    assert (made.status_code, made.json()["is_active"], made.json()["created_by"]) == (201, True, "token:operator")
    assert viewer.get(firing).json()["silenced_by"] == [made.json()["id"]]
    tag = {"If-Match": made.headers["etag"]}
    longer = {**body, "ends_at": (ends_at + timedelta(hours=1)).isoformat()}
    changed = operator.put(path, json=longer, headers=tag)
    assert changed.status_code == 200
    assert operator.delete(path, headers=tag).status_code == 412
    assert operator.delete(path, headers={"If-Match": changed.headers["etag"]}).status_code == 204
    assert operator.put(path, json=body, headers={"If-Match": "*"}).status_code == 409
    [listed] = viewer.get(f"{API}/silences").json()["items"]
    assert not listed["is_active"]
    assert viewer.get(firing).json()["silenced_by"] == []
    for wrong in ({"ends_at": "2030-01-01T00:00:00"}, {"ends_at": None}, {"matchers": []}, {"comment": ""}):
        assert operator.post(f"{API}/silences", json={**body, **wrong}).status_code == 422
    forever = {**body, "ends_at": (seeded.now() + timedelta(days=31)).isoformat()}
    assert operator.post(f"{API}/silences", json=forever).status_code == 422


def test_a_webhooks_secret_is_shown_once_and_its_path_to_operators_only(operator, viewer):
    body = {"name": "hook", "url": "https://example.com/services/T0KEN", "matchers": [{"label": "site", "value": "x"}]}
    key = {"Idempotency-Key": "one"}
    made = operator.post(f"{API}/webhooks", json=body, headers=key)
    secret = made.json()["secret"]
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    assert secret not in operator.post(f"{API}/webhooks", json=body, headers=key).text
    path = f"{API}/webhooks/hook"
    assert operator.get(path).json()["url"] == body["url"]
    for shown in (viewer.get(path).text, viewer.get(f"{API}/webhooks").text):
        assert "T0KEN" not in shown
        assert "https://example.com/" in shown
    for shown in (operator.get(path).text, operator.get(f"{API}/webhooks").text):
        assert secret not in shown
    renewed = operator.post(f"{path}/secret")
    assert renewed.json()["secret"] != secret
    assert renewed.headers["cache-control"] == "no-store"
    del body["name"]
    changed = operator.put(path, json={**body, "enabled": False}, headers={"If-Match": made.headers["etag"]})
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
    tested = operator.post(f"{API}/webhooks/none/test")
    assert tested.status_code == 404
    assert operator.get(f"{path}/deliveries").json() == {"items": [], "next_cursor": None}
    assert operator.delete(path, headers={"If-Match": changed.headers["etag"]}).status_code == 204


def test_a_test_that_may_not_be_sent_says_why(operator):
    body = {"name": "hook", "url": "http://127.0.0.1:9/"}
    assert operator.post(f"{API}/webhooks", json=body).status_code == 201
    told = operator.post(f"{API}/webhooks/hook/test").json()
    assert (told["is_delivered"], told["status"]) == (False, None)
    assert "private" in told["error"]
    assert operator.post(f"{API}/webhooks", json={"name": "b", "url": "https://a:b@example.com/"}).status_code == 422


HOUR = {"matchers": [{"label": "a", "value": "b"}], "comment": "x", "ends_at": "2030-01-02T04:00:00Z"}


HOSTILE = (
    ("get", "slos/%00", None),
    ("get", "alert-rules/%00", None),
    ("get", "webhooks/%00/deliveries", None),
    ("get", "alerts?rule=%00", None),
    ("get", "alerts/99999999999999999999", None),
    ("get", "silences/0", None),
    ("put", "slos/%00", {"indicator": "ttft", "target": 0.9, "threshold_s": 1}),
    ("post", "slos", {"name": "x", "indicator": "ttft", "target": 0.9, "threshold_s": 1, "site": "\x00"}),
    ("post", "alert-rules", {**RULE, "summary": "\x00"}),
    ("post", "alert-rules", {**RULE, "labels": {"\x00": "x"}}),
    ("post", "alert-rules", {**RULE, "threshold": 1e999}),
    ("post", "silences", {**HOUR, "comment": "\x00"}),
    ("post", "silences", {**HOUR, "ends_at": "9999-12-31T23:59:59-14:00"}),
    ("post", "silences", {**HOUR, "ends_at": "0001-01-01T00:00:00+14:00"}),
    ("post", "silences", {**HOUR, "matchers": [{"label": "a", "operator": "=~", "value": ".*"}]}),
    ("post", "webhooks", {"name": "x", "url": "https://exa\x00mple.com/"}),
    ("post", "webhooks", {"name": "x", "url": "https://" + "a" * 300 + ".com:0/"}),
)


def test_hostile_input_is_refused_and_never_a_crash(operator):
    for method, path, body in HOSTILE:
        content = None if body is None else json.dumps(body)
        answer = operator.request(method, f"{API}/{path}", content=content, headers={"If-Match": "*"})
        assert 400 <= answer.status_code < 500, (path, body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_silence_from_long_ago_begins_now(operator, seeded):
    made = operator.post(f"{API}/silences", json={**HOUR, "starts_at": "1970-01-01T00:00:00+14:00"})
    assert (made.status_code, made.json()["is_active"]) == (201, True)
    assert made.json()["starts_at"].startswith("2030")
    beyond = operator.post(f"{API}/silences", json={**HOUR, "starts_at": "0001-01-01T00:00:00+14:00"})
    assert beyond.status_code == 422
