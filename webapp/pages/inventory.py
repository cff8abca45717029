"""The inventory: sites, chips, models, nodes, links and gateways, looked at, added, changed, taken out."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ValidationError

from control.api.dependencies import Plane, Viewer
from control.api.inventory_schemas import ChipIn, GatewayIn, LinkIn, ModelIn, NodeIn, SiteIn
from control.domain.fleet_document import export_document
from control.domain.inventory import Inventory, ItemRef, Kind
from control.errors import ControlError, InUseError, NotFoundError, face_of
from control.services.inventory import Changed, Terms, create_item, delete_item, item_version, replace_item
from control.services.inventory_lists import load_item
from control.services.inventory_rows import load_inventory
from control.services.plane import ControlPlane
from webapp.commands import curl_command
from webapp.form_fields import FormDep, Typed, misfits, refusal, shorter
from webapp.inventory_form import SPECS, read_body, shown_texts, typed_texts
from webapp.inventory_view import chip_views, counts_of, plan_lines
from webapp.pages import inventory_bulk, inventory_import
from webapp.visit import Looking, Operating, Visit, go_to
from webapp.yaml_text import write_yaml

router = APIRouter(prefix="/inventory", include_in_schema=False)
router.include_router(inventory_bulk.router)
router.include_router(inventory_import.router)

SCHEMAS: Final[dict[Kind, type[BaseModel]]] = {
    Kind.SITE: SiteIn,
    Kind.CHIP: ChipIn,
    Kind.MODEL: ModelIn,
    Kind.NODE: NodeIn,
    Kind.LINK: LinkIn,
    Kind.GATEWAY: GatewayIn,
}
Word = Annotated[str, Query(max_length=200)]


@router.get("")
def inventory_page(
    visit: Looking,
    *,
    kind: Word = "nodes",
    q: Word = "",
    site: Word = "",
) -> HTMLResponse:
    """All items of one kind."""
    context = _listed(visit.plane, kind, q, site)
    return visit.page("inventory", "inventory/page.html", **context)


@router.get("/list")
def inventory_list(
    visit: Looking,
    *,
    kind: Word = "nodes",
    q: Word = "",
    site: Word = "",
) -> HTMLResponse:
    """The table alone."""
    return visit.render("inventory/list.html", **_listed(visit.plane, kind, q, site))


@router.get("/fleet.yaml")
def export_yaml(plane: Plane, _: Viewer) -> Response:
    """The whole inventory as a fleet document."""
    with plane.database.reading() as session:
        text = write_yaml(export_document(load_inventory(session)))
    headers = {"Content-Disposition": 'attachment; filename="fleet.yaml"'}
    return Response(text, media_type="application/yaml; charset=utf-8", headers=headers)


@router.get("/item")
def item_form(visit: Looking, *, kind: Word = "nodes", name: Word = "") -> HTMLResponse:
    """The form of one item, or of a new one."""
    return _form(visit, kind=_kind(kind), name=name)


@router.post("/item")
def save_item(visit: Operating, form: FormDep) -> HTMLResponse:
    """Add or change an item; without `apply` only what that would do is shown."""
    kind, version = _kind(form.text("kind")), form.text("version")
    texts = typed_texts(kind, form)
    is_apply = form.text("apply") == "yes"
    status = 422
    try:
        wish = SCHEMAS[kind].model_validate(read_body(kind, texts)).wish()  # type: ignore[attr-defined]
        reason = form.text("reason")[:500] if is_apply else form.text("reason")[:500] or "preview"
        terms = Terms(reason, {version} if version else None, dry_run=not is_apply)
        changed = (
            replace_item(visit.plane, visit.principal, wish, terms)
            if version
            else create_item(visit.plane, visit.principal, wish, terms)
        )
    except ValidationError as error:
        errors = misfits(error)
    except ControlError as error:
        errors, status = shorter(refusal(error), f"{kind}.{texts['name']}"), face_of(error).status
    else:
        if is_apply:
            return go_to(f"/inventory?kind={kind}")
        return _form(visit, kind=kind, name=form.text("name"), typed=form, changed=changed, status=200)
    return _form(visit, kind=kind, name=form.text("name"), typed=form, errors=errors, status=status)


@router.post("/item/delete")
def remove_item(visit: Operating, form: FormDep) -> HTMLResponse:
    """Take an item out; whoever needs it is named."""
    kind, name = _kind(form.text("kind")), form.text("name")
    users: list[str] = []
    try:
        delete_item(
            visit.plane, visit.principal, ItemRef(kind, name), Terms(form.text("reason")[:500], {form.text("version")})
        )
    except InUseError as error:
        errors, status = {"": error.detail}, face_of(error).status
        users = [f"{problem.path}: {problem.message}" for problem in error.problems]
    except ControlError as error:
        errors, status = refusal(error), face_of(error).status
    else:
        return go_to(f"/inventory?kind={kind}")
    return _form(
        visit, kind=kind, name=name, errors=errors, users=users, status=status
    )  # fmt: skip


def _kind(text: str) -> Kind:
    return Kind(text) if text in set(Kind) else Kind.NODE


def _listed(plane: ControlPlane, kind: str, q: str, site: str) -> dict[str, Any]:
    chosen = _kind(kind)
    with plane.database.reading() as session:
        inventory = load_inventory(session)
    items = [item for item in inventory.items(chosen) if _matches(item, q.lower(), site)]
    return {
        "kind": chosen.value,
        "singular": chosen.singular,
        "kinds": [one.value for one in Kind],
        "counts": counts_of(inventory),
        "items": items,
        "chips": chip_views(inventory) if chosen is Kind.CHIP else [],
        "users": {item.name: len(inventory.users_of(ItemRef(chosen, item.name))) for item in items},
        "first_model": inventory.model,
        "sites": [one.name for one in inventory.sites],
        "all_chips": [one.name for one in inventory.chips],
        "q": q,
        "site": site,
    }


def _matches(item: Any, wanted: str, site: str) -> bool:
    places = {getattr(item, field, None) for field in ("site", "source", "target")}
    if site and site not in places:
        return False
    labels = getattr(item, "labels", {})
    texts = [item.name, getattr(item, "label", "") or "", getattr(item, "model", "") or "", getattr(item, "role", "")]
    texts += [f"{key}={value}" for key, value in labels.items()] if isinstance(labels, dict) else []
    return not wanted or any(wanted in str(text).lower() for text in texts)


def _form(
    visit: Visit,
    *,
    kind: Kind,
    name: str,
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
    changed: Changed | None = None,
    users: list[str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    with visit.plane.database.reading() as session:
        inventory: Inventory = load_inventory(session)
        try:
            item = load_item(session, ItemRef(kind, name)) if name else None
        except NotFoundError:
            item = None
    texts = typed_texts(kind, typed) if typed is not None and typed.has("apply") else shown_texts(kind, item)
    command = ""
    if changed is not None:
        verb, path = ("PUT", f"/{kind}/{name}") if item else ("POST", f"/{kind}")
        headers = {"If-Match": f'"{item_version(item)}"'} if item else None
        base = visit.base
        command = curl_command(base, verb, path, read_body(kind, texts), query={"reason": "…"}, headers=headers)
    return visit.render("inventory/form.html", status=status,
        kind=kind.value,
        singular=kind.singular,
        specs=SPECS[kind],
        texts=texts,
        item=item,
        name=name,
        # What was read first counts, so that a change meanwhile is noticed when it is applied.
        version=(typed.text("version") if typed is not None and typed.has("apply") else "")
        or (item_version(item) if item else ""),
        errors=errors or {},
        users=users or [],
        plan=plan_lines(changed.plan) if changed else None,
        reason=typed.text("reason") if typed is not None else "",
        sources={"sites": [s.name for s in inventory.sites], "models": [m.name for m in inventory.models],
                 "chips": [c.name for c in inventory.chips]},
        command=command,
    )  # fmt: skip
