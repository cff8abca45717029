"""Receivers of alerts over REST: a secret is in the answer that makes it, and never again."""

from fastapi import APIRouter, Request, Response

from control.api.alerts import Before, Limit
from control.api.alerts_schemas import (
    DeliveryOut,
    Name,
    ReceiptOut,
    SecretOut,
    WebhookCreatedOut,
    WebhookFields,
    WebhookIn,
    WebhookOut,
)
from control.api.dependencies import Operator, Plane, Viewer
from control.api.paging import Paged
from control.api.preconditions import Expected, set_etag
from control.api.schemas import Page
from control.api.show_once import show_once
from control.domain.access import Role
from control.services import webhooks
from control.services.access import Principal
from control.store.tables import WebhookRow

router = APIRouter(prefix="/webhooks", tags=["alerts"])


@router.get("")
def list_webhooks(plane: Plane, principal: Viewer, paging: Paged) -> Page[WebhookOut]:
    """Receivers by name, without their secrets."""
    with plane.database.reading() as session:
        known = webhooks.load_webhooks(session)
    rows = [row for row in known if paging.after is None or row.name > paging.after]
    return paging.page(rows[: paging.fetch], lambda row: row.name, lambda row: _shown(row, principal))


@router.get("/{name}")
def read_webhook(name: Name, plane: Plane, principal: Viewer, response: Response) -> WebhookOut:
    """One receiver, without its secret."""
    with plane.database.reading() as session:
        row = webhooks.load_webhook(session, name)
    set_etag(response, webhooks.webhook_version(row))
    return _shown(row, principal)


@router.post("", status_code=201)
def create_webhook(
    body: WebhookIn, plane: Plane, principal: Operator, request: Request, response: Response
) -> WebhookCreatedOut:
    """Let somebody be told of alerts. Keep the secret, which signs the messages: it cannot be read again.

    A message is signed in `X-PDD-Signature: sha256=…`: HMAC-SHA256 over `X-PDD-Timestamp`, a dot, and the body.
    """
    row, secret = webhooks.create_webhook(plane, principal, body.named(body.name))
    response.headers["Location"] = f"/api/v1/webhooks/{row.name}"
    set_etag(response, webhooks.webhook_version(row))
    show_once(request, response, "secret")
    return WebhookCreatedOut(**_shown(row, principal).model_dump(), secret=secret)


@router.put("/{name}")
def replace_webhook(
    name: Name, body: WebhookFields, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> WebhookOut:
    """Change a receiver; its secret stays, and what waits is tried again at once."""
    row = webhooks.replace_webhook(plane, principal, body.named(name), expected)
    set_etag(response, webhooks.webhook_version(row))
    return _shown(row, principal)


@router.delete("/{name}", status_code=204)
def delete_webhook(name: Name, plane: Plane, principal: Operator, expected: Expected) -> None:
    """Tell a receiver nothing more, and forget what waits for it."""
    webhooks.delete_webhook(plane, principal, name, expected)


@router.post("/{name}/secret")
def renew_secret(name: Name, plane: Plane, principal: Operator, request: Request, response: Response) -> SecretOut:
    """Sign with a new secret from now on; the old one ends at once."""
    show_once(request, response, "secret")
    return SecretOut(secret=webhooks.renew_secret(plane, principal, name))


@router.post("/{name}/test")
def send_test(name: Name, plane: Plane, principal: Operator) -> ReceiptOut:
    """Send an alert that says it is a test, at once, and tell what came of it."""
    return ReceiptOut.model_validate(webhooks.try_webhook(plane, principal, name))


@router.get("/{name}/deliveries")
def list_deliveries(name: Name, plane: Plane, _: Viewer, cursor: Before = None, limit: Limit = 50) -> Page[DeliveryOut]:
    """What a receiver was sent or is to be sent, newest first."""
    with plane.database.reading() as session:
        rows = webhooks.load_deliveries(session, name, limit + 1, cursor)
    items = [DeliveryOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


def _shown(row: WebhookRow, principal: Principal) -> WebhookOut:
    return WebhookOut.of(row, whole_url=principal.role is not Role.VIEWER)
