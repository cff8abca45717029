"""Gives the programs of a site a new secret, and keeps it for this agent."""

from http import HTTPStatus

import httpx
import msgspec

from control.celery_app import send_order
from control.orders import CONTROL_QUEUE, REPORT_SECRET, ROTATE_SECRET, Order
from control.site_secret import RotationOrder, SiteSecret
from engine_agents.tasks.celery import app, site_secret
from engine_agents.tasks.site_client import site_client

_WITHOUT_SECRET = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


@app.task(name=ROTATE_SECRET)  # type: ignore[untyped-decorator]
def rotate_secret(
    *, site: str, rotation: int, previous_until_s: float, targets: dict[str, str], secret: str = ""
) -> None:
    """Tell each target, and report who knows.

    The new secret comes once; later orders of the same rotation are without it, for those that were not reached.
    """
    if secret:
        site_secret.rotate(secret, previous_until_s, rotation)
    failed: dict[str, str] = {}
    if site_secret.rotation == rotation:
        order = RotationOrder(site_secret.current, previous_until_s, rotation)
        failed = {name: error for name, url in targets.items() if (error := tell(url, order, site_secret))}
        told = ["agent", *(name for name in targets if name not in failed)]
    else:
        failed, told = {"agent": "the new secret has not reached this agent"}, []
    report = {"site": site, "rotation": rotation, "told": told, "failed": failed}
    send_order(app, Order(REPORT_SECRET, CONTROL_QUEUE, report))


def tell(url: str, order: RotationOrder, known: SiteSecret) -> str:
    """Give one program the new secret, by whichever secret it is on; why that failed, or an empty text.

    A stock engine, which has no such address, has no secret either.
    """
    body = msgspec.json.encode(order)
    for secret in dict.fromkeys((order.secret, *known.known)):
        try:
            with site_client(url, secret) as client:
                answer = client.put(url, content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        if answer.is_success or answer.status_code in _WITHOUT_SECRET:
            return ""
        if answer.status_code != HTTPStatus.UNAUTHORIZED:
            return f"it refused with {answer.status_code}"
    return "it is on a secret that this agent does not know: restart it with the new one"
