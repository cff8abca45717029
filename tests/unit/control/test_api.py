import json
import re

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.api.dependencies import SESSION_COOKIE
from control.services.access import Role, sign_in_with_key
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.services.policies import load_revisions
from control.services.rollout import Report, record_report
from control.settings import Settings

API = "/api/v1"
RELAY = "routing.relay_when_transfer_exceeds_s"
CHANGE = {"changes": {RELAY: 0.8}, "reason": "slow link", "base_revision": 1, "apply": True}
EXAMPLES = {"number": "1", "token_id": "1", "session_id": "0123456789abcdef"}
METHODS = {"get", "put", "post", "patch", "delete"}


@pytest.fixture
def app(seeded):
    ensure_token(seeded, "viewer", Role.VIEWER, "viewer secret")
    ensure_token(seeded, "operator", Role.OPERATOR, "operator secret")
    return create_api(Settings.from_environment({}), seeded)


@pytest.fixture
def anonymous(app):
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def viewer(app):
    with TestClient(app, headers={"Authorization": "Bearer viewer secret"}) as client:
        yield client


@pytest.fixture
def operator(app):
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as client:
        yield client


@pytest.fixture
def page(app, seeded):
    """A signed-in administrator's browser; `csrf` is what its pages carry."""
    ensure_admin(seeded)
    signed_in = sign_in_with_key(seeded, issue_login_key(seeded))
    with TestClient(app, cookies={SESSION_COOKIE: signed_in.secret}) as client:
        client.csrf = signed_in.principal.csrf_token
        yield client


def operations(app):
    """Every (method, path) of the API, from the document that also lists them for programs."""
    paths = app.openapi()["paths"]
    found = [(method, path) for path, item in paths.items() for method in item if method in METHODS]
    assert len(found) >= 15
    return [(method, re.sub(r"{(\w+)}", lambda match: EXAMPLES.get(match[1], "ams"), path)) for method, path in found]


def slug(answer):
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["title"]
    return body["type"].removeprefix("urn:pdd:problem:")


def test_no_route_answers_an_anonymous_caller(app, anonymous):
    for method, path in operations(app):
        answer = anonymous.request(method, path, json={})
        assert (answer.status_code, slug(answer)) == (401, "unauthenticated"), (method, path)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_no_mutating_route_obeys_a_viewer_or_a_browser_without_its_token(app, viewer, page, seeded):
    mutating = [(method, path) for method, path in operations(app) if method != "get"]
    assert len(mutating) >= 3
    for method, path in mutating:
        assert slug(viewer.request(method, path, json={})) == "forbidden", (method, path)
        assert slug(page.request(method, path, json={})) == "csrf-failed", (method, path)
        answer = page.request(method, path, json={}, headers={"X-CSRF-Token": "guess"})
        assert slug(answer) == "csrf-failed", (method, path)
    with seeded.database.reading() as session:
        assert len(load_revisions(session, 9)) == 1


def test_every_route_of_the_application_is_in_its_openapi_document(app):
    listed = {path for _, path in operations(app)}
    assert {f"{API}/sites/ams", f"{API}/policies/revisions/1/apply", f"{API}/demo-traffic"} <= listed
    document = app.openapi()
    assert document["openapi"].startswith("3.1")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["security"], (method, path)
            assert "application/problem+json" in operation["responses"]["4XX"]["content"], (method, path)
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic eDp5", "viewer secret"])
def test_a_wrong_token_is_refused(anonymous, header):
    assert slug(anonymous.get(f"{API}/sites", headers={"Authorization": header})) == "unauthenticated"


def test_a_wrong_cookie_is_refused(anonymous):
    anonymous.cookies.set(SESSION_COOKIE, "wrong")
    assert slug(anonymous.get(f"{API}/sites")) == "unauthenticated"


def test_a_browser_with_its_token_may_change_the_policy(page):
    answer = page.post(f"{API}/policies/revisions", json=CHANGE, headers={"X-CSRF-Token": page.csrf})
    assert (answer.status_code, answer.json()["actor"]) == (201, "admin")


@pytest.mark.parametrize(
    ("kind", "name", "field", "value"),
    [
        ("sites", "ams", "label", "Amsterdam"),
        ("nodes", "fra-md-01", "role", "main"),
        ("links", "ams-fra", "flow_cap_bytes_per_s", 1_500_000.0),
        ("gateways", "ams-gw-01", "state", "unknown"),
    ],
)
def test_lists_and_reads_the_fleet(viewer, kind, name, field, value):
    listed = viewer.get(f"{API}/{kind}").json()
    one = viewer.get(f"{API}/{kind}/{name}").json()
    assert one in listed["items"]
    assert listed["next_cursor"] is None
    assert (one["name"], one[field]) == (name, value)
    assert slug(viewer.get(f"{API}/{kind}/nothing")) == "not-found"


