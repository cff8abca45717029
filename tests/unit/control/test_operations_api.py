"""Operations over REST."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.staleness import Sighting
from control.orders import ADVANCE_OPERATION
from control.services.access import Role
from control.services.credentials import ensure_token
from control.services.operation_engine import advance_operation
from control.settings import Settings

URL = "/api/v1/operations"
DRAIN = {"kind": "drain", "node": "ams-p-01", "reason": "a new kernel", "force": True}


@pytest.fixture
def seen():
    return {name: Sighting("ready", 1.0) for name in ("ams-p-01", "fra-md-01")}


@pytest.fixture
def app(seeded, seen):
    ensure_token(seeded, "viewer", Role.VIEWER, "viewer secret")
    ensure_token(seeded, "operator", Role.OPERATOR, "operator secret")
    return create_api(Settings.from_environment({}), replace(seeded, sightings=lambda: seen))


@pytest.fixture
def operator(app):
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as client:
        yield client


@pytest.fixture
def viewer(app):
    with TestClient(app, headers={"Authorization": "Bearer viewer secret"}) as client:
        yield client


def test_an_operation_is_accepted_found_under_its_location_and_cancelled(operator, orders, seeded):
    opened = operator.post(URL, json=DRAIN)
    assert opened.status_code == 202
    body = opened.json()
    assert opened.headers["location"] == f"{URL}/{body['id']}"
    assert (body["state"], body["target"], body["progress"]) == ("pending", "node/ams-p-01", 0.0)
    assert [step["stage"] for step in body["steps"]] == ["hold", "converge", "empty"]
    assert body["eta_s"] > 0
    assert (orders[-1].task, orders[-1].arguments) == (ADVANCE_OPERATION, {"operation_id": body["id"]})
    advance_operation(seeded, body["id"])

    again = operator.post(URL, json={**DRAIN, "reason": "asked twice"})
    assert (again.status_code, again.json()["id"]) == (202, body["id"])

    cancelled = operator.post(f"{URL}/{body['id']}/cancel", json={"reason": "not now"})
    assert cancelled.status_code == 202
    read = operator.get(opened.headers["location"]).json()
    assert (read["state"], read["eta_s"]) == ("cancelled", None)
    assert [(step["stage"], step["state"]) for step in read["steps"]][-1] == ("restore", "done")

    retried = operator.post(f"{URL}/{body['id']}/retry", json={"reason": "now"})
    assert (retried.status_code, retried.json()["retry_of"]) == (202, body["id"])
    assert retried.headers["location"] == f"{URL}/{body['id'] + 1}"


def test_a_dry_run_shows_the_steps_and_changes_nothing(operator, orders):
    shown = operator.post(f"{URL}?dry_run=true", json=DRAIN)
    assert shown.status_code == 200
    assert [step["stage"] for step in shown.json()["steps"]] == ["hold", "converge", "empty"]
    assert operator.get(URL).json()["items"] == []
    assert orders == []
    shape = {"kind": "shape_link", "link": "ams-fra", "shape": {"rate_cap_bytes_per_s": 1e6}, "reason": "a test"}
    result = operator.post(f"{URL}?dry_run=true", json=shape).json()["result"]
    after = {change["path"]: change["after"] for change in result["changes"]}
    assert after["link.ams-fra.rate_cap_bytes_per_s"] == 1e6
    assert operator.get("/api/v1/policies/active").json()["revision"] == 1


def test_operations_are_listed_newest_first_in_pages_and_filtered(operator):
    first = operator.post(URL, json=DRAIN).json()["id"]
    operator.post(f"{URL}/{first}/cancel", json={"reason": "no"})
    second = operator.post(URL, json={"kind": "probe_link", "link": "ams-fra", "reason": "curious"}).json()["id"]
    page = operator.get(URL, params={"limit": 1}).json()
    assert ([item["id"] for item in page["items"]], page["next_cursor"]) == ([second], str(second))
    rest = operator.get(URL, params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert ([item["id"] for item in rest["items"]], rest["next_cursor"]) == ([first], None)
    for query, expected in (
        ({"kind": "drain"}, [first]),
        ({"state": ["pending", "running"]}, [second]),
        ({"target": "node/ams-p-01"}, [first]),
        ({"state": "done"}, []),
    ):
        assert [item["id"] for item in operator.get(URL, params=query).json()["items"]] == expected


REFUSED = (
    ({**DRAIN, "node": "nowhere"}, 404, "There is no node nowhere"),
    ({**DRAIN, "force": False}, 409, "is the last ready prefill node"),
    ({**DRAIN, "timeout_s": 0}, 422, ""),
    ({**DRAIN, "forec": True}, 422, ""),
    ({**DRAIN, "node": "a\x00b"}, 422, ""),
    ({**DRAIN, "reason": "a\x00b"}, 422, ""),
    ({"kind": "explode", "reason": "x"}, 422, ""),
    ({"kind": "switch_role", "node": "ams-p-01", "role": "cook", "reason": "x"}, 422, ""),
    ({"kind": "switch_role", "node": "ams-p-01", "role": "prefill", "reason": "x"}, 422, "already"),
    ({"kind": "rebalance", "site": "ams", "target": "1:2", "reason": "x"}, 422, ""),
    ({"kind": "rebalance", "site": "ams", "target": "1:1:0", "reason": "x"}, 422, "cannot have 2 roles"),
    ({"kind": "rebalance", "site": "ams", "reason": "x"}, 422, "Say either a target"),
    ({"kind": "rebalance", "site": "ams", "to_policy": True, "reason": "x"}, 422, "The active policy has no pools.ams"),
    ({"kind": "rebalance", "site": "mars", "target": "1:1:0", "reason": "x"}, 404, "mars"),
    ({"kind": "shape_link", "link": "ams-fra", "shape": {}, "reason": "x"}, 422, "A shape has some of"),
    ({"kind": "shape_link", "link": "ams-fra", "shape": {"max_transfers": -1}, "reason": "x"}, 422, ""),
    ({"kind": "apply_policy", "revision": 99, "reason": "x"}, 404, "revision 99"),
    ({"kind": "probe_link", "link": "nowhere", "reason": "x"}, 404, "nowhere"),
)


def test_what_cannot_be_done_is_refused_with_a_problem_document(operator):
    for body, status, words in REFUSED:
        refused = operator.post(URL, json=body)
        assert (refused.status_code, body) == (status, body)
        assert refused.headers["content-type"] == "application/problem+json"
        assert words in refused.text


def test_stale_nodes_are_shown_as_such_and_not_acted_on(operator, viewer, seen):
    seen["ams-p-01"] = Sighting("ready", 42.4)
    del seen["fra-md-01"]
    health = {
        item["node"]: (item["health"], item["age_s"]) for item in viewer.get("/api/v1/node-health").json()["items"]
    }
    assert health == {"ams-p-01": ("stale", 42.4), "fra-md-01": ("stale", None)}
    refused = operator.post(URL, json={**DRAIN, "kind": "restart"})
    assert (refused.status_code, refused.json()["detail"]) == (409, "ams-p-01 is stale: last seen 42 s ago.")
    seen["ams-p-01"] = Sighting("unreachable", 1.0)
    health = {item["node"]: item["health"] for item in viewer.get("/api/v1/node-health").json()["items"]}
    assert health["ams-p-01"] == "unreachable"


def test_a_viewer_reads_and_changes_nothing(viewer, operator):
    number = operator.post(URL, json=DRAIN).json()["id"]
    assert viewer.get(f"{URL}/{number}").status_code == 200
    assert viewer.get("/api/v1/links/ams-fra/probes").json() == {"items": [], "next_cursor": None}
    assert viewer.get("/api/v1/links/nowhere/probes").status_code == 404
    for path, body in (
        (URL, DRAIN),
        (f"{URL}/{number}/cancel", {"reason": "x"}),
        (f"{URL}/{number}/retry", {"reason": "x"}),
    ):
        assert viewer.post(path, json=body).status_code == 403
    assert viewer.get(f"{URL}/999").status_code == 404
    assert operator.post(f"{URL}/{number}/retry", json={"reason": "x"}).status_code == 409


def test_pools_are_shown_with_the_policys_targets(operator, viewer):
    empty = viewer.get("/api/v1/pools").json()["items"]
    assert {(one["target"], one["drift"]) for one in empty} == {(None, None)}
    changes = {"reason": "x", "base_revision": 1, "apply": True, "changes": {"pools.fra.main.target": 4}}
    assert operator.post("/api/v1/policies/revisions", json=changes).status_code == 201
    pools = viewer.get("/api/v1/pools?site=fra").json()["items"]
    assert [(one["site"], one["role"]) for one in pools] == [("fra", role) for role in ("prefill", "relay", "main")]
    assert pools[-1] == {"site": "fra", "role": "main", "nodes": 1, "target": 4, "drift": -3}
