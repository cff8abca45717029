import re

import pytest

from control.domain.access import Role as AccessRole
from control.domain.inventory import Kind
from control.domain.topology import Node, NodeState, Role
from control.services.access import Principal, sign_in
from control.services.access_users import create_user
from control.services.audit import record_event
from control.services.inventory_rows import load_inventory
from webapp.audit_view import target_address
from webapp.commands import curl_command
from webapp.inventory_form import SPECS, read_body, shown_texts
from webapp.inventory_view import axis_ratio
from webapp.pages.inventory_bulk import changed_nodes
from webapp.spans import scaled, span

CHIP = {
    "kind": "chips",
    "name": "H20",
    "peak_flops": "148",
    "memory_bytes": "96",
    "memory_bytes_per_s": "4000",
    "interconnect_bytes_per_s": "900",
    "price_per_hour": "2.5",
    "version": "",
    "apply": "no",
    "reason": "",
}
NODE = Node("a", "ams", Role.PREFILL, "http://127.0.0.1:1", "emulated", "m", labels={"rack": "a1"})


def inventory(plane):
    with plane.database.reading() as session:
        return load_inventory(session)


async def test_an_item_is_planned_first_then_stored_then_changed_against_what_was_read(admin, plane):
    plan = await admin.post("/inventory/item", data=CHIP)
    assert "Would change" in plan.text
    assert inventory(plane).chips == ()
    nothing_said = await admin.post("/inventory/item", data={**CHIP, "apply": "yes"})
    assert nothing_said.status_code == 422
    done = await admin.post("/inventory/item", data={**CHIP, "apply": "yes", "reason": "new racks"})
    assert done.headers["hx-redirect"] == "/inventory?kind=chips"
    [chip] = inventory(plane).chips
    assert (chip.peak_flops, chip.memory_bytes) == (148e12, 96_000_000_000)
    form = (await admin.get("/inventory/item?kind=chips&name=H20")).text
    version = re.search(r'name="version" value="(\w+)"', form)[1]
    changed = {**CHIP, "price_per_hour": "3", "apply": "yes", "reason": "dearer"}
    stale = await admin.post("/inventory/item", data={**changed, "version": "0" * len(version)})
    assert stale.status_code == 412
    assert 'value="3"' in stale.text
    await admin.post("/inventory/item", data={**changed, "version": version})
    assert inventory(plane).chips[0].price_per_hour == 3


async def test_a_wrong_field_is_named_where_it_is(admin):
    reply = await admin.post("/inventory/item", data={**CHIP, "memory_bytes": "much", "peak_flops": "-1"})
    assert reply.status_code == 422
    assert 'id="item-memory_bytes-error"' in reply.text
    assert 'id="item-peak_flops-error"' in reply.text
    assert 'value="much"' in reply.text


async def test_what_others_need_is_not_deleted_and_they_are_named(admin):
    form = (await admin.get("/inventory/item?kind=sites&name=ams")).text
    version = re.search(r'name="version" value="(\w+)"', form)[1]
    data = {"kind": "sites", "name": "ams", "version": version, "reason": "gone"}
    reply = await admin.post("/inventory/item/delete", data=data)
    assert reply.status_code == 409
    assert "gateways.ams-gw-01" in reply.text


async def test_a_document_is_planned_before_it_is_applied_and_what_is_exported_changes_nothing(admin, plane):
    text = (await admin.get("/inventory/fleet.yaml")).text
    same = await admin.post("/inventory/import", data={"format": "fleet", "text": text, "apply": "no"})
    assert "Nothing would change." in same.text
    more = text + "\n" if "chips" not in text else text.replace("chips: []", "chips: [{name: x}]")
    wrong = await admin.post("/inventory/import", data={"format": "fleet", "text": more, "apply": "no"})
    assert wrong.status_code == 422
    assert "peak_flops" in wrong.text
    broken = await admin.post("/inventory/import", data={"format": "fleet", "text": "a: [", "apply": "no"})
    assert (broken.status_code, "Line" in broken.text) == (422, True)
    sites = "sites:\n- {name: ams, label: Amsterdam}\n- {name: fra}\n"
    plan = await admin.post("/inventory/import", data={"format": "fleet", "text": sites, "apply": "no"})
    assert "exactly these 1" in plan.text
    version = re.search(r'name="version" value="(\w+)"', plan.text)[1]
    data = {"format": "fleet", "text": sites, "apply": "yes", "version": version, "reason": "second site"}
    await admin.post("/inventory/import", data=data)
    assert [site.name for site in inventory(plane).sites] == ["ams", "fra"]


@pytest.mark.parametrize("kind", Kind)
def test_every_field_of_a_form_comes_back_as_it_was_shown(kind):
    texts = shown_texts(kind, None)
    assert texts.keys() == {spec.name for spec in SPECS[kind]}
    if kind is Kind.NODE:
        texts = shown_texts(kind, NODE)
        body = read_body(kind, texts)
        assert (body["slots"], body["labels"], body["state"]) == (4, {"rack": "a1"}, "ready")