def test_a_change_goes_from_request_to_active_policy(operator, viewer, orders, seeded, clock):
    answer = operator.post(f"{API}/policies/revisions", json=CHANGE)
    assert (answer.status_code, answer.headers["location"]) == (201, f"{API}/policies/revisions/2")
    assert viewer.get(answer.headers["location"]).json() == answer.json()
    assert answer.json()["created_at"] == "2030-01-02T03:04:05.678901Z"
    assert [(order.task, order.arguments["revision"]) for order in orders] == [("policies.push", 2), ("links.shape", 2)]
    record_report(seeded, Report("o", "ams-gw-01", "ams", 1, "applied", "", clock.now))
    active = viewer.get(f"{API}/policies/active")
    assert active.headers["etag"] == '"r2"'
    body = active.json()
    assert (body["revision"], body["reason"], body["actor"]) == (2, "slow link", "token:operator")
    assert body["document"]["routing"]["relay_when_transfer_exceeds_s"] == 0.8
    [gateway] = body["gateways"]
    assert (gateway["name"], gateway["revision"], gateway["state"], gateway["drift"]) == (
        "ams-gw-01",
        1,
        "pending",
        True,
    )


def test_going_back_answers_with_the_new_number(operator):
    operator.post(f"{API}/policies/revisions", json=CHANGE)
    answer = operator.post(f"{API}/policies/revisions/1/apply", json={"reason": "back"}, headers={"If-Match": '"r2"'})
    assert (answer.status_code, answer.json()["revision"], answer.headers["etag"]) == (200, 3, '"r3"')


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({**CHANGE, "base_revision": 7}, {}, (412, "stale-revision")),
        ({**CHANGE, "base_revision": None}, {}, (428, "precondition-required")),
        ({**CHANGE, "base_revision": None}, {"If-Match": '"r9"'}, (412, "stale-revision")),
        ({**CHANGE, "base_revision": None}, {"If-Match": "*"}, (412, "stale-revision")),
        (CHANGE, {"If-Match": '"r2"'}, (422, "invalid")),
        ({**CHANGE, "changes": {RELAY: 1e9}}, {}, (422, "invalid-policy")),
        ({**CHANGE, "document": {}}, {}, (422, "invalid")),
        ({**CHANGE, "reason": ""}, {}, (422, "invalid")),
        ({**CHANGE, "aply": True}, {}, (422, "invalid")),
        ([], {}, (422, "invalid")),
    ],
)
def test_a_refused_revision_says_why_and_changes_nothing(operator, orders, body, headers, expected):
    answer = operator.post(f"{API}/policies/revisions", json=body, headers=headers)
    assert (answer.status_code, slug(answer)) == expected
    assert orders == []
    assert [row["number"] for row in operator.get(f"{API}/policies/revisions").json()["items"]] == [1]


def test_problems_name_their_fields(operator):
    unfit = operator.post(f"{API}/policies/revisions", json={**CHANGE, "changes": {RELAY: -1, "handoff.mode": "x"}})
    assert [error["path"] for error in unfit.json()["errors"]] == [RELAY, "handoff.mode"]
    misspelt = operator.post(f"{API}/policies/revisions", json={**CHANGE, "aply": "secret"})
    assert [error["path"] for error in misspelt.json()["errors"]] == ["aply"]
    assert "secret" not in misspelt.text


def test_if_match_says_what_a_change_was_made_against(operator):
    body = {"changes": {RELAY: 0.8}, "reason": "why"}
    answer = operator.post(f"{API}/policies/revisions", json=body, headers={"If-Match": '"r1"'})
    assert (answer.status_code, answer.json()["base_revision"]) == (201, 1)


def test_a_repeated_request_with_its_key_makes_one_revision(operator):
    headers = {"Idempotency-Key": "k"}
    first = operator.post(f"{API}/policies/revisions", json=CHANGE, headers=headers)
    again = operator.post(f"{API}/policies/revisions", json=CHANGE, headers=headers)
    assert (again.status_code, again.json(), again.headers["idempotency-replayed"]) == (201, first.json(), "true")
    other = operator.post(f"{API}/policies/revisions", json={**CHANGE, "reason": "another"}, headers=headers)
    assert (other.status_code, slug(other)) == (422, "idempotency-key-reused")


def test_a_dry_run_shows_the_change_and_stores_nothing(operator):
    answer = operator.post(f"{API}/policies/revisions?dry_run=true", json=CHANGE)
    assert (answer.status_code, answer.json()["changes"]) == (200, [{"path": RELAY, "before": 0.3, "after": 0.8}])
    assert operator.get(f"{API}/policies/active").json()["revision"] == 1


def test_pages_through_revisions_newest_first(operator):
    for base in (1, 2, 3):
        body = {**CHANGE, "base_revision": base, "changes": {RELAY: base / 10 + 1}}
        assert operator.post(f"{API}/policies/revisions", json=body).status_code == 201
    seen, cursor = [], None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        part = operator.get(f"{API}/policies/revisions", params=query).json()
        seen.append([row["number"] for row in part["items"]])
        cursor = part["next_cursor"]
        if cursor is None:
            break
    assert seen == [[4, 3, 2], [1]]


