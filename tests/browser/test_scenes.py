import signal
import subprocess
import sys

import httpx
import pytest
from playwright.sync_api import expect

from control.domain.demo_scenes import SCENES
from tests.browser.conftest import sign_in_key
from tests.embedded import PDD, running_fleet
from tests.processes import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(420)]

ALERT_TIMEOUT_MS = 150_000


@pytest.fixture(scope="module")
def busy_fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("scenes") / "data", more=("--demo",)) as fleet:
        yield fleet


def facts(fleet):
    def read(path):
        reply = httpx.get(f"{fleet.web_url}/api/v1{path}", headers=fleet.headers, trust_env=False, timeout=30)
        return reply.raise_for_status().json()

    rules = [rule["name"] for rule in read("/alert-rules?limit=200")["items"]]
    return read("/policies/active")["document"], read("/nodes")["items"], rules


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_makes_its_alert_appear_and_leaves_no_trace(chromium, busy_fleet, name):
    before = facts(busy_fleet)
    argv = [*PDD, "scene", name, "--for", "300", "--data", str(busy_fleet.data)]
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    scene = subprocess.Popen(argv, cwd=ROOT, stdout=sys.stderr, stderr=subprocess.STDOUT)
    try:
        page = context.new_page()
        page.goto(f"{busy_fleet.web_url}/login?key={sign_in_key(busy_fleet)}&next=/alerts")
        page.get_by_role("button", name="Sign in").click()
        row = page.locator(f"tr[data-rule=scene-{name}][data-state=firing]")
        expect(row.first).to_be_visible(timeout=ALERT_TIMEOUT_MS)
    finally:
        scene.send_signal(signal.SIGINT)
        scene.wait(timeout=120)
        context.close()
    assert busy_fleet.pdd("scene", "stop").stdout.strip() == "no scene is on"
    assert facts(busy_fleet) == before
