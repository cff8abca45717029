"""Overrides, reverts, diffs, convergence and annotations, from the service to REST."""

from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.inventory import ItemRef, Kind
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import Gateway, Link
from control.domain.versions import ANY_VERSION
from control.errors import InUseError, InvalidError, InvalidPolicyError, StaleRevisionError
from control.services.access import Principal, Role
from control.services.credentials import ensure_token
from control.services.fleet import seed_fleet
from control.services.inventory import Terms, delete_item
from control.services.policies import RevisionDraft, create_revision, found_policy, load_active, revert_revision
from control.services.rollout import Report, load_statuses, record_report
from control.settings import Settings

API = "/api/v1"
OLGA = Principal("olga", Role.OPERATOR)
RELAY = "routing.relay_when_transfer_exceeds_s"
FRA = f"overrides.sites.fra.{RELAY}"
CHANGES = {
    FRA: 2.0,
    "overrides.sites.fra.link.fra-ams.max_transfers": 8,
    "overrides.models.smollm2-135m.handoff.mode": "one_shot",
}


@pytest.fixture
def two_gateways(plane, fleet):
    """The fleet with a gateway and a shaped link at each site, and its first policy."""
    more = (*fleet.gateways, Gateway("fra-gw-01", "fra", "http://127.0.0.1:8002"))
    back = Link("fra-ams", "fra", "ams", 5e6, 0.03, None, "127.0.0.1", 9102, "http://127.0.0.1:9103")
    seed_fleet(plane, replace(fleet, gateways=more, links=(*fleet.links, back)), "test")
    found_policy(plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    return plane


@pytest.fixture
def client(two_gateways):
    ensure_token(two_gateways, "operator", Role.OPERATOR, "operator secret")
    app = create_api(Settings.from_environment({}), two_gateways)
    with TestClient(app, headers={"Authorization": "Bearer operator secret"}) as opened:
        yield opened


def applied(plane, changes=None, base=1, **more):
    return create_revision(plane, OLGA, RevisionDraft("why", base, changes=changes, apply=True, **more))


def active(plane):
    with plane.database.reading() as session:
        return load_active(session).revision


def test_each_gateway_and_relay_gets_what_holds_for_its_site(two_gateways, orders):
    applied(two_gateways, CHANGES)
    pushed = {o.arguments["gateway"]["name"]: o.arguments["policy"] for o in orders if o.task == "policies.push"}
    relay_s = {name: policy["routing"]["relay_when_transfer_exceeds_s"] for name, policy in pushed.items()}
    assert relay_s == {"ams-gw-01": 0.3, "fra-gw-01": 2.0}
    models = {"models": {"smollm2-135m": {"handoff": {"mode": "one_shot"}}}}
    assert [policy["overrides"] for policy in pushed.values()] == [models, models]
    shaped = {o.arguments["link"]: o.arguments["shape"]["max_transfers"] for o in orders if o.task == "links.shape"}
    assert shaped == {"ams-fra": 64, "fra-ams": 8}


def test_an_override_for_nobody_is_refused_and_one_that_outlived_its_site_is_not(two_gateways):
    with pytest.raises(InvalidPolicyError) as caught:
        applied(two_gateways, {f"overrides.sites.par.{RELAY}": 1, f"overrides.models.gpt.{RELAY}": 1})
    assert [problem.path for problem in caught.value.problems] == ["overrides.sites.par", "overrides.models.gpt"]
    assert active(two_gateways).number == 1


def test_a_site_with_overrides_is_in_use(two_gateways):
    applied(two_gateways, {FRA: 2.0})
    with pytest.raises(InUseError) as caught:
        delete_item(two_gateways, OLGA, ItemRef(Kind.SITE, "fra"), Terms("why", ANY_VERSION))
    assert "policy.overrides.sites.fra" in [problem.path for problem in caught.value.problems]


def test_fields_are_taken_out_again(two_gateways):
    applied(two_gateways, CHANGES)
    applied(two_gateways, base=2, removed=("overrides.sites.fra", "overrides.models.smollm2-135m"))
    assert active(two_gateways).document == DEFAULT_POLICY_DOCUMENT
    with pytest.raises(InvalidError):
        applied(two_gateways, base=3)


def test_a_locked_field_stays_locked_in_an_override(two_gateways):
    with pytest.raises(InvalidPolicyError) as caught:
        applied(two_gateways, {"overrides.sites.fra.cache.block_tokens": 128})
    assert [problem.path for problem in caught.value.problems] == ["overrides.sites.fra.cache.block_tokens"]


def test_a_revert_is_a_new_revision_with_the_old_content(two_gateways):
    applied(two_gateways, {RELAY: 2.0})
    back = revert_revision(two_gateways, OLGA, 1, "worse")
    assert (back.revision.number, back.revision.base_number, back.revision.reason) == (3, 2, "worse")
    assert active(two_gateways).document == DEFAULT_POLICY_DOCUMENT
    with pytest.raises(InvalidError, match="Nothing would change"):
        revert_revision(two_gateways, OLGA, 1, "again")
    with pytest.raises(StaleRevisionError):
        revert_revision(two_gateways, OLGA, 2, "forth", base_revision=2)


def test_a_gateway_tells_how_long_it_took_to_converge(two_gateways, clock):
    plane = two_gateways

    def report(revision, state="applied"):
        clock.advance(seconds=2)
        record_report(plane, Report("o", "ams-gw-01", "ams", revision, state, "", clock.now))

    def converged_s():
        with plane.database.reading() as session:
            return load_statuses(session, active(plane).number, plane.now())[0].converged_s

    assert converged_s() is None
    report(1)
    assert converged_s() == 2
    applied(plane, {RELAY: 2.0})
    report(1)
    assert converged_s() is None
    report(2, "failed")
    assert converged_s() is None
    report(2)
    assert converged_s() == 6
    report(2)
    clock.advance(minutes=10)
    report(2)
    assert converged_s() == 6


def test_what_holds_for_a_site_and_a_model_shows_where_from(client, two_gateways):
    applied(two_gateways, CHANGES)
    shown = client.get(f"{API}/policies/effective", params={"site": "fra", "model": "smollm2-135m"}).json()
    origins = {field["path"]: (field["value"], field["origin"]) for field in shown["fields"]}
    assert origins[RELAY] == (2.0, "site fra")
    assert origins["handoff.mode"] == ("one_shot", "model smollm2-135m")
    assert origins["outlier.enabled"] == (True, "general")
    assert origins["link.fra-ams.streams_per_transfer"] == (4, "default")
    assert (shown["revision"], shown["document"]["routing"]["relay_when_transfer_exceeds_s"]) == (2, 2.0)
    general = client.get(f"{API}/policies/effective").json()
    assert {field["origin"] for field in general["fields"]} == {"general"}


def test_revisions_are_compared_and_reverted_over_rest(client, two_gateways):
    applied(two_gateways, {RELAY: 2.0})
    diff = client.get(f"{API}/policies/diff", params={"before": 1, "after": 2}).json()
    assert diff == {"before": 1, "after": 2, "changes": [{"path": RELAY, "before": 0.3, "after": 2.0}]}
    assert client.get(f"{API}/policies/diff", params={"before": 1, "after": 9}).status_code == 404
    path, why = f"{API}/policies/revisions/1/revert", {"reason": "worse"}
    planned = client.post(path, params={"dry_run": True}, json=why)
    assert planned.json()["changes"] == [{"path": RELAY, "before": 2.0, "after": 0.3}]
    assert client.post(path, json=why, headers={"If-Match": '"r1"'}).status_code == 412
    reverted = client.post(path, json=why, headers={"If-Match": '"r2"'})
    assert (reverted.status_code, reverted.json()["revision"], reverted.headers["etag"]) == (200, 3, '"r3"')
    assert [gateway["converged_s"] for gateway in reverted.json()["gateways"]] == [None, None]
    body = {"remove": ["overrides.sites.fra"], "changes": {}, "reason": "x", "base_revision": 3}
    assert client.post(f"{API}/policies/revisions", json=body).status_code == 422


def test_annotations_are_remarks_on_moments(client, clock):
    made = client.post(f"{API}/annotations", json={"text": "new line in service"})
    assert (made.status_code, made.json()["actor"], made.json()["at"]) == (
        201,
        "token:operator",
        "2030-01-02T03:04:05.678901Z",
    )
    assert client.get(made.headers["location"]).json() == made.json()
    past = (clock.now - timedelta(days=1)).isoformat()
    client.post(f"{API}/annotations", json={"text": "fibre cut", "at": past})

    def texts(**query):
        return [item["text"] for item in client.get(f"{API}/annotations", params=query).json()["items"]]

    assert texts() == ["fibre cut", "new line in service"]
    assert texts(since=past, until=clock.now.isoformat()) == ["fibre cut"]
    first = client.get(f"{API}/annotations", params={"limit": 1}).json()
    assert texts(cursor=first["next_cursor"]) == ["new line in service"]
    for wrong in (
        {"text": ""},
        {"text": "x", "at": "yesterday"},
        {"text": "x", "at": "2030-01-01T00:00:00"},
        {"text": "\x00"},
        {"text": "x", "at": "0001-01-01T00:00:00+14:00"},
        {"text": "x", "at": "9999-12-31T23:59:59-14:00"},
    ):
        assert client.post(f"{API}/annotations", json=wrong).status_code == 422
    for bounds in ({"since": "0001-01-01T00:00:00+14:00"}, {"until": "9999-12-31T23:59:59-14:00"}):
        assert client.get(f"{API}/annotations", params=bounds).status_code == 422
    assert client.delete(f"{API}/annotations/1").status_code == 204
    assert client.delete(f"{API}/annotations/1").status_code == 404
    actions = [event["action"] for event in client.get(f"{API}/audit", params={"limit": 3}).json()["items"]]
    assert actions == ["annotation.delete", "annotation.create", "annotation.create"]
