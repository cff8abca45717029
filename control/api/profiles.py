"""Profiles of chips and models."""

from fastapi import APIRouter, Response

from control.api.dependencies import Plane, Viewer
from control.api.inventory import (
    PREVIEW,
    Addition,
    Edit,
    ItemName,
    answer_addition,
    answer_edit,
    answer_item,
    answer_removal,
    name_of,
)
from control.api.inventory_schemas import ChipIn, ChipOut, FleetPlanOut, ModelIn, ModelOut
from control.api.paging import Paged
from control.api.schemas import Page
from control.domain.inventory import ItemRef, Kind
from control.services.inventory_lists import load_part

router = APIRouter(tags=["fleet"])


@router.get("/chips")
def list_chips(plane: Plane, _: Viewer, paging: Paged) -> Page[ChipOut]:
    """Chips by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.CHIP, paging.after, paging.fetch)
    return paging.page(found, name_of, ChipOut.model_validate)


@router.post("/chips", status_code=201, responses=PREVIEW)
def add_chip(body: ChipIn, change: Addition) -> ChipOut | FleetPlanOut:
    """Add a chip."""
    return answer_addition(change, body.wish(), ChipOut)


@router.get("/chips/{name}")
def read_chip(name: ItemName, plane: Plane, _: Viewer, response: Response) -> ChipOut:
    """One chip."""
    return answer_item(plane, ItemRef(Kind.CHIP, name), ChipOut, response)


@router.put("/chips/{name}")
def change_chip(name: ItemName, body: ChipIn, change: Edit) -> ChipOut | FleetPlanOut:
    """Change a chip to what the body says."""
    return answer_edit(change, name, body.wish(), ChipOut)


@router.delete("/chips/{name}", status_code=204, responses=PREVIEW)
def remove_chip(name: ItemName, change: Edit) -> Response:
    """Remove a chip that nothing needs."""
    return answer_removal(change, ItemRef(Kind.CHIP, name))


@router.get("/models")
def list_models(plane: Plane, _: Viewer, paging: Paged) -> Page[ModelOut]:
    """Models by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.MODEL, paging.after, paging.fetch)
    return paging.page(found, name_of, ModelOut.model_validate)


@router.post("/models", status_code=201, responses=PREVIEW)
def add_model(body: ModelIn, change: Addition) -> ModelOut | FleetPlanOut:
    """Add a model."""
    return answer_addition(change, body.wish(), ModelOut)


@router.get("/models/{name:path}")
def read_model(name: ItemName, plane: Plane, _: Viewer, response: Response) -> ModelOut:
    """One model."""
    return answer_item(plane, ItemRef(Kind.MODEL, name), ModelOut, response)


@router.put("/models/{name:path}")
def change_model(name: ItemName, body: ModelIn, change: Edit) -> ModelOut | FleetPlanOut:
    """Change a model to what the body says."""
    return answer_edit(change, name, body.wish(), ModelOut)


@router.delete("/models/{name:path}", status_code=204, responses=PREVIEW)
def remove_model(name: ItemName, change: Edit) -> Response:
    """Remove a model that nothing needs."""
    return answer_removal(change, ItemRef(Kind.MODEL, name))
