import json
import re
import threading

import pytest
from playwright.sync_api import expect

from webapp.page_registry import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(280)]

OWN = ("policies", "operations", "inventory", "alerts", "audit", "access")
ADDRESSES = [
    *(entry.path for entry in PAGES if entry.key in OWN),
    "/policies?view=yaml",
    "/policies?view=merged",
    "/policies/revisions/1",
    "/alerts?tab=rules",
    "/alerts?tab=silences",
    "/alerts?tab=webhooks",
    "/inventory?kind=links",
    "/docs",
]
# What Chromium itself says of a refusal that the page shows at its field.
REFUSED = re.compile(r"status of (409|412|422)")


def visit(dashboard, address):
    dashboard.page.goto(dashboard.fleet.web_url + address)
    expect(dashboard.page.locator("#pulse-word")).to_have_text("Live")


def look_at_all(dashboard, axe_source, addresses):
    for address in addresses:
        visit(dashboard, address)
        width = dashboard.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], (address, width)
        dashboard.page.evaluate(axe_source)
        found = dashboard.page.evaluate("axe.run({resultTypes: ['violations']})")
        serious = [
            (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
        ]
        assert serious == [], (address, json.dumps(serious, indent=1))
    assert dashboard.problems == []
    assert dashboard.hosts == {dashboard.fleet.web_url.removeprefix("http://")}


@pytest.mark.full
def test_every_page_of_operators_is_whole_quiet_and_accessible(dashboard, axe_source):
    look_at_all(dashboard, axe_source, ADDRESSES[: len(OWN)])


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
        {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    ],
    ids=["light", "dark", "phone", "narrow"],
)
def test_every_page_and_tab_is_so_in_both_themes_and_at_every_width(open_dashboard, axe_source, options):
    look_at_all(open_dashboard(**options), axe_source, ADDRESSES)


def test_a_field_goes_from_draft_to_gateways_and_another_editor_is_not_overwritten(dashboard):
    page = dashboard.page
    before = dashboard.rest("/policies/active")
    visit(dashboard, "/policies")
    ceiling = page.get_by_label("RLD ceiling")
    ceiling.fill("120")
    expect(page.locator("#note-routing-relay-load-ceiling [role=alert]")).to_be_visible()
    expect(page.locator("#apply")).to_have_attribute("aria-disabled", "true")
    ceiling.fill("77")
    page.get_by_label("Reason").fill("Seen in a browser")
    expect(page.locator("#policy-diff ins")).to_have_text("+ 77")

    page.get_by_role("button", name="YAML").click()
    expect(page.locator("#yaml")).to_have_value(re.compile(r"relay_load_ceiling: 0\.77"))
    page.get_by_role("button", name="Form", exact=True).click()
    expect(page.get_by_label("RLD ceiling")).to_have_value("77")

    quicker = {"reason": "quicker", "base_revision": before["revision"], "apply": True}
    dashboard.post("/policies/revisions", {**quicker, "changes": {"routing.relay_load_ceiling": 0.66}})
    page.get_by_role("button", name="Apply as a new revision").click()
    conflict = page.get_by_role("alertdialog")
    expect(conflict).to_contain_text("quicker")
    expect(conflict.locator("tr.is-conflict")).to_contain_text("66")
    conflict.get_by_role("checkbox").check()
    page.get_by_role("button", name=re.compile("Apply the chosen")).click()
    expect(conflict).to_have_count(0)
    expect(page.locator(".revisions li[aria-current]")).to_contain_text("Seen in a browser")
    expect(page.locator("#running")).to_have_attribute("data-drifted", "0")
    assert dashboard.rest("/policies/active")["document"]["routing"]["relay_load_ceiling"] == 0.77

    visit(dashboard, f"/policies/revisions/{before['revision']}")
    page.locator("#revert").get_by_label("Reason").fill("As it was")
    page.get_by_role("button", name=f"Revert to r{before['revision']}").click()
    expect(page.locator(".revisions li[aria-current]")).to_contain_text("As it was")
    assert dashboard.rest("/policies/active")["document"] == before["document"]
    assert [one for one in dashboard.problems if not REFUSED.search(one)] == []


