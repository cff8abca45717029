"""Alert rules: listed, switched on and off, changed, made."""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from control.api.alerts_schemas import RuleFields
from control.domain.alert_metrics import METRICS
from control.domain.alert_rules import Severity
from control.errors import ControlError, NotFoundError, face_of
from control.services.alert_rules import StatedRule, create_rule, delete_rule, load_rule, load_rules, replace_rule
from control.services.plane import ControlPlane
from webapp.alert_view import labels_text, metric_unit
from webapp.form_fields import FormDep, Typed, misfits, refusal
from webapp.policy_units import show_number
from webapp.visit import Operating, Visit

router = APIRouter(prefix="/rules")

DONE: Final = {"HX-Redirect": "/alerts?tab=rules"}
NUMBERS: Final = ("threshold", "clear_threshold", "window_s", "for_s", "clear_for_s")
FIELDS: Final = ("name", "metric", *NUMBERS, "severity", "labels", "summary")


@router.get("/form")
def rule_form(
    visit: Operating,
    *,
    name: Annotated[str, Query(max_length=100)] = "",
) -> HTMLResponse:
    """The form of one rule, or of a new one."""
    return _form(visit, name=name)


@router.post("")
def save_rule(visit: Operating, form: FormDep) -> HTMLResponse:
    """Make or change a rule."""
    name, version = form.text("name"), form.text("version")
    status = 422
    try:
        rule = RuleFields.model_validate(_body(form)).named(name)
        if version:
            replace_rule(visit.plane, visit.principal, rule, {version})
        else:
            create_rule(visit.plane, visit.principal, rule)
    except ValidationError as error:
        errors = misfits(error)
    except ControlError as error:
        errors, status = refusal(error), face_of(error).status
    else:
        return HTMLResponse("", headers=DONE)
    return _form(visit, name=name, typed=form, errors=errors, status=status)


@router.post("/switch")
def switch_rule(visit: Operating, form: FormDep) -> HTMLResponse:
    """Switch a rule on or off."""
    name, problem, status = form.text("name"), "", 200
    try:
        with visit.plane.database.reading() as session:
            stated = load_rule(session, name)
        rule = replace(stated.rule, enabled=form.text("enabled") == "true")
        replace_rule(visit.plane, visit.principal, rule, {form.text("version")})
    except ControlError as error:
        problem, status = error.detail, face_of(error).status
    shown = context(visit.plane) | {"problem": problem}
    return visit.render("alerts/rules.html", status=status, **shown)


@router.post("/delete")
def remove_rule(visit: Operating, form: FormDep) -> HTMLResponse:
    """Delete a rule; a built-in one becomes again what it was."""
    name = form.text("name")
    try:
        delete_rule(visit.plane, visit.principal, name, {form.text("version")})
    except ControlError as error:
        status = face_of(error).status
        return _form(visit, name=name, errors=refusal(error), status=status)
    return HTMLResponse("", headers=DONE)


def context(plane: ControlPlane) -> dict[str, Any]:
    """What the tab shows."""
    with plane.database.reading() as session:
        rules = load_rules(session)
    shown = [
        {"stated": one, "unit": metric_unit(one.rule.metric), "labels": labels_text(one.rule.labels)} for one in rules
    ]
    return {"rules": shown, "problem": ""}


def _body(form: Typed) -> dict[str, Any]:
    body: dict[str, Any] = {"metric": form.text("metric"), "severity": form.text("severity")}
    body |= {name: form.text(name).replace(",", ".") for name in NUMBERS if form.text(name)}
    pairs = (pair.partition("=") for pair in form.text("labels").replace(",", "\n").splitlines() if pair.strip())
    labels = {key.strip(): value.strip() for key, _, value in pairs}
    return {
        **body,
        "labels": labels,
        "summary": form.text("summary"),
        "above": form.text("above", "true") != "false",
        "enabled": form.has("enabled"),
    }


def _form(
    visit: Visit,
    *,
    name: str,
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    stated: StatedRule | None = None
    with visit.plane.database.reading() as session:
        try:
            stated = load_rule(session, name) if name else None
        except NotFoundError:
            stated = None
    values = _values(stated) if stated else {"window_s": "300", "for_s": "60", "clear_for_s": "60"}
    above, enabled = (stated.rule.above, stated.rule.enabled) if stated else (True, True)
    if typed is not None:
        values = {field: typed.text(field) for field in FIELDS}
        above, enabled = typed.text("above") != "false", typed.has("enabled")
    return visit.render(
        "alerts/rule_form.html",
        status=status,
        values={field: values.get(field, "") for field in FIELDS} | {"name": name},
        above=above,
        enabled=enabled,
        stated=stated,
        version=stated.version if stated else "",
        errors=errors or {},
        metrics=METRICS,
        severities=[one.value for one in Severity],
    )


def _values(stated: StatedRule) -> dict[str, str]:
    rule = stated.rule
    numbers = {name: getattr(rule, name) for name in NUMBERS}
    shown = {name: "" if value is None else show_number(value) for name, value in numbers.items()}
    labels = "\n".join(f"{key}={value}" for key, value in rule.labels.items())
    return {**shown, "metric": rule.metric, "severity": rule.severity.value, "labels": labels, "summary": rule.summary}
