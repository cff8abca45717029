"""Links: listed, added, changed, removed."""

from fastapi import APIRouter, Response

from control.api.dependencies import Plane, Viewer
from control.api.inventory import (
    PREVIEW,
    Addition,
    Edit,
    ItemName,
    Word,
    answer_addition,
    answer_edit,
    answer_item,
    answer_removal,
    name_of,
)
from control.api.inventory_schemas import FleetPlanOut, LinkIn, LinkOut
from control.api.paging import Paged
from control.api.schemas import Page
from control.domain.inventory import ItemRef, Kind
from control.services.inventory_lists import link_conditions, load_part

router = APIRouter(tags=["fleet"])


@router.get("/links")
def list_links(plane: Plane, _: Viewer, paging: Paged, source: Word = None, target: Word = None) -> Page[LinkOut]:
    """Links by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.LINK, paging.after, paging.fetch, *link_conditions(source, target))
    return paging.page(found, name_of, LinkOut.model_validate)


@router.post("/links", status_code=201, responses=PREVIEW)
def add_link(body: LinkIn, change: Addition) -> LinkOut | FleetPlanOut:
    """Add a link."""
    return answer_addition(change, body.wish(), LinkOut)


@router.get("/links/{name}")
def read_link(name: ItemName, plane: Plane, _: Viewer, response: Response) -> LinkOut:
    """One link."""
    return answer_item(plane, ItemRef(Kind.LINK, name), LinkOut, response)


@router.put("/links/{name}")
def change_link(name: ItemName, body: LinkIn, change: Edit) -> LinkOut | FleetPlanOut:
    """Change a link to what the body says."""
    return answer_edit(change, name, body.wish(), LinkOut)


@router.delete("/links/{name}", status_code=204, responses=PREVIEW)
def remove_link(name: ItemName, change: Edit) -> Response:
    """Remove a link that nothing needs."""
    return answer_removal(change, ItemRef(Kind.LINK, name))
