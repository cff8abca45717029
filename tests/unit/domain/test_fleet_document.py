"""The inventory as a document and as CSV: both come back as they were."""

import csv
import io
import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.api.fleet_csv import read_wishes
from control.api.inventory_schemas import FleetIn, LinkIn, NodeIn
from control.domain.fleet_csv import read_csv, write_csv
from control.domain.fleet_document import export_document
from control.domain.fleet_plan import plan_fleet
from control.domain.inventory import Inventory, Kind
from control.domain.topology import Link, Node, NodeState, Role
from control.errors import InvalidError
from tests.unit.domain.inventories import inventories

UNHURRIED = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])


def applied(document, current):
    return FleetIn.model_validate(document).wish().settled(current)


@UNHURRIED
@given(inventories(), inventories())
def test_an_exported_document_leads_back_to_the_same_inventory_also_from_elsewhere(inventory, elsewhere):
    document = yaml.safe_load(yaml.safe_dump(export_document(inventory), sort_keys=False, allow_unicode=True))
    assert applied(document, inventory) == inventory
    assert plan_fleet(inventory, applied(document, inventory)).is_empty
    assert applied(document, Inventory()) == inventory
    reached = applied(document, elsewhere)
    states = {node.name: node.state for node in elsewhere.nodes}
    kept = [replace(n, state=states.get(n.name, n.state)) if n.state is NodeState.READY else n for n in inventory.nodes]
    assert reached == replace(inventory, nodes=tuple(kept), model=inventory.model or elsewhere.model)
    assert json.loads(json.dumps(document)) == document


def test_what_is_as_usual_is_left_out():
    node = Node("n", "ams", Role.MAIN, "http://10.0.0.1", "vllm", "m")
    [told] = export_document(Inventory(nodes=(node,)))["nodes"]
    assert told == {
        "name": "n",
        "site": "ams",
        "role": "main",
        "url": "http://10.0.0.1",
        "engine": "vllm",
        "model": "m",
    }


@UNHURRIED
@given(inventories())
def test_nodes_and_links_survive_csv(inventory):
    for kind, schema, place in ((Node, NodeIn, Kind.NODE), (Link, LinkIn, Kind.LINK)):
        text = write_csv(kind, inventory.items(place))
        wishes = read_wishes(read_csv(kind, text), kind, schema)
        assert tuple(wish.settled(None) for wish in wishes) == inventory.items(place)
        assert all(not wish.unsaid for wish in wishes)


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(["=1+1", "+1", "-1", "@x", "'x", "plain"])))
def test_no_cell_begins_like_a_formula(labels):
    node = Node("n", "ams", Role.MAIN, "=cmd|' /C calc'!A0", "vllm", "@SUM(1)", labels=labels)
    text = write_csv(Node, [node])
    for row in csv.reader(io.StringIO(text)):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
    [(_, cells)] = read_csv(Node, text).rows
    assert (cells["url"], cells["model"], cells["labels"]) == (node.url, node.model, labels)


HEADER = "name,site,role,url,engine,model"
ROW = "n,ams,main,http://10.0.0.1,vllm,m"


def test_a_column_that_is_missing_says_nothing_and_an_empty_cell_says_the_usual():
    [wish] = read_wishes(read_csv(Node, f"\ufeff{HEADER},state\r\n\r\n{ROW},\r\n"), Node, NodeIn)
    assert wish.unsaid == {"slots", "state", "chip", "labels"}
    current = Node("n", "ams", Role.MAIN, "http://10.0.0.1", "vllm", "m", 9, NodeState.DRAINING, "c", {"a": "b"})
    assert wish.settled(current) == current
    [wish] = read_wishes(read_csv(Node, f"{HEADER},state,labels\n{ROW},disabled,\n"), Node, NodeIn)
    assert wish.unsaid == {"slots", "chip"}
    assert wish.settled(current).labels == {}


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ["line 1"]),
        (f"{HEADER},colour\n{ROW},red\n", ["line 1.colour"]),
        (f"{HEADER},name\n{ROW},n\n", ["line 1.name"]),
        (f"{HEADER}\n{ROW},more\n", ["line 2"]),
        (f"{HEADER}\n{ROW}\n{ROW.replace('main', 'oracle')}\nx\n", ["line 4"]),
        (f"{HEADER}\n{ROW}\n{ROW.replace('main', 'oracle')}\n", ["line 3.role"]),
        (f"{HEADER},slots\n{ROW},many\n", ["line 2.slots"]),
        ("name\nn\n", [f"line 2.{name}" for name in HEADER.split(",")[1:]]),
        (f'{HEADER}\n"{ROW}\n', ["line 2"]),
    ],
)
def test_problems_of_a_table_name_line_and_column(text, paths):
    with pytest.raises(InvalidError) as caught:
        read_wishes(read_csv(Node, text), Node, NodeIn)
    assert [problem.path for problem in caught.value.problems] == paths
