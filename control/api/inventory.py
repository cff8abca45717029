"""What the routes of all kinds of inventory items share: the terms of a change, and how it is answered."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Response
from fastapi.responses import JSONResponse

from control.api.dependencies import Operator, Plane
from control.api.inventory_schemas import FleetPlanOut
from control.api.preconditions import Expected, set_etag
from control.api.schemas import FromDomain
from control.domain.inventory import Item, ItemRef, Wish
from control.domain.policy import FieldProblem
from control.errors import InvalidError
from control.services.access import Principal
from control.services.inventory import Changed, Terms, create_item, delete_item, item_version, replace_item
from control.services.inventory_lists import load_item
from control.services.plane import ControlPlane

Out = TypeVar("Out", bound=FromDomain)

NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
ItemName = Annotated[str, Path(min_length=1, max_length=128, pattern=NO_CONTROLS)]
Word = Annotated[str | None, Query(max_length=128, pattern=NO_CONTROLS)]
Reason = Annotated[
    str, Query(min_length=1, max_length=500, pattern=NO_CONTROLS, description="Why; kept in the audit trail.")
]
DryRun = Annotated[bool, Query(description="Only show what would change.")]

PREVIEW: dict[int | str, dict[str, Any]] = {
    200: {"model": FleetPlanOut, "description": "With dry_run: what would change; nothing is stored."}
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change that somebody who may make it asks for, and the answer that is being made."""

    plane: ControlPlane
    principal: Principal
    terms: Terms
    response: Response


def read_addition(
    plane: Plane, principal: Operator, response: Response, reason: Reason, *, dry_run: DryRun = False
) -> Change:
    """An addition, which is made against nothing."""
    return Change(plane, principal, Terms(reason, None, dry_run), response)


def read_edit(addition: Annotated[Change, Depends(read_addition)], expected: Expected) -> Change:
    """A change of what is there, which says against which version it was made."""
    return replace(addition, terms=replace(addition.terms, expected=expected))


Addition = Annotated[Change, Depends(read_addition)]
Edit = Annotated[Change, Depends(read_edit)]


def name_of(item: Item) -> str:
    """What lists are ordered by."""
    return item.name


def answer_item(plane: ControlPlane, ref: ItemRef, out: type[Out], response: Response) -> Out:
    """One item with its ETag.

    Raises:
        NotFoundError: there is none.
    """
    with plane.database.reading() as session:
        item = load_item(session, ref)
    set_etag(response, item_version(item))
    return out.model_validate(item)


def answer_addition(change: Change, wish: Wish, out: type[Out]) -> Out | FleetPlanOut:
    """Add an item, and answer with it and its place."""
    changed = create_item(change.plane, change.principal, wish, change.terms)
    if change.terms.dry_run:
        change.response.status_code = 200
    else:
        change.response.headers["Location"] = f"/api/v1/{wish.ref.kind}/{wish.ref.name}"
    return _answer(change, changed, wish.ref, out)


def answer_edit(change: Change, name: str, wish: Wish, out: type[Out]) -> Out | FleetPlanOut:
    """Change the item of that name, and answer with it.

    Raises:
        InvalidError: the wish is for another item.
    """
    if wish.item.name != name:
        raise InvalidError("Names are fixed.", [FieldProblem("name", f"Must be {name}, as in the address.")])
    changed = replace_item(change.plane, change.principal, wish, change.terms)
    return _answer(change, changed, wish.ref, out)


def answer_removal(change: Change, ref: ItemRef) -> Response:
    """Remove an item; nothing is left to answer with, except the plan of a dry run."""
    changed = delete_item(change.plane, change.principal, ref, change.terms)
    if change.terms.dry_run:
        return JSONResponse(FleetPlanOut.of(changed.plan).model_dump(mode="json"))
    return Response(status_code=204)


def _answer(change: Change, changed: Changed, ref: ItemRef, out: type[Out]) -> Out | FleetPlanOut:
    if change.terms.dry_run:
        return FleetPlanOut.of(changed.plan)
    item = changed.after.find(ref)
    if item is None:
        raise LookupError(f"the change has left no {ref}")
    set_etag(change.response, item_version(item))
    return out.model_validate(item)
