"""Documents and tables into the inventory: the plan first, then exactly that."""

from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from control.api.fleet_csv import read_wishes
from control.api.inventory_schemas import FleetIn, LinkIn, NodeIn
from control.domain.fleet_csv import read_csv
from control.domain.inventory import Kind
from control.domain.topology import Link, Node
from control.errors import ControlError, InvalidError, face_of
from control.services.access import Principal
from control.services.inventory import Changed, Terms, apply_fleet, import_items, inventory_version
from control.services.plane import ControlPlane
from webapp.form_fields import GENERAL, FormDep, Typed, refusal
from webapp.inventory_view import plan_lines
from webapp.visit import Operating, go_to
from webapp.yaml_text import YamlError, read_yaml

router = APIRouter()

FORMATS: Final = ("fleet", "nodes", "links")
MAX_CHARACTERS: Final = 900_000
MAX_PROBLEMS: Final = 20


@router.post("/import")
async def import_document(visit: Operating, form: FormDep) -> HTMLResponse:
    """Show what a document would change, or apply it against the inventory that it was planned on."""
    upload = form.file("file")
    text = form.raw("text")
    errors: dict[str, str] = {}
    if upload is not None:
        try:
            text = (await upload.read()).decode("utf-8-sig")
        except UnicodeDecodeError:
            errors[GENERAL] = visit.t("inventory.no_text")
    context = await run_in_threadpool(_planned, visit.plane, visit.principal, form, text, errors)
    if context.pop("is_done"):
        return go_to("/inventory")
    status = context.pop("status")
    return visit.render("inventory/import.html", status=status, **context)


def _planned(
    plane: ControlPlane, principal: Principal, form: Typed, text: str, errors: dict[str, str]
) -> dict[str, Any]:
    wanted = form.text("format") if form.text("format") in FORMATS else FORMATS[0]
    is_apply = form.text("apply") == "yes" and form.has("version")
    reason = form.text("reason")[:500]
    terms = Terms(reason if is_apply else "preview", {form.text("version")} if is_apply else None, not is_apply)
    changed: Changed | None = None
    status = 422 if errors else 200
    if not errors:
        try:
            changed = _apply(plane, principal, wanted, text, terms)
        except YamlError as error:
            errors, status = {GENERAL: f"Line {error.line}: {error}" if error.line else str(error)}, 422
        except ValidationError as error:
            errors, status = _misfits(error), 422
        except ControlError as error:
            errors, status = refusal(error), face_of(error).status
    plan = plan_lines(changed.plan) if changed is not None else None
    if plan == []:
        plan, errors, status = None, {GENERAL: "="}, 200
    return {
        "is_done": changed is not None and is_apply,
        "status": status,
        "formats": FORMATS,
        "format": wanted,
        "text": text[:MAX_CHARACTERS],
        "plan": plan,
        "version": inventory_version(changed.before) if changed is not None else "",
        "reason": reason,
        "errors": dict(list(errors.items())[:MAX_PROBLEMS]),
        "more": max(0, len(errors) - MAX_PROBLEMS),
    }


def _apply(plane: ControlPlane, principal: Principal, wanted: str, text: str, terms: Terms) -> Changed:
    if wanted == "fleet":
        document = read_yaml(text, MAX_CHARACTERS).document
        return apply_fleet(plane, principal, FleetIn.model_validate(document).wish(), terms)
    if not text.strip():
        raise InvalidError("The table is empty.")
    if wanted == "nodes":
        return import_items(plane, principal, Kind.NODE, read_wishes(read_csv(Node, text), Node, NodeIn), terms)
    return import_items(plane, principal, Kind.LINK, read_wishes(read_csv(Link, text), Link, LinkIn), terms)


def _misfits(error: ValidationError) -> dict[str, str]:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return {".".join(map(str, one["loc"])): f"{one['msg']}." for one in found}
