"""Sites: listed, added, changed, removed."""

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
from control.api.inventory_schemas import FleetPlanOut, SiteIn, SiteOut
from control.api.paging import Paged
from control.api.schemas import Page
from control.domain.inventory import ItemRef, Kind
from control.services.inventory_lists import load_part

router = APIRouter(tags=["fleet"])


@router.get("/sites")
def list_sites(plane: Plane, _: Viewer, paging: Paged) -> Page[SiteOut]:
    """Sites by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.SITE, paging.after, paging.fetch)
    return paging.page(found, name_of, SiteOut.model_validate)


@router.post("/sites", status_code=201, responses=PREVIEW)
def add_site(body: SiteIn, change: Addition) -> SiteOut | FleetPlanOut:
    """Add a site."""
    return answer_addition(change, body.wish(), SiteOut)


@router.get("/sites/{name}")
def read_site(name: ItemName, plane: Plane, _: Viewer, response: Response) -> SiteOut:
    """One site."""
    return answer_item(plane, ItemRef(Kind.SITE, name), SiteOut, response)


@router.put("/sites/{name}")
def change_site(name: ItemName, body: SiteIn, change: Edit) -> SiteOut | FleetPlanOut:
    """Change a site to what the body says."""
    return answer_edit(change, name, body.wish(), SiteOut)


@router.delete("/sites/{name}", status_code=204, responses=PREVIEW)
def remove_site(name: ItemName, change: Edit) -> Response:
    """Remove a site that nothing needs."""
    return answer_removal(change, ItemRef(Kind.SITE, name))
