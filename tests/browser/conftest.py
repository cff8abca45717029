"""Chromium on the dashboard of a real fleet."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from control.services.credentials import issue_login_key
from control.services.plane import ControlPlane
from control.settings import Settings
from control.store.session import open_database
from tests.embedded import Fleet
from webapp.app import STATIC

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
STEP_TIMEOUT_MS = 30_000
QUESTION = "The {} ship has left the port. Describe its cargo, its crew and its way across the sea, from the beginning."


@dataclass
class Dashboard:
    """A signed-in page, all that went wrong on it, and every host that it asked."""

    page: Page
    fleet: Fleet
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def ask(self, word: str, max_tokens: int = 24) -> None:
        """Send one chat through the gateway."""
        body = {
            "model": "smollm2-135m",
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": QUESTION.format(word)}],
        }
        reply = httpx.post(f"{self.fleet.gateway_url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
        reply.raise_for_status()

    def rest(self, path: str) -> Any:
        """Read something over REST."""
        reply = httpx.get(f"{self.fleet.web_url}/api/v1{path}", headers=self.fleet.headers, trust_env=False)
        return reply.raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Change something over REST, as somebody else would."""
        url = f"{self.fleet.web_url}/api/v1{path}"
        reply = httpx.post(url, json=body, headers=self.fleet.headers, trust_env=False, timeout=30)
        return reply.raise_for_status().json()

    def newest_row(self) -> Any:
        """First row of the table of requests."""
        return self.page.locator("#requests tr").first


def sign_in_key(fleet: Fleet) -> str:
    """A fresh one-time key, as every start of the fleet prints one."""
    settings = Settings.from_environment({"PDD_DATA_DIR": str(fleet.data)})
    database = open_database(settings.database_url)
    try:
        return issue_login_key(ControlPlane(database, lambda _: None))
    finally:
        database.engine.dispose()


@pytest.fixture(scope="module")
def chromium():
    """One browser for a module. It must not outlive it: its loop would be in the way of asynchronous tests."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    if not (STATIC / "vendor" / "manifest.json").is_file():
        pytest.skip("the browser packages are not built: npm ci && npm run build")
    expect.set_options(timeout=STEP_TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_dashboard(chromium: Browser, emulated_fleet: Fleet):
    """Opens a signed-in Live page in a window of its own."""
    contexts = []

    def open_one(**options: Any) -> Dashboard:
        context = chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        context.set_default_timeout(STEP_TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        dashboard = Dashboard(page, emulated_fleet)
        page.on("request", lambda request: dashboard.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: dashboard.problems.append(str(error)))
        page.on(
            "console",
            lambda message: message.type in {"error", "warning"} and dashboard.problems.append(message.text),
        )
        page.goto(f"{emulated_fleet.web_url}/login?key={sign_in_key(emulated_fleet)}")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#pulse-word")).to_have_text("Live")
        return dashboard

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def dashboard(open_dashboard: Callable[..., Dashboard]) -> Dashboard:
    return open_dashboard()


@pytest.fixture(scope="session")
def axe_source() -> str:
    """The accessibility checker, evaluated in the page; pages themselves never load it."""
    manifest = json.loads((STATIC / "vendor" / "manifest.json").read_text())
    if "axe.js" not in manifest:
        pytest.skip("axe-core is not built: npm ci && npm run build")
    return (STATIC / "vendor" / manifest["axe.js"]).read_text()
