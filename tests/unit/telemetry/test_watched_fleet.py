"""Which fleet an observer watches: what its site's agent has written last."""

import json
from dataclasses import replace

import pytest

from control.domain.topology import FleetSnapshot, Link, Node, Role, Site
from engine_agents.observer.config import WatchedFile, load_site_of_fleet
from engine_agents.tasks.sites import write_watched

NODE = Node("ams-p-01", "ams", Role.PREFILL, "http://127.0.0.1:1", "emulated", "m")
FLEET = FleetSnapshot(
    sites=(Site("ams"), Site("fra")),
    nodes=(NODE, replace(NODE, name="fra-md-01", site="fra", role=Role.MAIN)),
    links=(Link("ams-fra", "ams", "fra", 5e6, 0.03, admin_url="http://127.0.0.1:2"),),
    model="m",
    revision=3,
)


def switched(role, revision):
    return replace(FLEET, nodes=(replace(NODE, role=role), FLEET.nodes[1]), revision=revision)


def as_json(fleet):
    return json.loads(json.dumps(fleet.to_document()))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "watched-ams.json"


def test_an_observer_follows_what_is_written_and_keeps_it_when_the_file_breaks(tmp_path, path):
    first = tmp_path / "fleet.json"
    first.write_text(json.dumps(FLEET.to_document()))
    watched = WatchedFile(path, "ams", load_site_of_fleet(first, "ams"))
    assert [node.role for node in watched.refresh().nodes] == ["prefill"]
    assert write_watched(path, switched(Role.RELAY, 4).to_document())
    assert [node.role for node in watched.refresh().nodes] == ["relay"]
    assert [link.name for link in watched.config.links] == ["ams-fra"]
    path.unlink()
    path.write_text("{")
    assert [node.role for node in watched.refresh().nodes] == ["relay"]


def test_a_late_order_does_not_bring_an_older_fleet_back(path):
    newer, older = (as_json(fleet) for fleet in (switched(Role.RELAY, 4), FLEET))
    assert write_watched(path, newer)
    assert not write_watched(path, newer)
    assert not write_watched(path, older)
    assert json.loads(path.read_text()) == newer


def test_a_fleet_of_a_new_database_counts_although_its_number_is_lower(path):
    assert write_watched(path, FLEET.to_document())
    moved = replace(FLEET, nodes=(replace(NODE, url="http://127.0.0.1:9"),), revision=0)
    assert write_watched(path, moved.to_document())
    path.write_text("not a fleet")
    assert write_watched(path, FLEET.to_document())
