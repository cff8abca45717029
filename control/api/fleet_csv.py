"""Nodes and links as CSV, out and in."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import ValidationError

from control.api.dependencies import Plane, Viewer
from control.api.inventory import Change, Edit
from control.api.inventory_schemas import FleetPlanOut, LinkIn, NodeIn
from control.api.nodes import Wanted
from control.domain.fleet_csv import CsvTable, columns_of, read_csv, write_csv
from control.domain.inventory import Item, Kind, Wish
from control.domain.policy import FieldProblem
from control.domain.topology import Link, Node
from control.errors import InvalidError
from control.services.inventory import import_items
from control.services.inventory_lists import node_conditions
from control.services.inventory_rows import load_items

router = APIRouter(tags=["fleet"])

MEDIA_TYPE = "text/csv"
MAX_BYTES = 10_000_000
Table = Annotated[
    bytes, Body(media_type=MEDIA_TYPE, max_length=MAX_BYTES, examples=["name,site,role,url,engine,model\r\n"])
]
_CSV: dict[int | str, dict[str, Any]] = {
    200: {"description": "A table with a header.", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


@router.get("/nodes.csv", responses=_CSV, response_class=Response)
def export_nodes(plane: Plane, _: Viewer, wanted: Wanted) -> Response:
    """Nodes that meet all filters, as CSV."""
    with plane.database.reading() as session:
        nodes = load_items(session, Kind.NODE, *node_conditions(wanted))
    return _csv(Node, nodes, "nodes.csv")


@router.post("/nodes.csv")
def import_nodes(body: Table, change: Edit) -> FleetPlanOut:
    """Add and change the nodes of a table; columns that it lacks stay as they are, and so do other nodes."""
    wishes = read_wishes(read_csv(Node, _text(body)), Node, NodeIn)
    return _imported(change, Kind.NODE, wishes)


@router.get("/links.csv", responses=_CSV, response_class=Response)
def export_links(plane: Plane, _: Viewer) -> Response:
    """All links, as CSV."""
    with plane.database.reading() as session:
        links = load_items(session, Kind.LINK)
    return _csv(Link, links, "links.csv")


@router.post("/links.csv")
def import_links(body: Table, change: Edit) -> FleetPlanOut:
    """Add and change the links of a table; columns that it lacks stay as they are, and so do other links."""
    wishes = read_wishes(read_csv(Link, _text(body)), Link, LinkIn)
    return _imported(change, Kind.LINK, wishes)


def _imported(change: Change, kind: Kind, wishes: Sequence[Wish]) -> FleetPlanOut:
    return FleetPlanOut.of(import_items(change.plane, change.principal, kind, wishes, change.terms).plan)


def _csv(kind: type[Item], items: Sequence[Item], name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(write_csv(kind, items), media_type=f"{MEDIA_TYPE}; charset=utf-8", headers=headers)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidError("The table is no UTF-8 text.") from error


def read_wishes(table: CsvTable, kind: type[Item], schema: type[NodeIn] | type[LinkIn]) -> list[Wish]:
    """The items of a table as they are wished for; what its columns leave out stays as it is.

    Raises:
        InvalidError: with each problem under the number of its line.
    """
    problems = list(table.problems)
    unsaid = frozenset(columns_of(kind)) - frozenset(table.columns)
    wishes = []
    for number, cells in table.rows:
        try:
            wish = schema.model_validate(cells).wish()
        except ValidationError as error:
            problems += _row_problems(number, error)
        else:
            wishes.append(Wish(wish.item, wish.unsaid | unsaid))
    if problems:
        raise InvalidError("The table is not valid.", problems)
    return wishes


def _row_problems(number: int, error: ValidationError) -> list[FieldProblem]:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [FieldProblem(".".join((f"line {number}", *map(str, item["loc"]))), item["msg"]) for item in found]
