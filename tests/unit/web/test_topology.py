from dataclasses import replace

import pytest

from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site
from control.services.fleet import load_nodes
from webapp.topology_layout import WIDTH, lay_out_fleet


def node(name, site, role, **more):
    return Node(name, site, role, f"http://127.0.0.1/{name}", "emulated", "m", **more)


FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"), Site("fra", "Frankfurt"), Site("waw", "Warsaw")),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    nodes=(
        *(node(f"ams-p-{n:02}", "ams", Role.PREFILL) for n in range(23)),
        node("ams-rld-01", "ams", Role.RELAY, state=NodeState.DRAINING),
        node("fra-md-01", "fra", Role.MAIN),
        node("waw-md-01", "waw", Role.MAIN),
    ),
    links=(Link("ams-fra", "ams", "fra", 5e6, 0.03), Link("ams-waw", "ams", "waw", 5e6, 0.03)),
)


def test_everything_has_its_place_inside_the_canvas():
    places = lay_out_fleet(FLEET)
    tiles = [tile for card in places["cards"] for group in card["groups"] for tile in group["tiles"]]
    assert {tile["name"] for tile in tiles} == {one.name for one in FLEET.nodes}
    assert len({(tile["x"], tile["y"]) for tile in tiles}) == len(tiles)
    for card in places["cards"]:
        assert 0 <= card["x"] <= WIDTH - places["card"]
        assert card["y"] + card["height"] <= places["height"]
        for group in card["groups"]:
            for tile in group["tiles"]:
                assert card["y"] < tile["y"] <= card["y"] + card["height"] - places["tile"]


def test_sites_of_a_column_do_not_cover_one_another():
    cards = {card["name"]: card for card in lay_out_fleet(FLEET)["cards"]}
    assert cards["ams"]["x"] < cards["fra"]["x"] == cards["waw"]["x"]
    assert cards["fra"]["y"] + cards["fra"]["height"] < cards["waw"]["y"]


def test_a_node_that_changes_moves_no_other():
    drained = replace(FLEET, nodes=(*FLEET.nodes[:-1], replace(FLEET.nodes[-1], state=NodeState.DRAINING)))

    def spots(fleet):
        cards = lay_out_fleet(fleet)["cards"]
        return [
            (tile["name"], tile["x"], tile["y"])
            for card in cards
            for group in card["groups"]
            for tile in group["tiles"]
        ]

    assert spots(drained) == spots(FLEET)


@pytest.mark.parametrize("fleet", [FleetSnapshot(), FleetSnapshot(sites=(Site("a"),), links=FLEET.links)])
def test_a_fleet_without_nodes_can_be_drawn(fleet):
    assert lay_out_fleet(fleet)["edges"] == []


async def test_the_page_has_the_places_of_the_fleet(admin, plane):
    with plane.database.reading() as session:
        assert load_nodes(session) == []
    page = await admin.get("/topology")
    assert page.status_code == 200
    assert '"name": "ams"' in page.text
    assert [card["name"] for card in (await admin.get("/topology/layout")).json()["cards"]] == ["ams"]


async def test_what_is_not_there_is_a_sentence(admin):
    assert (await admin.get("/topology/panel?node=nowhere")).status_code == 404
    reply = await admin.post("/topology/operations", data={"kind": "drain", "name": "nowhere", "reason": "why"})
    assert reply.status_code == 404
    for form in (
        {"kind": "switch_role", "name": "a", "reason": "why"},
        {"kind": "rebalance", "name": "a", "reason": "w"},
    ):
        assert (await admin.post("/topology/operations", data=form)).status_code == 422
