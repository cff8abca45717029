"""How many nodes of each role the sites have, and how many the policy wants."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from control.api.dependencies import Plane, Viewer
from control.api.inventory import Word
from control.api.schemas import Page
from control.domain.topology import Role
from control.services.pools import load_pools

router = APIRouter(tags=["fleet"])


class PoolOut(BaseModel):
    """Ready nodes of one role at one site. A rebalance with `to_policy` brings them to the policy's targets."""

    site: str
    role: Role
    nodes: int
    target: int | None = Field(description="pools.<site>.<role>.target of the active policy; null where it says none.")
    drift: int | None = Field(description="Nodes too many, or missing where it is negative.")


@router.get("/pools")
def list_pools(plane: Plane, _: Viewer, site: Word = None) -> Page[PoolOut]:
    """Pools by site and role, each with the policy's target and how far the fleet is from it."""
    with plane.database.reading() as session:
        pools = load_pools(session, site)
    return Page(
        items=[
            PoolOut(site=pool.site, role=pool.role, nodes=pool.nodes, target=pool.target, drift=pool.drift)
            for pool in pools
        ]
    )
