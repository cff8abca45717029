"""The inventory over REST: the whole as one document, and a router for each kind."""

from typing import Any

from fastapi import APIRouter, Response

from control.api import fleet_csv, gateways, links, nodes, profiles, sites
from control.api.dependencies import Plane, Viewer
from control.api.inventory import Edit
from control.api.inventory_schemas import FleetIn, FleetPlanOut
from control.api.preconditions import set_etag
from control.domain.fleet_document import export_document
from control.services.inventory import apply_fleet, inventory_version
from control.services.inventory_rows import load_inventory

router = APIRouter()
for _router in (sites.router, profiles.router, nodes.router, links.router, gateways.router, fleet_csv.router):
    router.include_router(_router)


@router.get("/fleet", tags=["fleet"], responses={200: {"model": FleetIn}})
def read_fleet(plane: Plane, _: Viewer, response: Response) -> dict[str, Any]:
    """The whole inventory as a fleet document; applying it as it is changes nothing."""
    with plane.database.reading() as session:
        inventory = load_inventory(session)
    set_etag(response, inventory_version(inventory))
    return export_document(inventory)


@router.put("/fleet", tags=["fleet"])
def change_fleet(body: FleetIn, change: Edit) -> FleetPlanOut:
    """Bring the inventory to a fleet document, or with `dry_run` say what that would change.

    The ETag stands for the inventory after the change; that of a dry run for the one that it was planned against, so
    that it can go into If-Match when the same document is applied.
    """
    changed = apply_fleet(change.plane, change.principal, body.wish(), change.terms)
    set_etag(change.response, inventory_version(changed.before if change.terms.dry_run else changed.after))
    return FleetPlanOut.of(changed.plan)
