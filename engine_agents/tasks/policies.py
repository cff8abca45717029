"""Brings a gateway to a policy revision and reports which one it truly runs."""

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from control.celery_app import send_order
from control.orders import CONTROL_QUEUE, PUSH_POLICY, REPORT_POLICY, Order
from engine_agents.tasks.celery import app
from engine_agents.tasks.site_client import site_client

_ERROR_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Observation:
    """What the gateway runs after an order, as it said itself; `error` is empty where nothing failed."""

    revision: int | None
    error: str
    fleet_revision: int = 0
    canary_revision: int | None = None


@app.task(name=PUSH_POLICY)  # type: ignore[untyped-decorator]
def push_policy(
    *,
    order_id: str,
    revision: int,
    policy: dict[str, Any],
    fleet: dict[str, Any],
    gateway: dict[str, str],
    force: bool = False,
    canary: dict[str, Any] | None = None,
) -> None:
    """Push, read back, report. Running twice does no harm: the gateway obeys only rising numbers."""
    body = {"revision": revision, "policy": policy, "fleet": fleet, "canary": canary}
    with site_client(gateway["url"]) as client:
        observation = apply_policy(client, body, force=force)
    report = {
        "order_id": order_id,
        "gateway": gateway["name"],
        "site": gateway["site"],
        "revision": observation.revision,
        "fleet_revision": observation.fleet_revision,
        "canary_revision": observation.canary_revision,
        "state": "failed" if observation.error else "applied",
        "error": observation.error,
        "applied_at_s": time.time(),
    }
    send_order(app, Order(REPORT_POLICY, CONTROL_QUEUE, report))


def apply_policy(client: httpx.Client, body: dict[str, Any], *, force: bool) -> Observation:
    """PUT a configuration to a gateway and GET back what it runs; `force` lets it go back to a lower revision.

    A gateway that runs a newer revision refuses with 409: the order came late, which is no failure.
    """
    error = ""
    try:
        answer = client.put("/admin/v1/config", json=body, params={"force": "true"} if force else {})
        if answer.is_error and answer.status_code != HTTPStatus.CONFLICT:
            error = f"the gateway refused with {answer.status_code}: {_words_of(answer)}"
        running = client.get("/admin/v1/config")
        running.raise_for_status()
        document = running.json()
        revision, fleet_revision = int(document["revision"]), int(document.get("fleet_revision") or 0)
        canary = document.get("canary_revision")
        canary_revision = None if canary is None else int(canary)
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as failure:
        return Observation(None, (error or f"{type(failure).__name__}: {failure}")[:_ERROR_LENGTH])
    if not error and revision < body["revision"]:
        error = f"the gateway still runs revision {revision}"
    return Observation(revision, error[:_ERROR_LENGTH], fleet_revision, canary_revision)


def _words_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text
