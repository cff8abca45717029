"""Keeps on disk which fleet a site's observer should watch."""

import json
import os
from pathlib import Path
from typing import Any

from control.celery_app import send_order
from control.orders import CONTROL_QUEUE, REPORT_SITE, WATCH_FLEET, Order
from engine_agents.observer.config import watched_path
from engine_agents.tasks.celery import app, settings


@app.task(name=WATCH_FLEET)  # type: ignore[untyped-decorator]
def watch_fleet(*, site: str, fleet: dict[str, Any]) -> None:
    """Replace the file where the fleet is another one, and say that this site's agent lives.

    The observer looks at the file before each round.
    """
    write_watched(watched_path(settings.data_dir, site), fleet)
    send_order(app, Order(REPORT_SITE, CONTROL_QUEUE, {"site": site}))


def write_watched(path: Path, fleet: dict[str, Any]) -> bool:
    """Write in one step, unless the file says so already, or something newer; whether it was written.

    A lower revision beside another set of addresses comes from a new database and counts.
    """
    known = _read(path)
    if known == fleet:
        return False
    is_older = known is not None and int(fleet.get("revision", 0)) < int(known.get("revision", 0))
    if is_older and known is not None and _addresses(known) == _addresses(fleet):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(fleet))
    fresh.replace(path)
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _addresses(fleet: dict[str, Any]) -> list[str]:
    return sorted(str(item.get("url") or item.get("admin_url")) for kind in ("nodes", "links") for item in fleet[kind])