def test_the_schema_lists_every_field_for_forms(viewer):
    body = viewer.get(f"{API}/policies/schema").json()
    [field] = [field for field in body["fields"] if field["path"] == RELAY]
    assert (field["unit"], field["default"], field["minimum"], field["enforced_by"]) == ("s", 0.3, 0, ["gateway"])
    assert body["json_schema"]["properties"]["routing"]["properties"]["relay_when_transfer_exceeds_s"]["default"] == 0.3


def test_the_demo_traffic_is_stopped_and_the_audit_tells_by_whom(operator):
    assert operator.get(f"{API}/demo-traffic").json() == {"running": True}
    assert operator.put(f"{API}/demo-traffic", json={"running": False}).json() == {"running": False}
    assert operator.put(f"{API}/demo-traffic", json={"running": False}).json() == {"running": False}
    assert operator.get(f"{API}/demo-traffic").json() == {"running": False}
    events = operator.get(f"{API}/audit", params={"limit": 100}).json()["items"]
    [event] = [event for event in events if event["action"] == "demo_traffic.set"]
    assert (event["actor"], event["before"], event["after"]) == (
        "token:operator",
        {"running": True},
        {"running": False},
    )
    assert events == sorted(events, key=lambda event: -event["id"])
    assert not any("secret" in json.dumps(event) for event in events)


def test_errors_of_the_framework_are_problems_too(operator):
    assert slug(operator.get(f"{API}/nowhere")) == "not-found"
    wrong_method = operator.delete(f"{API}/sites")
    assert (slug(wrong_method), wrong_method.headers["allow"]) == ("method-not-allowed", "GET")
    assert slug(operator.get(f"{API}/policies/revisions/x")) == "invalid"
    broken = operator.post(f"{API}/policies/revisions", content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, slug(broken)) == (400, "malformed-json")


def test_a_crash_is_a_problem_that_tells_nothing(app, seeded, monkeypatch):
    def crash(*_):
        raise RuntimeError("/very/secret/path")

    monkeypatch.setattr("control.api.sites.load_part", crash)
    with TestClient(app, raise_server_exceptions=False, headers={"Authorization": "Bearer viewer secret"}) as client:
        answer = client.get(f"{API}/sites")
    assert (answer.status_code, slug(answer)) == (500, "internal")
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "policies/revisions/99999999999999999999", b""),
        ("get", "policies/revisions/0", b""),
        ("get", "policies/revisions?cursor=99999999999999999999", b""),
        ("get", "audit?cursor=99999999999999999999&limit=1000", b""),
        ("get", "nodes/%00%ff", b""),
        ("post", "policies/revisions/99999999999999999999/apply", b'{"reason": "x"}'),
        ("post", "policies/revisions/1/apply", b'{"reason": "\\ud800"}'),
        ("post", "policies/revisions", b'{"base_revision": 99999999999999999999, "reason": "x", "changes": {}}'),
        ("post", "policies/revisions", b'{"base_revision": 1, "reason": "x", "document": {"extra": NaN}}'),
        ("post", "policies/revisions", b'{"base_revision": 1, "reason": "x", "document": {"extra": "\\ud800"}}'),
        ("post", "policies/revisions", b'{"base_revision": 1, "reason": "x", "changes": {"\\ud800": 1}}'),
        ("post", "policies/revisions", b'{"base_revision": 1, "reason": "x", "document": {"routing": null}}'),
        ("post", "policies/revisions", b'{"base_revision": 1, "reason": "\\ud800", "changes": {}}'),
        ("post", "policies/revisions", b"[" * 100_000),
        ("post", "policies/revisions", b'{"document":' + b'{"a":' * 600 + b"1" + b"}" * 601),
        ("post", "policies/revisions", b"\xff\xfe"),
        ("put", "demo-traffic", b'{"running": "perhaps"}'),
    ],
)
def test_hostile_input_is_refused_and_never_a_crash(operator, method, path, body):
    answer = operator.request(method, f"{API}/{path}", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert slug(answer)


def test_a_tenants_key_is_shown_once(operator, viewer):
    made = operator.post(f"{API}/tenants", json={"name": "acme"})
    assert (made.status_code, made.headers["location"]) == (201, f"{API}/tenants/acme")
    key = made.json()["key"]
    listed = viewer.get(f"{API}/tenants")
    assert listed.json()["items"] == [{"name": "acme", "classes": ["default"], "salt": None}]
    assert key not in listed.text
    assert operator.post(f"{API}/tenants", json={"name": "acme"}).status_code == 409
    assert operator.post(f"{API}/tenants", json={"name": "b", "key": "mine"}).status_code == 422
    assert operator.delete(f"{API}/tenants/acme").status_code == 204
    assert slug(operator.delete(f"{API}/tenants/acme")) == "not-found"
