"""The fleet snapshot survives the trip through JSON."""

import json

import pytest

from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site

FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"), Site("fra")),
    nodes=(
        Node("p", "ams", Role.PREFILL, "http://127.0.0.1:1", "llama", "m"),
        Node("m", "fra", Role.MAIN, "http://127.0.0.1:2", "llama", "m", 8, NodeState.DRAINING),
    ),
    links=(Link("ams-fra", "ams", "fra", 5e6, 0.03, 1.5e6, "127.0.0.1", 9, "http://127.0.0.1:10"),),
    gateways=(Gateway("g", "ams", "http://127.0.0.1:8000"),),
    model="m",
    kv_bytes_per_token=23_040,
)


def test_a_snapshot_comes_back_equal() -> None:
    assert FleetSnapshot.from_document(json.loads(json.dumps(FLEET.to_document()))) == FLEET


def test_lookups_by_role_and_direction() -> None:
    assert [node.name for node in FLEET.nodes_of(Role.MAIN)] == ["m"]
    assert FLEET.link_between("ams", "fra").name == "ams-fra"
    assert FLEET.link_between("fra", "ams") is None


def test_an_unknown_role_is_refused() -> None:
    document = FLEET.to_document()
    document["nodes"][0]["role"] = "oracle"
    with pytest.raises(ValueError, match="oracle"):
        FleetSnapshot.from_document(document)
