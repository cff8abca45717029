"""Plans between inventories, and what is wrong with one."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from control.domain.fleet_plan import Action, plan_fleet
from control.domain.fleet_seed import names_of, seeded_inventory
from control.domain.inventory import ChipProfile, Inventory, ItemRef, Kind, ModelProfile, Wish
from control.domain.inventory_checks import inventory_problems, new_problems
from control.domain.policy import FieldChange
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site
from tests.unit.domain.inventories import inventories

UNHURRIED = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])

AMS = Site("ams", "Amsterdam", ("10.1.0.0/16",))
FRA = Site("fra", "Frankfurt", ("10.2.0.0/16",))
CHIP = ChipProfile("H20-96GB", 148e12, 96 * 10**9, 4e12, 9e11, 2.5)
MODEL = ModelProfile("Qwen/Qwen3-8B", 147_456)
NODE = Node("ams-p-01", "ams", Role.PREFILL, "http://10.1.0.7:8000", "vllm", MODEL.name, chip=CHIP.name)
LINK = Link("ams-fra", "ams", "fra", 5e6, 0.03, None, "10.1.0.8", 9100, "http://10.1.0.8:9101")
GATEWAY = Gateway("ams-gw-01", "ams", "http://10.1.0.9:8000")
INVENTORY = Inventory((AMS, FRA), (CHIP,), (MODEL,), (NODE,), (LINK,), (GATEWAY,), MODEL.name)


def paths(inventory):
    return [problem.path for problem in inventory_problems(inventory)]


def test_a_plan_names_what_is_added_changed_and_removed_field_by_field():
    wanted = replace(
        INVENTORY,
        nodes=(replace(NODE, slots=8, labels={"rack": "r1"}),),
        links=(),
        gateways=(GATEWAY, Gateway("ams-gw-02", "ams", "http://10.1.0.10:8000")),
        model="",
    )
    plan = plan_fleet(INVENTORY, wanted)
    assert plan.facts == (FieldChange("model", MODEL.name, ""),)
    told = [(str(change.ref), change.action, change.changes) for change in plan.items]
    assert told[0] == (
        "node ams-p-01",
        Action.CHANGED,
        (FieldChange("slots", 4, 8), FieldChange("labels", {}, {"rack": "r1"})),
    )
    assert [(ref, action) for ref, action, _ in told[1:]] == [
        ("link ams-fra", Action.REMOVED),
        ("gateway ams-gw-02", Action.ADDED),
    ]
    assert FieldChange("site", None, "ams") in told[2][2]


@UNHURRIED
@given(inventories(), inventories())
def test_a_plan_is_empty_only_between_equals_and_leads_from_one_to_the_other(current, wanted):
    plan = plan_fleet(current, wanted)
    assert plan.is_empty == (current == wanted)
    reached = current
    for change in plan.items:
        item = wanted.find(change.ref)
        reached = reached.without(change.ref) if item is None else reached.with_item(change.ref.kind, item)
    assert replace(reached, model=wanted.model) == wanted


@UNHURRIED
@given(inventories())
def test_drawn_inventories_have_no_problem(inventory):
    assert inventory_problems(inventory) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"nodes": (replace(NODE, name="Node 1"),)}, "nodes.Node 1.name"),
        ({"nodes": (replace(NODE, site="par"),)}, "nodes.ams-p-01.site"),
        ({"nodes": (replace(NODE, chip="B200"),)}, "nodes.ams-p-01.chip"),
        ({"nodes": (replace(NODE, model="gpt"),)}, "nodes.ams-p-01.model"),
        ({"nodes": (replace(NODE, engine="tgi"),)}, "nodes.ams-p-01.engine"),
        ({"nodes": (replace(NODE, url="http://10.2.0.7:8000"),)}, "nodes.ams-p-01.url"),
        ({"nodes": (replace(NODE, labels={"Rack": "1"}),)}, "nodes.ams-p-01.labels.Rack"),
        ({"nodes": (replace(NODE, labels={"rack": "a;b"}),)}, "nodes.ams-p-01.labels.rack"),
        ({"nodes": (NODE, replace(NODE, name="other", url=NODE.url + "/"))}, "nodes.other.url"),
        ({"nodes": (NODE, NODE)}, "nodes.ams-p-01"),
        ({"sites": (replace(AMS, networks=("10.1.0.0/16", "x")), FRA)}, "sites.ams.networks"),
        ({"links": (replace(LINK, target="ams"),)}, "links.ams-fra.target"),
        ({"links": (replace(LINK, target="par"),)}, "links.ams-fra.target"),
        ({"links": (LINK, replace(LINK, name="second"))}, "links.second.target"),
        ({"links": (replace(LINK, relay_host="10.2.0.1"),)}, "links.ams-fra.relay_host"),
        ({"links": (replace(LINK, relay_port=0),)}, "links.ams-fra.relay_port"),
        ({"links": (replace(LINK, admin_url="http://169.254.169.254"),)}, "links.ams-fra.admin_url"),
        ({"gateways": (replace(GATEWAY, url="http://8.8.8.8"),)}, "gateways.ams-gw-01.url"),
        ({"models": (MODEL, replace(MODEL, name="/etc"))}, "models./etc.name"),
        ({"model": "gpt"}, "model"),
    ],
)
def test_each_problem_stands_under_the_path_of_its_field(change, path):
    assert path in paths(replace(INVENTORY, **change))


def test_what_was_wrong_before_does_not_stand_in_the_way_of_a_change():
    broken = replace(INVENTORY, nodes=(replace(NODE, url="http://8.8.8.8"),))
    assert new_problems(broken, broken.with_item(Kind.GATEWAY, replace(GATEWAY, url="http://10.1.0.11"))) == []
    narrowed = INVENTORY.with_item(Kind.SITE, replace(AMS, networks=("10.1.0.7/32",)))
    assert [problem.path for problem in new_problems(INVENTORY, narrowed)] == [
        "links.ams-fra.relay_host",
        "links.ams-fra.admin_url",
        "gateways.ams-gw-01.url",
    ]


def test_every_user_of_an_item_is_known():
    def users(kind, name):
        return [str(user) for user in INVENTORY.users_of(ItemRef(kind, name))]

    assert users(Kind.SITE, "ams") == ["node ams-p-01", "link ams-fra", "gateway ams-gw-01"]
    assert users(Kind.SITE, "fra") == ["link ams-fra"]
    assert users(Kind.CHIP, CHIP.name) == users(Kind.MODEL, MODEL.name) == ["node ams-p-01"]
    assert users(Kind.NODE, "ams-p-01") == users(Kind.LINK, "ams-fra") == users(Kind.GATEWAY, "ams-gw-01") == []


def test_an_unsaid_field_keeps_what_it_has():
    drained = replace(NODE, state=NodeState.DRAINING)
    wish = Wish(replace(NODE, slots=9), frozenset({"state"}))
    assert wish.settled(drained) == replace(drained, slots=9)
    assert wish.settled(None).state is NodeState.READY
    assert replace(wish, unsaid=frozenset()).settled(drained).state is NodeState.READY


def test_the_snapshot_holds_what_gateways_need_of_the_first_model():
    model = replace(MODEL, block_tokens=32, labels={"tool_parser": "hermes"})
    snapshot = replace(INVENTORY, models=(model,)).snapshot()
    assert (snapshot.model, snapshot.kv_bytes_per_token, snapshot.block_tokens) == (MODEL.name, 147_456, 32)
    assert snapshot.labels == {"tool_parser": "hermes"}
    assert snapshot.model_labels == {}
    assert Inventory().snapshot() == FleetSnapshot()


def test_the_snapshot_says_which_parsers_other_models_need():
    other = replace(MODEL, name="other", labels={"reasoning_parser": "think"})
    snapshot = replace(INVENTORY, models=(MODEL, other, replace(MODEL, name="plain", labels={}))).snapshot()
    assert snapshot.model_labels == {"other": {"reasoning_parser": "think"}}
    assert FleetSnapshot.from_document(snapshot.to_document()) == snapshot


@pytest.mark.parametrize(("label", "known"), [("tool_parser", "hermes"), ("reasoning_parser", "think, think_open")])
def test_a_model_profile_names_parsers_that_there_are(label, known):
    wanted = replace(INVENTORY, models=(replace(MODEL, labels={label: "pythonic"}),))
    (problem,) = new_problems(INVENTORY, wanted)
    assert problem.path == f"models.{MODEL.name}.labels.{label}"
    assert known in problem.message
    for name in (*known.split(", "), ""):
        assert new_problems(INVENTORY, replace(INVENTORY, models=(replace(MODEL, labels={label: name}),))) == []


def test_a_start_keeps_what_the_operator_has_added_and_said():
    fleet = INVENTORY.snapshot()
    started = seeded_inventory(Inventory(), fleet, {})
    assert started.snapshot() == fleet
    said = replace(started.nodes[0], role=Role.RELAY, state=NodeState.DRAINING, chip=CHIP.name, labels={"rack": "r1"})
    own = replace(NODE, name="own", url="http://10.1.0.77:8000")
    touched = started.with_items(Kind.NODE, [said, own]).with_item(Kind.CHIP, CHIP)
    moved = replace(fleet, nodes=(replace(NODE, url="http://10.1.0.8:1"),), gateways=())
    again = seeded_inventory(touched, moved, names_of(fleet))
    assert again.nodes == (replace(said, url="http://10.1.0.8:1"), own)
    assert (again.chips, again.gateways, again.sites) == ((CHIP,), (), started.sites)
