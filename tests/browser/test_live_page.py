import re

import pytest
from playwright.sync_api import expect

from tests.embedded import child_named, kill_hard

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


KNOB = "[data-knob='routing.relay_when_transfer_exceeds_s']"
NUMBER = "Relay if transfer over, s"
APPLY = re.compile(r"^Apply as r\d+")


def is_dark(page):
    red, _, _ = (
        int(part) for part in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    )
    return red < 128


def set_threshold(page, value, reason):
    page.get_by_label(NUMBER).fill(value)
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=APPLY).click()


def test_the_page_shows_real_requests_without_errors_and_asks_nobody_else(dashboard):
    page = dashboard.page
    for word in ("first", "second", "third"):
        dashboard.ask(word)
    expect(page.locator("#requests tr")).not_to_have_count(0)
    expect(page.locator("#tile-served [data-part=value]")).to_have_text(re.compile(r"^\d"))
    expect(page.locator("#tile-ttft [data-part=p99]")).to_have_text(re.compile(r"^\d.*s$"))
    for figure in ("heat", "ttft", "relay"):
        expect(page.locator(f"[data-figure={figure}] .main-svg").first).to_be_visible()
    expect(page.locator("#links .main-svg").first).to_be_visible()
    page.locator("[data-figure=handoffs]").scroll_into_view_if_needed()
    expect(page.locator("[data-figure=handoffs] .main-svg").first).to_be_visible()
    assert dashboard.problems == []
    assert dashboard.hosts == {dashboard.fleet.web_url.removeprefix("http://")}


def test_the_knob_goes_from_slider_to_revision_to_gateway_to_the_next_requests_and_back(dashboard):
    page = dashboard.page
    state = page.locator("#knob-state")
    expect(state).to_have_attribute("data-settled", "true")
    before = int(state.get_attribute("data-revision"))
    live = page.locator(KNOB).get_attribute("data-live")

    apply = page.get_by_role("button", name=APPLY)
    expect(apply).to_have_attribute("aria-disabled", "true")
    slider = page.get_by_label("Relay if transfer over", exact=True)
    slider.focus()
    slider.press("End")
    expect(page.locator("#knob-badge")).to_have_text("1 changed, not applied")
    expect(page.get_by_label(NUMBER)).to_have_value("600")
    page.get_by_label("Reason").fill("Everything direct, to see the link fill")
    apply.click()

    expect(state).to_have_attribute("data-revision", str(before + 1))
    expect(state).to_have_attribute("data-settled", "true")
    assert dashboard.rest("/gateways")["items"][0]["revision"] == before + 1
    expect(page.locator("#revision")).to_contain_text(f"r{before + 1}")
    dashboard.ask("slow")
    expect(dashboard.newest_row()).to_contain_text("Direct")
    dashboard.newest_row().click()
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text(f"r{before + 1}")
    expect(drawer).to_contain_text("KV over WAN")
    page.keyboard.press("Escape")

    page.get_by_role("button", name=f"Revert to r{before}").click()
    expect(state).to_have_attribute("data-revision", str(before + 2))
    expect(state).to_have_attribute("data-settled", "true")
    expect(page.locator(KNOB)).to_have_attribute("data-live", live)
    assert dashboard.rest("/policies/active")["document"]["routing"]["relay_when_transfer_exceeds_s"] == float(live)
    page.mouse.move(5, 5)
    dashboard.ask("quick")
    expect(dashboard.newest_row()).to_contain_text("Relay")


def test_a_value_that_cannot_be_obeyed_is_refused_at_its_field(dashboard):
    page = dashboard.page
    set_threshold(page, "9000", "Too much")
    expect(page.locator("#knob-routing-relay-when-transfer-exceeds-s-error")).to_have_text("Must be from 0 to 600 s.")
    expect(page.get_by_label(NUMBER)).to_have_value("9000")
    expect(page.get_by_label("Reason")).to_have_value("Too much")


def test_keys_pause_switch_the_theme_and_explain_themselves(dashboard):
    page = dashboard.page
    page.keyboard.press("Space")
    expect(page.locator("#pulse-word")).to_have_text("Paused")
    page.keyboard.press("Space")
    expect(page.locator("#pulse-word")).to_have_text("Live")
    was_dark = is_dark(page)
    page.keyboard.press("d")
    assert is_dark(page) is not was_dark
    page.reload()
    assert is_dark(page) is not was_dark
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


@pytest.mark.full
def test_figures_can_be_read_as_a_table(dashboard):
    page = dashboard.page
    dashboard.ask("table")
    page.get_by_role("button", name="Show Pipelines as a table").click()
    table = page.locator("#panel-pipelines .table-view table")
    expect(table.locator("th").nth(1)).to_have_text("Direct, %")
    expect(table.locator("tbody tr")).not_to_have_count(0)


def serious_findings(page):
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {[node['target'] for node in rule['nodes']]}"
        for rule in found["violations"]
        if rule["impact"] in {"serious", "critical"}
    ]


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "path", ["/", *(pytest.param(path, marks=FULL) for path in ("/requests", "/topology", "/docs"))]
)
@pytest.mark.full
def test_axe_finds_nothing_serious_in_either_theme(dashboard, axe_source, path):
    page = dashboard.page
    dashboard.ask("readable")
    if path == "/":
        expect(page.locator("#requests tr")).not_to_have_count(0)
        expect(page.locator("#knob-state")).to_have_attribute("data-settled", "true")
    else:
        page.goto(f"{dashboard.fleet.web_url}{path}")
        expect(page.locator("#pulse-word")).to_have_text("Live")
    page.evaluate(axe_source)
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        assert is_dark(page) is (theme == "dark")
        assert serious_findings(page) == []


@pytest.mark.full
def test_nothing_sticks_out_at_any_width(dashboard):
    page = dashboard.page
    dashboard.ask("narrow")
    expect(page.locator("#requests tr")).not_to_have_count(0)
    for width in (390, 800, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        # Charts follow the window after a moment; they are as wide as their panel then.
        page.wait_for_function(
            """() => { const chart = document.querySelector('[data-figure=heat]');
                return Math.abs(chart.querySelector('.main-svg').clientWidth - chart.clientWidth) < 2 }"""
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        too_wide = page.evaluate(
            """() => [...document.querySelectorAll('.panel, .tile, table')]
                .filter((box) => box.getBoundingClientRect().right > innerWidth + 1)
                .map((box) => box.id || box.className)"""
        )
        assert too_wide == []


def test_a_lost_server_is_never_drawn_as_live_and_comes_back_by_itself(dashboard):
    page = dashboard.page
    kill_hard(child_named(dashboard.fleet, "-m webapp"))
    expect(page.locator("#pulse-word")).to_have_text("Disconnected")
    expect(page.locator("#notice")).to_contain_text("controls are locked")
    expect(page.get_by_label("Reason")).to_be_disabled()
    expect(page.locator("#panel-ttft")).to_have_attribute("data-state", "stale")
    expect(page.locator("#pulse-word")).to_have_text("Live", timeout=90_000)
    expect(page.get_by_label("Reason")).to_be_enabled()
    expect(page.locator("#notice")).to_be_hidden()


def test_signing_out_closes_the_door(dashboard):
    page = dashboard.page
    page.get_by_role("button", name=re.compile("user menu")).click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(dashboard.fleet.web_url)
    assert page.url.endswith("/login")
