"""Objectives that somebody sets: made, changed, taken back."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from control.domain.slo import Indicator, Slo
from control.errors import ControlError, NotFoundError, face_of
from control.services.fleet import load_sites
from control.services.slos import StatedSlo, create_slo, delete_slo, load_slo, replace_slo
from webapp.form_fields import GENERAL, FormDep, Typed, refusal
from webapp.policy_units import show_number
from webapp.visit import Operating, Visit

router = APIRouter(prefix="/slos")

DONE: Final = {"HX-Redirect": "/alerts"}


@router.get("/form")
def slo_form(
    visit: Operating,
    *,
    name: Annotated[str, Query(max_length=100)] = "",
) -> HTMLResponse:
    """The form of one objective, or of a new one."""
    return _form(visit, name=name)


@router.post("")
def save_slo(visit: Operating, form: FormDep) -> HTMLResponse:
    """Set an objective."""
    t = visit.t
    name, version = form.text("name"), form.text("version")
    errors: dict[str, str] = {}
    indicator = form.text("indicator")
    target, threshold = _number(form.text("target")), _number(form.text("threshold_s"))
    if target is None:
        errors["target"] = t("forms.number")
    if threshold is None and form.text("threshold_s"):
        errors["threshold_s"] = t("forms.number")
    if errors or target is None or indicator not in set(Indicator):
        return _form(visit, name=name, typed=form, errors=errors, status=422)
    slo = Slo(
        name,
        Indicator(indicator),
        round(target / 100, 9),
        threshold if Indicator(indicator) is not Indicator.AVAILABILITY else None,
        form.text("service_class") or None,
        form.text("site") or None,
    )
    try:
        if version:
            replace_slo(visit.plane, visit.principal, slo, form.text("description")[:500], {version})
        else:
            create_slo(visit.plane, visit.principal, slo, form.text("description")[:500])
    except ControlError as error:
        status = face_of(error).status
        return _form(visit, name=name, typed=form, errors=refusal(error), status=status)
    return HTMLResponse("", headers=DONE)


@router.post("/delete")
def remove_slo(visit: Operating, form: FormDep) -> HTMLResponse:
    """Take an objective back; the policy's of that name holds again."""
    name = form.text("name")
    try:
        delete_slo(visit.plane, visit.principal, name, {form.text("version")})
    except ControlError as error:
        status = face_of(error).status
        return _form(visit, name=name, errors={GENERAL: error.detail}, status=status)
    return HTMLResponse("", headers=DONE)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ".")) if 0 < len(text) <= 40 else None
    except ValueError:
        return None


def _form(
    visit: Visit,
    *,
    name: str,
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    with visit.plane.database.reading() as session:
        sites = [site.name for site in load_sites(session)]
        try:
            stated: StatedSlo | None = load_slo(session, name) if name else None
        except NotFoundError:
            stated = None
    values: dict[str, Any] = {"name": name}
    if stated is not None:
        slo = stated.slo
        values |= {
            "indicator": slo.indicator.value,
            "target": show_number(slo.target * 100),
            "threshold_s": "" if slo.threshold_s is None else show_number(slo.threshold_s),
            "service_class": slo.service_class or "",
            "site": slo.site or "",
            "description": stated.description,
        }
    fields = ("name", "indicator", "target", "threshold_s", "service_class", "site", "description")
    if typed is not None:
        values |= {field: typed.text(field) for field in fields}
    return visit.render(
        "alerts/slo_form.html",
        status=status,
        values={field: values.get(field, "") for field in fields},
        stated=stated,
        version=stated.version if stated and stated.updated_at else "",
        errors=errors or {},
        sites=sites,
        indicators=[one.value for one in Indicator],
    )
