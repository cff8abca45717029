"""The inventory over REST: lists, entity tags, dry runs, documents and tables."""

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.addresses import LOOPBACK_NETWORKS
from control.services.access import Role
from control.services.credentials import ensure_token
from control.settings import Settings

API = "/api/v1"
WHY = {"reason": "because"}
CHIP = {
    "name": "H20-96GB",
    "peak_flops": 148e12,
    "memory_bytes": 96_000_000_000,
    "memory_bytes_per_s": 4e12,
    "interconnect_bytes_per_s": 9e11,
    "price_per_hour": 2.5,
}
MODEL = {"name": "Qwen/Qwen3-8B", "kv_bytes_per_token": 147_456, "layers": 36, "attention": "gqa"}
NODE = {
    "name": "ams-p-02",
    "site": "ams",
    "role": "prefill",
    "url": "http://127.0.0.1:9002",
    "engine": "vllm",
    "model": "smollm2-135m",
    "labels": {"rack": "r1", "zone": "a"},
}


@pytest.fixture
def client(seeded):
    """An administrator, and sites that allow this machine's addresses."""
    ensure_token(seeded, "operator", Role.OPERATOR, "operator secret")
    ensure_token(seeded, "admin", Role.ADMIN, "admin secret")
    app = create_api(Settings.from_environment({}), seeded)
    with TestClient(app, headers={"Authorization": "Bearer admin secret"}) as opened:
        for name in ("ams", "fra"):
            site = {"name": name, "label": name, "networks": list(LOOPBACK_NETWORKS)}
            answer = opened.put(f"{API}/sites/{name}", params=WHY, json=site, headers={"If-Match": "*"})
            assert answer.status_code == 200, answer.text
        yield opened


def slug(answer):
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["type"].removeprefix("urn:pdd:problem:")


def names(answer):
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    ("kind", "body", "change"),
    [
        ("sites", {"name": "par", "label": "Paris", "networks": ["10.3.0.0/16"]}, {"label": "Lutetia"}),
        ("chips", CHIP, {"price_per_hour": 2.0}),
        ("models", MODEL, {"quantisation": "fp8", "context_tokens": 32_768}),
        ("nodes", NODE, {"slots": 8, "state": "draining"}),
        (
            "links",
            {"name": "fra-ams", "source": "fra", "target": "ams", "capacity_bytes_per_s": 5e6, "rtt_s": 0.03},
            {"rtt_s": 0.05},
        ),
        (
            "gateways",
            {"name": "fra-gw-01", "site": "fra", "url": "http://127.0.0.1:8001"},
            {"url": "http://127.0.0.1:8002"},
        ),
    ],
)
def test_each_kind_is_added_read_changed_and_removed(client, kind, body, change):
    path = f"{API}/{kind}/{body['name']}"
    planned = client.post(f"{API}/{kind}", params={**WHY, "dry_run": True}, json=body)
    assert (planned.status_code, planned.json()["added"]) == (200, 1)
    assert client.get(path).status_code == 404
    made = client.post(f"{API}/{kind}", params=WHY, json=body)
    assert (made.status_code, made.headers["location"]) == (201, path)
    read = client.get(path)
    assert body.items() <= read.json().items()
    assert made.headers["etag"] == read.headers["etag"]
    assert body["name"] in names(client.get(f"{API}/{kind}"))
    tag = {"If-Match": read.headers["etag"]}
    wanted = {**made.json(), **change}
    assert slug(client.put(path, params=WHY, json=wanted)) == "precondition-required"
    planned = client.put(path, params={**WHY, "dry_run": True}, json=wanted)
    assert {(field["path"], field["after"]) for field in planned.json()["items"][0]["changes"]} == set(change.items())
    changed = client.put(path, params=WHY, json=wanted, headers=tag)
    assert (changed.status_code, changed.json()) == (200, wanted)
    assert changed.headers["etag"] == client.get(path).headers["etag"] != tag["If-Match"]
    assert slug(client.put(path, params=WHY, json=made.json(), headers=tag)) == "stale-revision"
    assert slug(client.delete(path, params=WHY, headers=tag)) == "stale-revision"
    assert slug(client.delete(path, params=WHY)) == "precondition-required"
    planned = client.delete(path, params={**WHY, "dry_run": True})
    assert (planned.status_code, planned.json()["removed"]) == (200, 1)
    assert client.delete(path, params=WHY, headers={"If-Match": changed.headers["etag"]}).status_code == 204
    assert slug(client.get(path)) == "not-found"
    events = client.get(f"{API}/audit", params={"limit": 3}).json()["items"]
    assert [event["action"].partition(".")[2] for event in events] == ["delete", "change", "create"]
    assert {event["reason"] for event in events} == {"because"}