@pytest.mark.full
def test_a_silence_is_made_and_ended_and_a_token_is_shown_once(dashboard):
    page = dashboard.page
    visit(dashboard, "/alerts?tab=silences")
    page.get_by_label("Matchers").fill("alertname")
    page.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("#silence-matchers-error")).to_be_visible()
    page.get_by_label("Matchers").fill("alertname=valley")
    page.get_by_label("Comment").fill("Planned work")
    page.get_by_role("button", name="Silence", exact=True).click()
    row = page.locator("tr[data-silence]", has_text="alertname=valley").first
    expect(row).to_contain_text("Active")
    row.get_by_role("button", name="End now").click()
    expect(page.locator("tr[data-silence]", has_text="alertname=valley").first).to_contain_text("Over")

    visit(dashboard, "/access")
    page.get_by_label("New token").fill("browser-test")
    page.get_by_role("button", name="Make token").click()
    secret = page.locator("#tokens .secret")
    expect(secret).to_have_text(re.compile("^pddt_"))
    text = secret.inner_text()
    visit(dashboard, "/access")
    expect(page.locator("tr[data-token=browser-test]")).to_be_visible()
    assert text not in page.content()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke browser-test").click()
    expect(page.locator("tr[data-token=browser-test]")).to_have_count(0)
    assert [one for one in dashboard.problems if not REFUSED.search(one)] == []


@pytest.mark.full
def test_a_drain_counts_down_what_is_in_flight_and_is_taken_back(dashboard):
    page = dashboard.page
    request = threading.Thread(target=dashboard.ask, args=("slow", 400), daemon=True)
    request.start()
    expect(page.locator("#tile-load [data-part=value]")).to_be_visible()
    visit(dashboard, "/operations")
    page.locator("#start-node").select_option("fra-md-01")
    page.get_by_label("Even the last ready node of its role").check()
    page.locator("#start").get_by_label("Reason").fill("Countdown")
    page.get_by_role("button", name="Show the plan…").click()
    expect(page.get_by_role("status", name="Plan")).to_contain_text("Empty")
    page.get_by_role("button", name="Start: Drain").click()
    expect(page.locator("#course")).to_have_attribute("data-state", re.compile("running|done"))
    expect(page.locator("#course")).to_have_attribute("data-state", "done", timeout=90_000)
    expect(page.locator("#log")).to_contain_text("Empty fra-md-01: done")
    request.join()

    visit(dashboard, "/operations?start=undrain&subject=fra-md-01")
    page.locator("#start").get_by_label("Reason").fill("Back again")
    page.get_by_role("button", name="Show the plan…").click()
    page.get_by_role("button", name="Start: Undrain").click()
    expect(page.locator("#course")).to_have_attribute("data-state", "done", timeout=60_000)
    assert {node["state"] for node in dashboard.rest("/nodes")["items"]} == {"ready"}


@pytest.mark.full
def test_the_inventory_shows_a_plan_first_and_names_who_needs_what_is_to_go(dashboard):
    page = dashboard.page
    visit(dashboard, "/inventory?kind=nodes")
    page.get_by_label("Choose ams-p-01").check()
    page.get_by_label("Change", exact=True).select_option("label")
    page.get_by_label("To", exact=True).fill("rack=a1")
    page.locator("#bulk").get_by_role("button", name="Show what changes…").click()
    expect(page.locator("#bulk .plan")).to_contain_text("exactly these 1")
    expect(page.locator("#bulk .plan")).to_contain_text("ams-p-01")
    page.locator("#bulk").get_by_label("Reason").fill("Racks are known now")
    page.get_by_role("button", name="Apply to these 1").click()
    expect(page.locator("#items tr", has_text="ams-p-01")).to_contain_text("rack=a1")

    visit(dashboard, "/inventory?kind=sites")
    page.get_by_role("button", name="Edit fra").click()
    form = page.locator("#side-body")
    form.get_by_label("Reason").fill("Not needed")
    form.get_by_role("button", name="Delete fra").click()
    expect(form).to_contain_text("nodes.fra-md-01")
    assert [one for one in dashboard.problems if not REFUSED.search(one)] == []
