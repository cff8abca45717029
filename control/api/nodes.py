"""Nodes: listed by filters, added, changed, removed."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from control.api.dependencies import Plane, Viewer
from control.api.inventory import (
    NO_CONTROLS,
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
from control.api.inventory_schemas import FleetPlanOut, NodeIn, NodeOut
from control.api.paging import Paged
from control.api.schemas import Page
from control.domain.inventory import ItemRef, Kind
from control.domain.topology import NodeState, Role
from control.services.inventory_lists import NodeFilter, load_part, node_conditions

router = APIRouter(tags=["fleet"])
Label = Annotated[str, Field(max_length=200, pattern=NO_CONTROLS)]
Labels = Annotated[
    list[Label] | None, Query(max_length=10, description="KEY=VALUE, or KEY for any value; a node has them all.")
]


def read_filter(
    *,
    site: Word = None,
    role: Role | None = None,
    state: NodeState | None = None,
    model: Word = None,
    chip: Word = None,
    label: Labels = None,
) -> NodeFilter:
    """Which nodes a request asks for."""
    return NodeFilter(site, role, state, model, chip, tuple(label or ()))


Wanted = Annotated[NodeFilter, Depends(read_filter)]


@router.get("/nodes")
def list_nodes(plane: Plane, _: Viewer, paging: Paged, wanted: Wanted) -> Page[NodeOut]:
    """Nodes that meet all filters, by name."""
    with plane.database.reading() as session:
        found = load_part(session, Kind.NODE, paging.after, paging.fetch, *node_conditions(wanted))
    return paging.page(found, name_of, NodeOut.model_validate)


@router.post("/nodes", status_code=201, responses=PREVIEW)
def add_node(body: NodeIn, change: Addition) -> NodeOut | FleetPlanOut:
    """Add a node."""
    return answer_addition(change, body.wish(), NodeOut)


@router.get("/nodes/{name}")
def read_node(name: ItemName, plane: Plane, _: Viewer, response: Response) -> NodeOut:
    """One node."""
    return answer_item(plane, ItemRef(Kind.NODE, name), NodeOut, response)


@router.put("/nodes/{name}")
def change_node(name: ItemName, body: NodeIn, change: Edit) -> NodeOut | FleetPlanOut:
    """Change a node to what the body says."""
    return answer_edit(change, name, body.wish(), NodeOut)


@router.delete("/nodes/{name}", status_code=204, responses=PREVIEW)
def remove_node(name: ItemName, change: Edit) -> Response:
    """Remove a node that nothing needs."""
    return answer_removal(change, ItemRef(Kind.NODE, name))
