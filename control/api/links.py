"""Links: listed, added, changed, removed; and the transfers on them: listed, paused, cut."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.inventory import (
    PREVIEW,
    Addition,
    Edit,
    ItemName,
    Reason,
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
from control.api.transfer_schemas import TransferIn, TransferOut, TransfersOut
from control.domain.inventory import ItemRef, Kind
from control.domain.transfers import TransferAction
from control.services.inventory_lists import link_conditions, load_part
from control.services.transfers import TransferChange, load_transfers, order_change

router = APIRouter(tags=["fleet"])
TransferId = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
_ORDERED = "Ordered: the list of transfers shows it a second later."


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


@router.get("/links/{name}/transfers")
def list_transfers(name: ItemName, plane: Plane, _: Viewer) -> TransfersOut:
    """KV transfers that are under way on a link, the oldest first, up to a hundred."""
    return TransfersOut.of(load_transfers(plane, name))


@router.put("/links/{name}/transfers/{transfer_id}", status_code=202, response_description=_ORDERED)
def pause_transfer(
    name: ItemName, transfer_id: TransferId, body: TransferIn, *, plane: Plane, principal: Operator, response: Response
) -> TransferOut:
    """Let one transfer send nothing more for now, or go on; the answer shows it as it was."""
    action = TransferAction.PAUSE if body.paused else TransferAction.RESUME
    known = order_change(plane, principal, TransferChange(name, transfer_id, action, body.reason))
    _name_list(response, name)
    return TransferOut.of(known)


@router.delete("/links/{name}/transfers/{transfer_id}", status_code=202, response_description=_ORDERED)
def cut_transfer(
    name: ItemName, transfer_id: TransferId, reason: Reason, *, plane: Plane, principal: Operator, response: Response
) -> TransferOut:
    """Cut one transfer's streams; whoever pulls asks again for the blocks that have not landed."""
    known = order_change(plane, principal, TransferChange(name, transfer_id, TransferAction.CUT, reason))
    _name_list(response, name)
    return TransferOut.of(known)


def _name_list(response: Response, link: str) -> None:
    response.headers["Location"] = f"/api/v1/links/{quote(link, safe='')}/transfers"
