"""Brings the relay of a link to a policy revision and reports what it truly enforces; pauses and cuts transfers."""

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from control.celery_app import send_order
from control.domain.transfers import TransferAction
from control.orders import CHANGE_TRANSFER, CONTROL_QUEUE, REPORT_LINK, SHAPE_LINK, Order
from engine_agents.tasks.celery import app
from engine_agents.tasks.site_client import site_client

log = logging.getLogger(__name__)

_ERROR_LENGTH = 300


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """The revision that the relay says it enforces on a link; `error` is empty where nothing failed."""

    revision: int | None
    error: str


@app.task(name=SHAPE_LINK)  # type: ignore[untyped-decorator]
def shape_link(
    *, order_id: str, revision: int, link: str, admin_url: str, shape: dict[str, Any], force: bool = False
) -> None:
    """Apply, read back, report. Running twice does no harm: the relay obeys only rising numbers."""
    with site_client(admin_url) as client:
        observation = apply_shape(client, link, revision, shape, force=force)
    report = {
        "order_id": order_id,
        "link": link,
        "revision": observation.revision,
        "state": "failed" if observation.error else "applied",
        "error": observation.error,
        "applied_at_s": time.time(),
    }
    send_order(app, Order(REPORT_LINK, CONTROL_QUEUE, report))


def apply_shape(
    client: httpx.Client, link: str, revision: int, shape: dict[str, Any], *, force: bool
) -> LinkObservation:
    """PUT a link's settings to its relay and GET back what it enforces.

    A relay that runs a newer revision refuses with 409: the order came late, which is no failure.
    """
    error = ""
    try:
        body = {**shape, "policy_revision": revision}
        answer = client.put(f"/links/{link}", json=body, params={"force": "true"} if force else {})
        if answer.is_error and answer.status_code != HTTPStatus.CONFLICT:
            error = f"the relay refused with {answer.status_code}: {answer.text}"
        states = client.get("/links").raise_for_status().json()
        state = next(state for state in states if state["name"] == link)
        running = state["policy_revision"]
    except StopIteration:
        return LinkObservation(None, f"the relay has no link {link}")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as failure:
        return LinkObservation(None, (error or f"{type(failure).__name__}: {failure}")[:_ERROR_LENGTH])
    differing = sorted(name for name, value in shape.items() if running == revision and state.get(name) != value)
    if not error and differing:
        error = f"the relay enforces other values of {', '.join(differing)}"
    if not error and (running is None or running < revision):
        error = f"the relay still runs revision {running}"
    return LinkObservation(running, error[:_ERROR_LENGTH])


@app.task(name=CHANGE_TRANSFER)  # type: ignore[untyped-decorator]
def change_transfer(*, link: str, admin_url: str, transfer_id: str, action: str) -> None:
    """Pause a transfer, let it go on, or cut it. A transfer that has ended meanwhile needs nothing any more."""
    with site_client(admin_url) as client:
        outcome = tell_relay(client, link, transfer_id, TransferAction(action))
    log.info("transfer %s on %s: %s, %s", transfer_id, link, action, outcome)


def tell_relay(client: httpx.Client, link: str, transfer_id: str, action: TransferAction) -> str:
    """Have the relay do it; says in a word what came of it. What the relay truly does is seen in its next sample."""
    path = f"/links/{quote(link, safe='')}/transfers/{quote(transfer_id, safe='')}"
    try:
        if action is TransferAction.CUT:
            answer = client.delete(path)
        else:
            answer = client.put(path, json={"paused": action is TransferAction.PAUSE})
    except httpx.HTTPError as failure:
        return f"the relay does not answer: {type(failure).__name__}"
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return "it has ended"
    return f"the relay refused with {answer.status_code}" if answer.is_error else "done"
