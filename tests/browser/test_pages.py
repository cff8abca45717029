import re

import pytest
from playwright.sync_api import expect

from webapp.page_registry import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def ask_for_some(dashboard, count=3):
    for number in range(count):
        dashboard.ask(f"number {number}")


@pytest.mark.full
def test_every_page_renders_in_both_languages_without_a_word_to_the_console(dashboard):
    page = dashboard.page
    ask_for_some(dashboard, 1)
    for language, live in (("en", "Live"), ("zh", "实时")):
        page.context.add_cookies([{"name": "pdd_language", "value": language, "url": dashboard.fleet.web_url}])
        for entry in PAGES:
            page.goto(dashboard.fleet.web_url + entry.path)
            expect(page.locator("#pulse-word")).to_have_text(live)
            expect(page.locator(".rail a[aria-current=page]").first).to_have_attribute("data-page-path", entry.path)
            assert "undefined" not in page.locator("main").inner_text()
    assert dashboard.problems == []
    assert dashboard.hosts == {dashboard.fleet.web_url.removeprefix("http://")}


@pytest.mark.full
def test_a_region_of_the_heat_map_leads_to_what_differs_its_requests_and_a_waterfall(dashboard):
    page = dashboard.page
    ask_for_some(dashboard)
    page.locator("[data-select-bucket='0']").focus()
    page.keyboard.press("Enter")
    differs = page.locator("#differs")
    expect(differs).to_contain_text("What differs")
    expect(page).to_have_url(re.compile(r"region=0\."))
    page.keyboard.press("Escape")
    expect(differs).to_be_hidden()

    heat = page.locator("[data-figure=heat]")
    box = heat.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 25)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 25, steps=4)
    page.mouse.up()
    expect(differs.get_by_role("link", name="Show requests")).to_be_visible()
    differs.get_by_role("link", name="Show requests").click()
    page.wait_for_url(re.compile(r"/requests\?.*bucket=0"))
    # The consumer saves what it keeps every few seconds; the table is asked again until it is there.
    for _ in range(20):
        if page.locator(".row-link").count():
            break
        page.wait_for_timeout(1000)
        page.reload()
    page.locator(".row-link").first.click()
    expect(page.get_by_role("heading", name="Where the time went")).to_be_visible()
    expect(page.locator(".stage-bar").first).to_be_visible()
    assert dashboard.problems == []


def test_keys_alone_lead_from_page_to_page_and_to_what_is_looked_for(dashboard):
    page = dashboard.page
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(re.compile(r"/requests$"))
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("nothing of that name")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No request matches.")).to_be_visible()
    page.keyboard.press("Tab")
    page.locator("main").focus()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url(re.compile(r"/topology"))
    page.keyboard.press("/")
    page.keyboard.type("ams-p-01")
    page.keyboard.press("Enter")
    expect(page.locator("#side .side-head h2")).to_have_text("ams-p-01")
    page.locator("#map [data-name='ams-p-01']").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_hidden()


@pytest.mark.full
def test_a_node_is_drained_from_the_map_and_given_back(dashboard):
    page = dashboard.page
    page.goto(f"{dashboard.fleet.web_url}/topology")
    expect(page.locator("#pulse-word")).to_have_text("Live")
    node = page.locator("#map [data-name='fra-md-01']")
    node.click()
    page.get_by_role("button", name="Drain…").click()
    # The canvas narrows beside the panel; from here on nothing may move.
    place = node.bounding_box()
    sheet = page.get_by_role("dialog", name="Drain fra-md-01")
    sheet.get_by_label("Reason").fill("Try without it")
    sheet.get_by_role("button", name="Drain", exact=True).click()
    expect(sheet.get_by_role("alert")).to_contain_text("last")
    sheet.get_by_label("Also if it is the last").check()
    sheet.get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator(".done-list li").first).to_contain_text("Done")
    expect(node).to_have_attribute("data-condition", "draining")
    assert dashboard.rest("/nodes/fra-md-01")["state"] == "draining"
    page.reload()
    expect(page.get_by_role("button", name="Drain…")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="Give back…").click()
    sheet = page.get_by_role("dialog", name="Give fra-md-01 back")
    sheet.get_by_label("Reason").fill("It is needed")
    sheet.get_by_role("button", name="Give back", exact=True).click()
    expect(node).to_have_attribute("data-condition", "ready")
    assert node.bounding_box() == pytest.approx(place)
    assert dashboard.rest("/nodes/fra-md-01")["state"] == "ready"


@pytest.mark.full
def test_a_time_is_zoomed_to_by_dragging_and_left_by_going_back(dashboard):
    page = dashboard.page
    ask_for_some(dashboard, 1)
    chart = page.locator("[data-figure=ttft]")
    expect(chart.locator(".main-svg").first).to_be_visible()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    expect(page.locator("#pulse-word")).to_have_text("History")
    page.go_back()
    expect(page.locator("#pulse-word")).to_have_text("Live")
    page.goto(f"{dashboard.fleet.web_url}/?range=1h&site=ams")
    expect(page.locator("#span-text")).to_contain_text("UTC")
    expect(page.locator("#tile-served [data-part=value]")).to_have_text(re.compile(r"^\d"))
    assert dashboard.problems == []


@pytest.mark.full
def test_what_a_page_keeps_does_not_grow_with_the_days_it_is_open(dashboard):
    page = dashboard.page
    script = page.locator("script[src*='live.js']").get_attribute("src")
    kept = page.evaluate(
        """async (address) => {
            const { Store } = await import(address);
            const store = new Store();
            store.takeSnapshot({ now_s: 0, slot_s: 10, slots: [], requests: [], marks: [] });
            const sizes = new Set();
            for (let now_s = 1; now_s < 200_000; now_s += 5) {
                store.takeTick({
                    now_s, id: `${now_s}-0`, slot: { at_s: Math.floor(now_s / 10) * 10, requests: 1 },
                    requests: [{ id: `r${now_s}` }], marks: [{ at_s: now_s, label: `r${now_s}` }],
                });
                if (now_s > 100_000) sizes.add(`${store.slots.size > 92}/${store.rows.length}/${store.marks.length}`);
            }
            return [...sizes];
        }""",
        script.replace("live.js", "store.js"),
    )
    assert kept == ["false/40/40"]


@pytest.mark.full
@pytest.mark.parametrize("path", ["/requests", "/topology?node=ams-p-01", "/docs", "/?range=1h"])
def test_nothing_of_a_page_sticks_out_at_any_width(dashboard, path):
    page = dashboard.page
    ask_for_some(dashboard, 1)
    page.goto(dashboard.fleet.web_url + path)
    expect(page.locator("#pulse-word")).to_have_text("Live")
    for width in (390, 800, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
