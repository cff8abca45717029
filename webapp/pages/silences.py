"""Silences: made for a time, prolonged, ended."""

from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from control.errors import ControlError, face_of
from control.services.plane import ControlPlane
from control.services.silences import create_silence, end_silence, load_silences, silence_version
from webapp.alert_view import matchers_text, parse_matchers
from webapp.commands import curl_command
from webapp.form_fields import FormDep, Typed, refusal
from webapp.visit import Operating, Visit

router = APIRouter(prefix="/silences")

SHOWN: Final = 50
DURATIONS_S: Final = {"15m": 900, "1h": 3_600, "4h": 14_400, "1d": 86_400, "7d": 604_800, "30d": 2_592_000}


@router.post("")
def add_silence(visit: Operating, form: FormDep) -> HTMLResponse:
    """Make one."""
    t = visit.t
    matchers, wrong = parse_matchers(form.raw("matchers"))
    errors: dict[str, str] = {}
    status = 422
    if wrong:
        errors["matchers"] = t("alerts.wrong_matcher", line=wrong[0])
    if not form.text("comment"):
        errors["comment"] = t("alerts.comment_missing")
    if not errors:
        seconds = DURATIONS_S.get(form.text("duration"), DURATIONS_S["1h"])
        ends_at = visit.plane.now() + timedelta(seconds=seconds)
        try:
            create_silence(visit.plane, visit.principal, matchers, ends_at=ends_at, comment=form.text("comment")[:500])
        except ControlError as error:
            errors, status = refusal(error), face_of(error).status
        else:
            return _tab(visit)
    return _tab(visit, typed=form, errors=errors, status=status)


@router.post("/{silence_id}/end")
def end(silence_id: int, visit: Operating, form: FormDep) -> HTMLResponse:
    """Let one end now."""
    try:
        end_silence(visit.plane, visit.principal, silence_id, {form.text("version")})
    except ControlError as error:
        status = face_of(error).status
        return _tab(visit, errors=refusal(error), status=status)
    return _tab(visit)


def context(plane: ControlPlane, matchers: str = "", typed: Typed | None = None) -> dict[str, Any]:
    """What the tab shows."""
    now = plane.now()
    with plane.database.reading() as session:
        rows = load_silences(session, SHOWN)
    shown = []
    for row in rows:
        state = "active" if row.starts_at <= now < row.ends_at else "over" if row.ends_at <= now else "later"
        left_s = max(0.0, (row.ends_at - now).total_seconds())
        matched = matchers_text(row.matchers).splitlines()
        shown.append(
            {"row": row, "state": state, "left_s": left_s, "matchers": matched, "version": silence_version(row)}
        )
    values = {"matchers": matchers, "comment": "", "duration": "1h"}
    if typed is not None:
        values = {name: typed.text(name) for name in values}
    return {
        "silences": shown,
        "values": values,
        "errors": {},
        "durations": list(DURATIONS_S),
        "now": now,
        "command": "",
    }


def _tab(
    visit: Visit,
    *,
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    shown = context(visit.plane, "", typed) | {"errors": errors or {}}
    if typed is not None:
        base = visit.base
        matchers = [one.to_document() for one in parse_matchers(typed.raw("matchers"))[0]]
        body = {"matchers": matchers, "ends_at": "…", "comment": typed.text("comment")}
        shown["command"] = curl_command(base, "POST", "/silences", body)
    return visit.render("alerts/silences.html", status=status, **shown)
