"""Pictures of every page in both themes, taken of an emulated fleet under demo traffic: `make screenshots`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, sign_in_key
from tests.embedded import ROOT, Fleet, running_fleet
from webapp.page_registry import PAGES

OUT = ROOT / "screenshots"
SIZES = {"desk": (1440, 900), "narrow": (1280, 800), "phone": (390, 844)}
SETTLE_MS = 3_500


def say(*words: object) -> None:
    """One line on standard output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def scenes(page: Page, base: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Names of pictures and how the page gets there."""

    def visit(path: str) -> Callable[[], None]:
        return lambda: page.goto(base + path) and None

    for entry in PAGES:
        yield entry.key, visit(entry.path)
        if entry.key == "live":
            yield "live-region", lambda: what_differs(page, base)
            yield "live-hour", visit("/?range=1h&site=ams")
        if entry.key == "requests":
            yield "request", lambda: slowest_request(page, base)


def what_differs(page: Page, base: str) -> None:
    """Select the lowest bucket over all that is shown."""
    page.goto(base)
    page.locator("[data-figure=heat] .main-svg").first.wait_for()
    page.locator("[data-select-bucket='0']").click()


def slowest_request(page: Page, base: str) -> None:
    """Open the waterfall of the slowest request that was relayed."""
    page.goto(f"{base}/requests?pipeline=relay&sort=ttft")
    page.locator(".row-link").first.click()


def take(browser: Browser, fleet: Fleet, wanted: list[str], size: str, language: str) -> list[Path]:
    """Save what is wanted, or all; gives the files."""
    width, height = SIZES[size]
    saved = []
    for theme in ("dark", "light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, locale=language, device_scale_factor=1.5
        )
        page = context.new_page()
        page.on("console", lambda message: message.type in {"error", "warning"} and say("console:", message.text))
        page.on("pageerror", lambda error: say("error:", error))
        page.goto(f"{fleet.web_url}/login?key={sign_in_key(fleet)}")
        page.locator("button").click()
        for name, go in scenes(page, fleet.web_url):
            if wanted and name not in wanted:
                continue
            go()
            page.wait_for_timeout(SETTLE_MS)
            suffix = "" if (size, language) == ("desk", "en") else f"-{size}-{language}"
            path = OUT / f"{name}-{theme}{suffix}.png"
            page.screenshot(path=path, full_page=True)
            saved.append(path)
        context.close()
    return saved


def main() -> None:
    """Start a fleet, let it work for a while, and look at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="keys of pages; all where none is given")
    parser.add_argument("--size", action="append", choices=SIZES, help="desk where none is given")
    parser.add_argument("--language", default="en")
    parser.add_argument("--warm-s", type=float, default=75.0, help="demo traffic before the first picture")
    arguments = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("screenshots: no Chromium is installed")
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder) / "data", more=("--demo",)) as fleet:
        time.sleep(arguments.warm_s)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            for size in arguments.size or ["desk"]:
                for path in take(browser, fleet, arguments.pages, size, arguments.language):
                    say(path.relative_to(ROOT))
            browser.close()


if __name__ == "__main__":
    main()
