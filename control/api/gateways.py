"""Gateways: listed with the revisions that they run, added, changed, removed."""

from datetime import datetime

from fastapi import APIRouter, Response
from sqlmodel import Session

from control.api.dependencies import Plane, Viewer
from control.api.inventory import (
    PREVIEW,
    Addition,
    Edit,
    ItemName,
    Word,
    answer_addition,
    answer_edit,
    answer_removal,
    name_of,
)
from control.api.inventory_schemas import EntranceOut, FleetPlanOut, GatewayIn
from control.api.paging import Paged
from control.api.preconditions import set_etag
from control.api.schemas import GatewayOut, Page
from control.domain.inventory import ItemRef, Kind
from control.services.fleet import load_gateways
from control.services.inventory import item_version
from control.services.inventory_lists import gateway_conditions, load_item, load_part
from control.services.plane import ControlPlane
from control.services.policies import find_active_number
from control.services.rollout import load_statuses

router = APIRouter(prefix="/gateways", tags=["fleet"])


@router.get("")
def list_gateways(plane: Plane, _: Viewer, paging: Paged, site: Word = None) -> Page[GatewayOut]:
    """Gateways with the revisions that they run, by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.GATEWAY, paging.after, paging.fetch, *gateway_conditions(site))
        shown = statuses_out(session, plane.now())
    return paging.page(found, name_of, lambda gateway: shown[gateway.name])


@router.post("", status_code=201, responses=PREVIEW)
def add_gateway(body: GatewayIn, change: Addition) -> EntranceOut | FleetPlanOut:
    """Add a gateway; it gets the active policy at once."""
    return answer_addition(change, body.wish(), EntranceOut)


@router.get("/{name}")
def read_gateway(name: ItemName, plane: Plane, _: Viewer, response: Response) -> GatewayOut:
    """One gateway with the revision that it runs; the ETag stands for what can be changed of it."""
    with plane.database.reading() as session:
        gateway = load_item(session, ItemRef(Kind.GATEWAY, name))
        shown = statuses_out(session, plane.now())
    set_etag(response, item_version(gateway))
    return shown[name]


@router.put("/{name}")
def change_gateway(name: ItemName, body: GatewayIn, change: Edit) -> EntranceOut | FleetPlanOut:
    """Change a gateway's site or address."""
    return answer_edit(change, name, body.wish(), EntranceOut)


@router.delete("/{name}", status_code=204, responses=PREVIEW)
def remove_gateway(name: ItemName, change: Edit) -> Response:
    """Remove a gateway; it goes on serving with what it has."""
    return answer_removal(change, ItemRef(Kind.GATEWAY, name))


def gateways_out(plane: ControlPlane) -> list[GatewayOut]:
    """Every gateway with its status against the active policy."""
    with plane.database.reading() as session:
        return list(statuses_out(session, plane.now()).values())


def statuses_out(session: Session, now: datetime) -> dict[str, GatewayOut]:
    """Status of every gateway against the active policy, by name."""
    urls = {gateway.name: gateway.url for gateway in load_gateways(session)}
    statuses = load_statuses(session, find_active_number(session), now)
    return {status.gateway: GatewayOut.of(urls[status.gateway], status) for status in statuses}
