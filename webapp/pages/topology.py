"""The Topology page: sites, nodes and links in fixed places, and what can be done to one of them."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.domain.operations import Kind, progress_ratio, remaining_s
from control.domain.topology import NodeState, Role
from control.errors import InvalidError
from control.services.access import Principal
from control.services.fleet import find, load_links, load_nodes, load_snapshot
from control.services.operation_store import Stored, load_operations, load_typical_s
from control.services.operations import open_operation
from control.services.plane import ControlPlane
from webapp.frame import load_frame
from webapp.render import Pages, PagesDep
from webapp.strings import Strings
from webapp.topology_layout import lay_out_fleet
from webapp.words import ago

router = APIRouter(prefix="/topology", include_in_schema=False)

SHOWN_OPERATIONS: Final = 5
_BYTES_PER_MEGABIT: Final = 1e6 / 8
NODE_KINDS: Final = (Kind.DRAIN, Kind.UNDRAIN, Kind.SWITCH_ROLE, Kind.RESTART)

Name = Annotated[str, Query(max_length=200)]


@router.get("")
def topology_page(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The canvas; figures come by snapshot and stream."""
    with plane.database.reading() as session:
        fleet = load_snapshot(session)
    return pages.page(
        request,
        plane,
        principal,
        "topology",
        "topology/page.html",
        scripts=("live", "topology", "role"),
        config=lay_out_fleet(fleet),
        has_fleet=bool(fleet.sites),
    )


@router.get("/layout")
def topology_layout(plane: Plane, _: Viewer) -> dict[str, Any]:
    """The same places as the fleet is now, so that a node that was drained or given another role is drawn so."""
    with plane.database.reading() as session:
        return lay_out_fleet(load_snapshot(session))


@router.get("/panel")
def topology_panel(
    request: Request, pages: PagesDep, plane: Plane, principal: Viewer, *, node: Name = "", link: Name = ""
) -> HTMLResponse:
    """One node or link: figures to fill, what can be done, what was done last."""
    return _panel(request, pages, plane, principal, node=node, link=link)


@router.get("/operations")
def topology_operations(
    request: Request, pages: PagesDep, plane: Plane, principal: Viewer, target: Name
) -> HTMLResponse:
    """The last operations on one node or link; asks again by itself while one is open."""
    strings = pages.strings(request)
    return pages.render(request, "topology/operations.html", principal, **_operations(plane, target, strings))


@router.post("/operations")
def start_operation(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    principal: Operator,
    *,
    kind: Annotated[Kind, Form()],
    name: Annotated[str, Form(max_length=200)],
    reason: Annotated[str, Form(max_length=500)] = "",
    role: Annotated[Role | None, Form()] = None,
    force: Annotated[bool, Form()] = False,
    rate_cap: Annotated[str, Form(max_length=40)] = "",
) -> Response:
    """Start what a button of the panel says; the answer is the panel with the operation in it."""
    opened = open_operation(plane, principal, kind, _parameters(kind, name, role, rate_cap, force=force), reason)
    is_link = kind in {Kind.SHAPE_LINK, Kind.PROBE_LINK}
    response = _panel(request, pages, plane, principal, node="" if is_link else name, link=name if is_link else "")
    response.headers["HX-Trigger"] = "topology-changed"
    response.headers["X-Operation"] = str(opened.stored.id)
    return response


def _parameters(kind: Kind, name: str, role: Role | None, rate_cap: str, *, force: bool) -> dict[str, Any]:
    """What the operation depends on.

    Raises:
        InvalidError: the form lacks what this kind needs.
    """
    if kind is Kind.SHAPE_LINK:
        try:
            cap = float(rate_cap) * _BYTES_PER_MEGABIT if rate_cap.strip() else None
        except ValueError:
            raise InvalidError("The rate cap must be a number of Mb/s, or empty for none.") from None
        return {"link": name, "shape": {"rate_cap_bytes_per_s": cap}}
    if kind is Kind.PROBE_LINK:
        return {"link": name}
    if kind not in NODE_KINDS:
        raise InvalidError("This page cannot do that.")
    if kind is Kind.UNDRAIN:
        return {"node": name}
    if kind is Kind.SWITCH_ROLE:
        if role is None:
            raise InvalidError("Say which role the node should have.")
        return {"node": name, "role": role.value, **({"force": True} if force else {})}
    return {"node": name, **({"force": True} if force else {})}


def _panel(
    request: Request, pages: Pages, plane: ControlPlane, principal: Principal, *, node: str, link: str
) -> HTMLResponse:
    strings = pages.strings(request)
    with plane.database.reading() as session:
        nodes, links = load_nodes(session), load_links(session)
    target = f"link/{link}" if link else f"node/{node}"
    found_node = None if link else find(nodes, "node", node)
    found_link = find(links, "link", link) if link else None
    denied = [] if principal.role != "viewer" else [strings("common.may_not", role="operator")]
    locks: dict[str, list[str]] = {}
    if found_node is not None:
        is_ready = found_node.state is NodeState.READY
        locks = {
            "drain": denied + ([] if is_ready else [strings("topology.not_ready", state=found_node.state.value)]),
            "undrain": denied + ([strings("topology.is_ready")] if is_ready else []),
            "switch_role": denied,
            "restart": denied + ([strings("topology.stock")] if found_node.is_stock else []),
        }
    if found_link is not None:
        locks = dict.fromkeys(
            ("shape_link", "probe_link"), denied + ([] if found_link.admin_url else [strings("topology.no_relay")])
        )
    return pages.render(
        request,
        "topology/panel.html",
        principal,
        node=found_node,
        link=found_link,
        roles=[role.value for role in Role if found_node is not None and role is not found_node.role],
        locks=locks,
        selection=load_frame(plane, request).selection,
        **_operations(plane, target, strings),
    )


def _operations(plane: ControlPlane, target: str, t: Strings) -> dict[str, Any]:
    now = plane.now()
    with plane.database.reading() as session:
        found = load_operations(session, limit=SHOWN_OPERATIONS, target=target)
        typical_s = load_typical_s(session)
    shown = [
        {
            "id": stored.id,
            "kind": stored.row.kind,
            "state": stored.row.state,
            "is_open": stored.operation.state.is_open,
            "actor": stored.row.actor,
            "reason": stored.row.reason,
            "error": stored.row.error,
            "ago": ago(stored.row.created_at, now, t),
            "progress": progress_ratio(stored.operation),
            "left_s": remaining_s(stored.operation, now.timestamp(), typical_s),
            "step": _step(stored),
        }
        for stored in found
    ]
    return {"target": target, "operations": shown, "is_open": any(one["is_open"] for one in shown)}


def _step(stored: Stored) -> dict[str, Any] | None:
    """The step that somebody works on, with the requests that still run on the node where it says so."""
    active = next((step for step in stored.operation.steps if step.state.is_active), None)
    if active is None:
        return None
    return {"stage": active.plan.stage.value, "in_flight": active.progress.get("requests_in_flight")}