def test_a_list_comes_in_parts(client):
    for number in range(5):
        body = {**NODE, "name": f"n{number}", "url": f"http://127.0.0.1:{7000 + number}"}
        assert client.post(f"{API}/nodes", params=WHY, json=body).status_code == 201
    seen, query = [], {"limit": 3}
    while True:
        part = client.get(f"{API}/nodes", params=query)
        seen.append(names(part))
        if part.json()["next_cursor"] is None:
            break
        query["cursor"] = part.json()["next_cursor"]
    assert seen == [["ams-p-01", "fra-md-01", "n0"], ["n1", "n2", "n3"], ["n4"]]
    assert client.get(f"{API}/nodes", params={"limit": 7}).json()["next_cursor"] is None


FILTERS = [
    ({"site": "ams"}, ["a", "ams-p-01", "b"]),
    ({"role": "main"}, ["fra-md-01"]),
    ({"state": "disabled"}, ["b"]),
    ({"model": "smollm2-135m", "site": "fra"}, ["fra-md-01"]),
    ({"chip": CHIP["name"]}, ["b"]),
    ({"label": "rack"}, ["a", "b"]),
    ({"label": "rack=r2"}, ["b"]),
    ({"label": ["rack", "zone=a"]}, ["a"]),
    ({"label": "zone=r1"}, []),
    ({"label": "n.o/thing"}, []),
    ({"site": "nowhere"}, []),
]


def test_nodes_are_found_by_site_role_state_model_chip_and_label(client):
    client.post(f"{API}/chips", params=WHY, json=CHIP)
    client.post(f"{API}/nodes", params=WHY, json={**NODE, "name": "a"})
    more = {
        "name": "b",
        "url": "http://127.0.0.1:1",
        "labels": {"rack": "r2"},
        "state": "disabled",
        "chip": CHIP["name"],
    }
    assert client.post(f"{API}/nodes", params=WHY, json={**NODE, **more}).status_code == 201
    for query, found in FILTERS:
        assert names(client.get(f"{API}/nodes", params=query)) == found
        table = client.get(f"{API}/nodes.csv", params=query).text
        assert len(table.splitlines()) == len(found) + 1


REFUSALS = [
    ("post", "nodes", {**NODE, "colour": "red"}, (422, "invalid", "colour")),
    ("post", "nodes", {**NODE, "url": "http://10.9.9.9:1"}, (422, "invalid", "nodes.ams-p-02.url")),
    ("post", "nodes", {**NODE, "url": "http://localhost:1"}, (422, "invalid", "nodes.ams-p-02.url")),
    ("post", "nodes", {**NODE, "name": "ams-p-01"}, (409, "conflict", "")),
    ("post", "nodes", {**NODE, "slots": 0}, (422, "invalid", "slots")),
    ("post", "sites", {"name": "x", "label": "a\x00b"}, (422, "invalid", "label")),
    ("put", "nodes/ams-p-01", NODE, (422, "invalid", "name")),
    ("put", "nodes/nothing", {**NODE, "name": "nothing"}, (404, "not-found", "")),
    ("delete", "sites/ams", None, (409, "in-use", "nodes.ams-p-01")),
    ("delete", "models/smollm2-135m", None, (409, "in-use", "model")),
    ("delete", "nodes/nothing", None, (404, "not-found", "")),
    ("put", "fleet", {"nodes": [{**NODE, "colour": 1}]}, (422, "invalid", "nodes.0.colour")),
    ("put", "fleet", {"chips": [CHIP, CHIP]}, (422, "invalid", "chips.H20-96GB")),
    ("put", "fleet", {"sites": []}, (409, "in-use", "nodes.ams-p-01")),
]


def test_a_refusal_names_the_field_or_the_user_in_the_way(client):
    for method, path, body, expected in REFUSALS:
        answer = client.request(method, f"{API}/{path}", params=WHY, json=body, headers={"If-Match": "*"})
        errors = [error["path"] for error in answer.json().get("errors", [{"path": ""}])]
        assert (answer.status_code, slug(answer), errors[0]) == expected


def test_a_change_needs_a_reason(client):
    assert slug(client.post(f"{API}/nodes", json=NODE)) == "invalid"
    assert slug(client.delete(f"{API}/nodes/ams-p-01", headers={"If-Match": "*"})) == "invalid"


NO_CURSORS = ["%", "!", "AAE", "x" * 401, "gIA"]


def test_a_cursor_that_is_none_is_refused(client):
    for cursor in NO_CURSORS:
        assert slug(client.get(f"{API}/nodes", params={"cursor": cursor})) == "invalid"


OTHER_TAGS = ['"a"', 'W/"a", "b"', "a", '"*"', ""]


def test_only_a_tag_of_what_is_stored_matches(client):
    for header in OTHER_TAGS:
        body = client.get(f"{API}/nodes/ams-p-01").json()
        answer = client.put(f"{API}/nodes/ams-p-01", params=WHY, json=body, headers={"If-Match": header})
        assert slug(answer) == "stale-revision"


