"""Receivers of alerts: who is told where; secrets are shown once."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, delete, select

from control.domain.alert_messages import AlertFacts, message_body
from control.domain.alerts import Notice
from control.domain.policy import FieldProblem
from control.domain.policy_fields import is_member_name
from control.domain.silences import MAX_MATCHERS, Matcher
from control.domain.versions import version_of
from control.domain.webhook_targets import parse_target
from control.errors import ConflictError, InvalidError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.services.versions import check_version
from control.services.webhook_sending import Message, Receipt, post_message
from control.store.tables import WebhookDeliveryRow, WebhookRow

MAX_WEBHOOKS = 50
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
TEST_RULE = "test"


@dataclass(frozen=True, slots=True)
class WebhookDraft:
    """What a receiver is to be; without matchers it is told of every alert."""

    name: str
    url: str
    matchers: Sequence[Matcher] = ()
    enabled: bool = True


def load_webhooks(session: Session) -> list[WebhookRow]:
    """All receivers by name."""
    return list(session.exec(select(WebhookRow).order_by(WebhookRow.name)))


def load_webhook(session: Session, name: str) -> WebhookRow:
    """One receiver.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = session.get(WebhookRow, name)
    if row is None:
        raise NotFoundError(f"There is no webhook {name}.")
    return row


def load_deliveries(session: Session, name: str, limit: int, before_id: int | None = None) -> list[WebhookDeliveryRow]:
    """What a receiver was sent or is to be sent, newest first.

    Raises:
        NotFoundError: there is none of that name.
    """
    load_webhook(session, name)
    query = select(WebhookDeliveryRow).where(WebhookDeliveryRow.webhook == name)
    if before_id is not None:
        query = query.where(col(WebhookDeliveryRow.id) < before_id)
    return list(session.exec(query.order_by(col(WebhookDeliveryRow.id).desc()).limit(limit)))


def webhook_version(row: WebhookRow) -> str:
    """Version of a receiver's content."""
    return version_of([_facts(row), row.url])


def shown_url(url: str) -> str:
    """A receiver's URL for those who may not know its path, which often is a secret."""
    target = parse_target(url)
    return f"{target.scheme}://{target.authority}/" + ("…" if target.path != "/" else "")


def create_webhook(plane: ControlPlane, principal: Principal, draft: WebhookDraft) -> tuple[WebhookRow, str]:
    """Let somebody be told of alerts.

    Returns:
        The receiver, and the secret that signs its messages, which nobody can read again.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: its URL cannot be used.
        ConflictError: there is one of that name, or there are very many.
    """
    require_role(principal, Role.OPERATOR)
    _check(draft)
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    with plane.database.unit_of_work(plane.send) as work:
        known = load_webhooks(work.session)
        if any(row.name == draft.name for row in known):
            raise ConflictError(f"There is a webhook {draft.name} already.")
        if len(known) >= MAX_WEBHOOKS:
            raise ConflictError(f"There are {MAX_WEBHOOKS} webhooks already.")
        at = plane.now()
        row = WebhookRow(
            name=draft.name,
            url=draft.url,
            secret=secret,
            matchers=[matcher.to_document() for matcher in draft.matchers],
            enabled=draft.enabled,
            next_attempt_at=at,
            updated_at=at,
            updated_by=principal.name,
        )
        work.session.add(row)
        record_event(work.session, at, principal.name, "webhook.create", f"webhook/{row.name}", after=_facts(row))
    return row, secret


def replace_webhook(
    plane: ControlPlane, principal: Principal, draft: WebhookDraft, expected: Collection[str] | None
) -> WebhookRow:
    """Change a receiver; its secret stays. What waits for it is tried again at once.

    Raises:
        ForbiddenError, InvalidError: as in `create_webhook`.
        NotFoundError: there is none of that name.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    _check(draft)
    with plane.database.unit_of_work(plane.send) as work:
        row = load_webhook(work.session, draft.name)
        check_version(webhook_version(row), expected)
        before = _facts(row)
        row.url, row.enabled = draft.url, draft.enabled
        row.matchers = [matcher.to_document() for matcher in draft.matchers]
        row.failures, row.next_attempt_at = 0, plane.now()
        row.updated_at, row.updated_by = plane.now(), principal.name
        work.session.add(row)
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "webhook.replace",
            f"webhook/{row.name}",
            before=before,
            after=_facts(row),
        )
    return row


def renew_secret(plane: ControlPlane, principal: Principal, name: str) -> str:
    """Sign with a new secret from now on; the old one ends at once.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
    """
    require_role(principal, Role.OPERATOR)
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    with plane.database.unit_of_work(plane.send) as work:
        row = load_webhook(work.session, name)
        row.secret = secret
        work.session.add(row)
        record_event(work.session, plane.now(), principal.name, "webhook.renew_secret", f"webhook/{name}")
    return secret


def delete_webhook(plane: ControlPlane, principal: Principal, name: str, expected: Collection[str] | None) -> None:
    """Tell a receiver nothing more, and forget what waits for it.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = load_webhook(work.session, name)
        check_version(webhook_version(row), expected)
        work.session.exec(delete(WebhookDeliveryRow).where(col(WebhookDeliveryRow.webhook) == name))
        record_event(work.session, plane.now(), principal.name, "webhook.delete", f"webhook/{name}", before=_facts(row))
        work.session.delete(row)


def try_webhook(plane: ControlPlane, principal: Principal, name: str) -> Receipt:
    """Send an alert that says it is a test, at once, and tell what came of it.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.reading() as session:
        row = load_webhook(session, name)
    at = plane.now()
    alert = AlertFacts(
        id=0,
        status=Notice.FIRING,
        labels={"alertname": TEST_RULE, "severity": "info"},
        summary=f"A test, asked for by {principal.name}. Nothing is wrong.",
        value=None,
        threshold=0.0,
        fired_at=at,
        resolved_at=None,
        fingerprint=TEST_RULE,
    )
    body = message_body(name, TEST_RULE, [alert])
    message = Message(row.url, row.secret, f"test-{secrets.token_hex(8)}", body)
    receipt = post_message(message, plane.webhook_networks, at.timestamp())
    with plane.database.unit_of_work(plane.send) as work:
        after: dict[str, Any] = {"status": receipt.status, "error": receipt.error}
        record_event(work.session, at, principal.name, "webhook.test", f"webhook/{name}", after=after)
    return receipt


def _check(draft: WebhookDraft) -> None:
    problems = []
    if not is_member_name(draft.name):
        problems.append(FieldProblem("name", "Use lower-case letters, digits, `-` and `_`."))
    if len(draft.matchers) > MAX_MATCHERS:
        problems.append(FieldProblem("matchers", f"At most {MAX_MATCHERS}."))
    try:
        parse_target(draft.url)
    except ValueError as error:
        problems.append(FieldProblem("url", str(error)))
    if problems:
        raise InvalidError("Some fields are not valid.", problems)


def _facts(row: WebhookRow) -> dict[str, Any]:
    """What may be written down of a receiver: not its secret, nor a path that may hold another one."""
    return {"url": shown_url(row.url), "matchers": row.matchers, "enabled": row.enabled}
