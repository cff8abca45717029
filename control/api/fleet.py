"""Sites, nodes, links and gateways, read only."""

from fastapi import APIRouter

from control.api.dependencies import Plane, Viewer
from control.api.schemas import GatewayOut, LinkOut, NodeOut, Page, SiteOut
from control.errors import NotFoundError
from control.services import fleet
from control.services.plane import ControlPlane
from control.services.policies import find_active_number
from control.services.rollout import load_statuses

router = APIRouter(tags=["fleet"])


@router.get("/sites")
def list_sites(plane: Plane, _: Viewer) -> Page[SiteOut]:
    """All sites."""
    with plane.database.reading() as session:
        return Page(items=[SiteOut.model_validate(site) for site in fleet.load_sites(session)])


@router.get("/sites/{name}")
def read_site(name: str, plane: Plane, _: Viewer) -> SiteOut:
    """One site."""
    with plane.database.reading() as session:
        return SiteOut.model_validate(fleet.find(fleet.load_sites(session), "site", name))


@router.get("/nodes")
def list_nodes(plane: Plane, _: Viewer) -> Page[NodeOut]:
    """All nodes."""
    with plane.database.reading() as session:
        return Page(items=[NodeOut.model_validate(node) for node in fleet.load_nodes(session)])


@router.get("/nodes/{name}")
def read_node(name: str, plane: Plane, _: Viewer) -> NodeOut:
    """One node."""
    with plane.database.reading() as session:
        return NodeOut.model_validate(fleet.find(fleet.load_nodes(session), "node", name))


@router.get("/links")
def list_links(plane: Plane, _: Viewer) -> Page[LinkOut]:
    """All links."""
    with plane.database.reading() as session:
        return Page(items=[LinkOut.model_validate(link) for link in fleet.load_links(session)])


@router.get("/links/{name}")
def read_link(name: str, plane: Plane, _: Viewer) -> LinkOut:
    """One link."""
    with plane.database.reading() as session:
        return LinkOut.model_validate(fleet.find(fleet.load_links(session), "link", name))


@router.get("/gateways")
def list_gateways(plane: Plane, _: Viewer) -> Page[GatewayOut]:
    """All gateways with the revisions that they run."""
    return Page(items=gateways_out(plane))


@router.get("/gateways/{name}")
def read_gateway(name: str, plane: Plane, _: Viewer) -> GatewayOut:
    """One gateway."""
    for gateway in gateways_out(plane):
        if gateway.name == name:
            return gateway
    raise NotFoundError(f"There is no gateway {name}.")


def gateways_out(plane: ControlPlane) -> list[GatewayOut]:
    """Every gateway with its status against the active policy."""
    with plane.database.reading() as session:
        urls = {gateway.name: gateway.url for gateway in fleet.load_gateways(session)}
        statuses = load_statuses(session, find_active_number(session), plane.now())
    return [GatewayOut.of(urls[status.gateway], status) for status in statuses]