def test_a_bulk_change_touches_its_one_field():
    for action, value, field, wanted in (
        ("chip", "H20", "chip", "H20"),
        ("slots", "8", "slots", 8),
        ("state", "disabled", "state", NodeState.DISABLED),
        ("label", "row = b", "labels", {"rack": "a1", "row": "b"}),
        ("unlabel", "rack", "labels", {}),
    ):
        [wish] = changed_nodes([NODE], action, value)
        assert getattr(wish.item, field) == wanted
    for action, value in (("slots", "0"), ("slots", "x"), ("state", "gone"), ("label", "row"), ("", "x")):
        with pytest.raises(ValueError, match=r".*"):
            changed_nodes([NODE], action, value)


async def test_a_bulk_change_of_nothing_is_refused(admin):
    reply = await admin.post("/inventory/bulk", data={"action": "chip", "value": "H20"})
    assert (reply.status_code, "Tick at least one node" in reply.text) == (422, True)


async def test_a_password_and_a_token_are_shown_once(admin, plane):
    made = await admin.post("/access/users", data={"username": "olga", "role": "operator"})
    password = re.search(r'class="secret" tabindex="0">([^<]+)<', made.text)[1]
    assert sign_in(plane, "olga", password, "127.0.0.1").principal.name == "olga"
    assert password not in (await admin.get("/access")).text
    again = await admin.post("/access/users", data={"username": "olga", "role": "operator"})
    assert again.status_code == 409
    token = await admin.post("/access/own/tokens", data={"name": "ci", "scopes": ["read"], "lifetime": "1d"})
    secret = re.search(r"pddt_[\w-]+", token.text)[0]
    assert secret not in (await admin.get("/access")).text


async def test_a_viewer_sees_no_control_that_changes_the_fleet(visitor, plane):
    _, password = create_user(plane, Principal("admin", AccessRole.ADMIN), "vera", AccessRole.VIEWER)
    signed_in = sign_in(plane, "vera", password, "127.0.0.1")
    visitor.cookies.set("pdd_session", signed_in.secret)
    for address in ("/policies", "/operations", "/inventory", "/alerts", "/alerts?tab=rules", "/alerts?tab=silences"):
        page = (await visitor.get(address)).text
        assert "hx-post" not in page, address
    access = (await visitor.get("/access")).text
    assert "/access/users" not in access
    assert 'hx-post="/access/own/tokens"' in access


async def test_an_operation_shows_its_plan_and_a_refusal_keeps_what_was_typed(admin):
    asked = {"kind": "drain", "node": "nowhere", "reason": "why", "timeout_s": "5"}
    reply = await admin.post("/operations/plan", data=asked)
    assert reply.status_code == 404
    assert "There is no node nowhere." in reply.text
    assert 'value="why"' in reply.text
    reply = await admin.post("/operations/plan", data={**asked, "reason": "", "timeout_s": "soon"})
    assert reply.status_code == 422
    assert 'id="start-timeout_s-error"' in reply.text


async def test_the_audit_page_shows_what_changed_and_its_csv_is_safe_to_open(admin, plane):
    with plane.database.unit_of_work(plane.send) as work:
        record_event(
            work.session, plane.now(), "=cmd", "test.do", "policy/r1", before={"a": 1}, after={"a": 2}, reason="r"
        )
    page = (await admin.get("/audit?action=test.do")).text
    assert "<del>1</del>" in page
    assert 'href="/policies/revisions/1"' in page
    table = (await admin.get("/audit/events.csv?action=test.do")).text
    assert "'=cmd" in table
    assert "The chain is whole." in (await admin.get("/audit/verify")).text


def test_words_for_durations_sizes_and_places():
    assert [span(seconds) for seconds in (0, 4.24, 59.6, 200, 3600, 7500, 90_000)] == [
        "0 s", "4.2 s", "1 min", "3 min 20 s", "1 h", "2 h 5 min", "1 d 1 h",
    ]  # fmt: skip
    assert scaled(148e12, "FLOP/s") == "148 TFLOP/s"
    assert axis_ratio(1, 1) == 1
    assert axis_ratio(1, 10) == pytest.approx(2 / 3)
    assert axis_ratio(0, 1) == 0.1
    assert target_address("node/a") == "/inventory?kind=nodes"
    assert target_address("user/a") == ""
    command = curl_command("http://h", "PUT", "/x", {"a": "it's"}, query={"reason": "a b"}, headers={"If-Match": '"1"'})
    assert command.startswith("curl -sS -X PUT 'http://h/api/v1/x?reason=a+b'")
    assert "it'\"'\"'s" in command
