"""Finds Chromium for the browser tests, and installs it where that is possible. Standard library only."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome; PDD_CHROMIUM overrides the search."""
    named = os.environ.get("PDD_CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((path for path in map(shutil.which, NAMES) if path), None)


def ensure_chromium() -> str:
    """Install Chromium with apt where this user may; one line that says how it went."""
    if find_chromium():
        return ""
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        return "browser tests will be skipped: no Chromium here, and installing it needs root and apt-get"
    print("setup: installing Chromium for the browser tests", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        subprocess.run([apt, *step], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return "" if find_chromium() else "browser tests will be skipped: apt-get could not install Chromium"


if __name__ == "__main__":
    problem = ensure_chromium()
    if problem:
        print(f"setup: {problem}", file=sys.stderr, flush=True)
