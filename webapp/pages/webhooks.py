"""Receivers of alerts: made with a secret that is shown once, tried, changed, deleted."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from control.errors import ControlError, face_of
from control.services.access import Principal
from control.services.plane import ControlPlane
from control.services.webhooks import (
    WebhookDraft,
    create_webhook,
    delete_webhook,
    load_deliveries,
    load_webhooks,
    renew_secret,
    replace_webhook,
    shown_url,
    try_webhook,
    webhook_version,
)
from webapp.alert_view import matchers_text, parse_matchers
from webapp.form_fields import GENERAL, FormDep, Typed, refusal
from webapp.visit import Operating, Visit

router = APIRouter(prefix="/webhooks")

DELIVERIES_SHOWN: Final = 5


@router.post("")
def save_webhook(visit: Operating, form: FormDep) -> HTMLResponse:
    """Make a receiver, or change one."""
    t = visit.t
    matchers, wrong = parse_matchers(form.raw("matchers"))
    if wrong:
        errors = {"matchers": t("alerts.wrong_matcher", line=wrong[0])}
        return _tab(visit, typed=form, errors=errors, status=422)
    draft = WebhookDraft(form.text("name"), form.text("url"), matchers, form.has("enabled"))
    secret = ""
    try:
        if form.text("version"):
            replace_webhook(visit.plane, visit.principal, draft, {form.text("version")})
        else:
            _, secret = create_webhook(visit.plane, visit.principal, draft)
    except ControlError as error:
        status = face_of(error).status
        return _tab(visit, typed=form, errors=refusal(error), status=status)
    return _tab(visit, secret=secret, secret_of=draft.name)


@router.get("/form")
def webhook_form(
    visit: Operating,
    *,
    name: Annotated[str, Query(max_length=100)] = "",
) -> HTMLResponse:
    """The tab with the form of one receiver open."""
    return _tab(visit, editing=name)


@router.post("/test")
def send_test(visit: Operating, form: FormDep) -> HTMLResponse:
    """Send an alert that says it is a test, and tell what came of it."""
    t = visit.t
    name = form.text("name")
    try:
        receipt = try_webhook(visit.plane, visit.principal, name)
    except ControlError as error:
        return _tab(visit, errors=refusal(error), status=face_of(error).status)
    if receipt.is_delivered:
        said = t("alerts.test_delivered", name=name, status=receipt.status)
    else:
        said = t("alerts.test_failed", name=name, error=receipt.error or receipt.status)
    return _tab(visit, said=said, is_good=receipt.is_delivered)


@router.post("/renew")
def renew(visit: Operating, form: FormDep) -> HTMLResponse:
    """Sign with a new secret from now on."""
    name = form.text("name")
    try:
        secret = renew_secret(visit.plane, visit.principal, name)
    except ControlError as error:
        return _tab(visit, errors=refusal(error), status=face_of(error).status)
    return _tab(visit, secret=secret, secret_of=name)


@router.post("/delete")
def remove(visit: Operating, form: FormDep) -> HTMLResponse:
    """Tell a receiver nothing more."""
    try:
        delete_webhook(visit.plane, visit.principal, form.text("name"), {form.text("version")})
    except ControlError as error:
        return _tab(visit, errors={GENERAL: error.detail}, status=face_of(error).status)
    return _tab(visit)


def context(plane: ControlPlane, principal: Principal, editing: str = "") -> dict[str, Any]:
    """What the tab shows; only operators see the whole of a URL, as its path often is a secret."""
    with plane.database.reading() as session:
        rows = load_webhooks(session)
        deliveries = {row.name: load_deliveries(session, row.name, DELIVERIES_SHOWN) for row in rows}
    is_operator = principal.role != "viewer"
    shown = [
        {
            "row": row,
            "url": row.url if is_operator else shown_url(row.url),
            "matchers": matchers_text(row.matchers).splitlines(),
            "deliveries": deliveries[row.name],
            "version": webhook_version(row),
        }
        for row in rows
    ]
    known = next((row for row in rows if row.name == editing), None)
    values = {"name": "", "url": "", "matchers": "", "enabled": True, "version": ""}
    if known is not None:
        matchers = matchers_text(known.matchers)
        values = {
            "name": known.name,
            "url": known.url,
            "matchers": matchers,
            "enabled": known.enabled,
            "version": webhook_version(known),
        }
    return {
        "webhooks": shown,
        "values": values,
        "errors": {},
        "secret": "",
        "secret_of": "",
        "said": "",
        "is_good": True,
        "now": plane.now(),
    }


def _tab(
    visit: Visit,
    *,
    editing: str = "",
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
    status: int = 200,
    **more: Any,
) -> HTMLResponse:
    shown = context(visit.plane, visit.principal, editing)
    if typed is not None:
        texts: dict[str, Any] = {name: typed.text(name) for name in ("name", "url", "matchers", "version")}
        shown["values"] = {**texts, "enabled": typed.has("enabled")}
    return visit.render("alerts/webhooks.html", status=status, **{**shown, "errors": errors or {}, **more})