def test_an_exported_fleet_applies_to_itself_and_a_plan_can_be_applied_as_it_was_shown(client):
    client.post(f"{API}/chips", params=WHY, json=CHIP)
    exported = client.get(f"{API}/fleet")
    document = exported.json()
    assert set(document) == {"model", "sites", "chips", "models", "nodes", "links", "gateways"}
    planned = client.put(f"{API}/fleet", params={**WHY, "dry_run": True}, json=document)
    assert planned.json() == {"facts": [], "items": [], "added": 0, "changed": 0, "removed": 0}
    document["nodes"][0]["slots"] = 9
    document["chips"] = []
    planned = client.put(f"{API}/fleet", params={**WHY, "dry_run": True}, json=document)
    assert planned.headers["etag"] == exported.headers["etag"]
    assert slug(client.put(f"{API}/fleet", params=WHY, json=document)) == "precondition-required"
    tag = {"If-Match": planned.headers["etag"]}
    applied = client.put(f"{API}/fleet", params=WHY, json=document, headers=tag)
    assert applied.json() == planned.json()
    assert (applied.json()["changed"], applied.json()["removed"]) == (1, 1)
    assert applied.headers["etag"] == client.get(f"{API}/fleet").headers["etag"]
    assert client.get(f"{API}/fleet").json() == document
    assert slug(client.put(f"{API}/fleet", params=WHY, json=exported.json(), headers=tag)) == "stale-revision"


@pytest.mark.parametrize("kind", ["nodes", "links"])
def test_a_table_goes_out_and_in_again(client, kind):
    exported = client.get(f"{API}/{kind}.csv")
    assert exported.headers["content-type"] == "text/csv; charset=utf-8"
    headers = {"Content-Type": "text/csv"}
    same = client.post(f"{API}/{kind}.csv", params=WHY, content=exported.content, headers=headers)
    assert (same.status_code, same.json()["items"]) == (200, [])
    column, value = ("slots", "9") if kind == "nodes" else ("rtt_s", "0.25")
    header, first = exported.text.splitlines()[:2]
    cells = first.split(",")
    cells[header.split(",").index(column)] = value
    table = f"{header}\r\n{','.join(cells)}\r\n"
    planned = client.post(f"{API}/{kind}.csv", params={**WHY, "dry_run": True}, content=table, headers=headers)
    assert client.get(f"{API}/{kind}.csv").text == exported.text
    changed = client.post(f"{API}/{kind}.csv", params=WHY, content=table, headers=headers)
    assert changed.json() == planned.json()
    [item] = changed.json()["items"]
    assert [(field["path"], field["after"]) for field in item["changes"]] == [(column, float(value))]


BROKEN_TABLES = [
    (b"name,site\r\n\xff,x\r\n", ""),
    (b"name,colour\r\nx,red\r\n", "line 1.colour"),
    (b"name,site,role,url,engine,model\r\nx,ams,main,http://8.8.8.8,vllm,smollm2-135m\r\n", "nodes.x.url"),
    (b"\r\n", "line 1"),
]


def test_a_table_that_is_not_valid_is_refused(client):
    for content, path in BROKEN_TABLES:
        answer = client.post(f"{API}/nodes.csv", params=WHY, content=content, headers={"Content-Type": "text/csv"})
        assert slug(answer) == "invalid"
        assert path in [error["path"] for error in answer.json().get("errors", [{"path": ""}])]


def test_only_an_administrator_says_to_which_networks_a_site_secret_may_go(client):
    operator = {"Authorization": "Bearer operator secret", "If-Match": "*"}
    wide = [*LOOPBACK_NETWORKS, "0.0.0.0/0"]
    site = client.get(f"{API}/sites/fra").json()
    document = client.get(f"{API}/fleet").json()
    widened = {**document, "sites": [{**one, "networks": wide} for one in document["sites"]]}
    for method, path, body in (
        ("PUT", "sites/fra", {**site, "networks": wide}),
        ("PUT", "sites/fra", {**site, "networks": []}),
        ("POST", "sites", {"name": "par", "label": "Paris", "networks": ["10.3.0.0/16"]}),
        ("PUT", "fleet", widened),
    ):
        for terms in (WHY, {**WHY, "dry_run": True}):
            refused = client.request(method, f"{API}/{path}", params=terms, json=body, headers=operator)
            assert (refused.status_code, slug(refused)) == (403, "forbidden"), path
            assert "access:admin" in refused.json()["detail"]
    assert client.get(f"{API}/fleet").json() == document
    for method, path, body in (
        ("PUT", "sites/fra", {**site, "label": "Frankfurt am Main"}),
        ("POST", "sites", {"name": "par", "label": "Paris"}),
        ("PUT", "fleet", document),
    ):
        done = client.request(method, f"{API}/{path}", params=WHY, json=body, headers=operator)
        assert done.status_code < 300, done.text
    changed = {**site, "networks": wide}
    assert client.put(f"{API}/sites/fra", params=WHY, json=changed, headers={"If-Match": "*"}).status_code == 200
