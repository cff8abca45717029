"""One change of many nodes: each is named in the plan before anything happens, and only those are touched."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from control.domain.inventory import Inventory, Kind, Wish
from control.domain.topology import Node, NodeState
from control.errors import ControlError, face_of
from control.services.inventory import Terms, import_items, inventory_version
from control.services.inventory_rows import load_inventory
from webapp.form_fields import GENERAL, FormDep, Typed, refusal
from webapp.inventory_view import plan_lines
from webapp.visit import Operating, Visit, go_to

router = APIRouter()

ACTIONS: Final = ("chip", "slots", "state", "label", "unlabel")


@router.post("/bulk")
def change_many(visit: Operating, form: FormDep) -> HTMLResponse:
    """Show what a change would touch, or apply it to exactly that."""
    t = visit.t
    names = list(dict.fromkeys(form.all("nodes")))
    action, value = form.text("action"), form.text("value")
    is_apply = form.text("apply") == "yes"
    if not names:
        return _answer(visit, form=form, errors={GENERAL: t("inventory.none_chosen")})
    with visit.plane.database.reading() as session:
        inventory = load_inventory(session)
    nodes = [node for node in inventory.nodes if node.name in set(names)]
    try:
        wishes = changed_nodes(nodes, action, value)
    except ValueError:
        return _answer(visit, form=form, errors={"value": t(f"inventory.wrong_{action or 'action'}")})
    terms = Terms(
        form.text("reason")[:500] if is_apply else "preview", {form.text("version")} if is_apply else None, not is_apply
    )
    try:
        changed = import_items(visit.plane, visit.principal, Kind.NODE, wishes, terms)
    except ControlError as error:
        return _answer(visit, form=form, errors=_sentences(error), status=face_of(error).status)
    if is_apply:
        return go_to("/inventory?kind=nodes")
    return _answer(visit, form=form, plan=plan_lines(changed.plan), status=200)


def changed_nodes(nodes: Sequence[Node], action: str, value: str) -> list[Wish]:
    """The nodes as they are wanted.

    Raises:
        ValueError: there is no such change, or the value does not fit it.
    """
    return [Wish(_changed(node, action, value)) for node in nodes]


def _changed(node: Node, action: str, value: str) -> Node:
    if action == "chip":
        return replace(node, chip=value)
    if action == "slots":
        slots = int(value)
        if not 0 < slots <= 100_000:
            raise ValueError("slots")
        return replace(node, slots=slots)
    if action == "state":
        return replace(node, state=NodeState(value))
    if action == "label":
        key, sign, text = value.partition("=")
        if not (key.strip() and sign):
            raise ValueError("label")
        return replace(node, labels={**node.labels, key.strip(): text.strip()})
    if action == "unlabel" and value:
        return replace(node, labels={key: text for key, text in node.labels.items() if key != value})
    raise ValueError("action")


def _sentences(error: ControlError) -> dict[str, str]:
    found = refusal(error)
    return {GENERAL: " ".join(f"{path}: {message}" if path else message for path, message in found.items())}


def _answer(
    visit: Visit,
    *,
    form: Typed,
    errors: dict[str, str] | None = None,
    plan: Any = None,
    status: int = 422,
) -> HTMLResponse:
    with visit.plane.database.reading() as session:
        inventory: Inventory = load_inventory(session)
    return visit.render(
        "inventory/bulk.html",
        status=status,
        actions=ACTIONS,
        typed=form,
        errors=errors or {},
        plan=plan,
        version=form.text("version") or inventory_version(inventory),
        all_chips=[chip.name for chip in inventory.chips],
    )
