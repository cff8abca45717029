"""Changes of the inventory: planned, checked, stored, written down, told."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from control.domain.addresses import LOOPBACK_NETWORKS
from control.domain.inventory import ChipProfile, ItemRef, Kind, ModelProfile, Wish
from control.domain.topology import FleetSnapshot, Link, NodeState, Role, Site
from control.domain.versions import ANY_VERSION
from control.errors import (
    ConflictError,
    ForbiddenError,
    InUseError,
    InvalidError,
    NotFoundError,
    PreconditionRequiredError,
    StaleRevisionError,
)
from control.services.access import Principal
from control.services.access import Role as Rank
from control.services.audit import load_events
from control.services.fleet import load_snapshot, seed_fleet
from control.services.inventory import (
    FleetWish,
    Terms,
    apply_fleet,
    create_item,
    delete_item,
    import_items,
    inventory_version,
    item_version,
    replace_item,
)
from control.services.inventory_rows import load_inventory
from control.services.rollout import Report, record_report
from control.store.tables import OperationRow

OLGA, VERA = Principal("olga", Rank.OPERATOR), Principal("vera", Rank.VIEWER)
ADA = Principal("ada", Rank.ADMIN)
WHY = Terms("because")
ANY = Terms("because", ANY_VERSION)
CHIP = ChipProfile("H20-96GB", 148e12, 96 * 10**9, 4e12, 9e11, 2.5)


@pytest.fixture
def inventory_plane(seeded, orders):
    """The seeded fleet, whose sites allow this machine's addresses."""
    for name in ("ams", "fra"):
        replace_item(seeded, ADA, Wish(Site(name, name, LOOPBACK_NETWORKS)), ANY)
    orders.clear()
    return seeded


def stored(plane):
    with plane.database.reading() as session:
        return load_inventory(session)


def newest_event(plane):
    with plane.database.reading() as session:
        return load_events(session, 1)[0]


def node(plane, name="ams-p-01"):
    return stored(plane).by_name(Kind.NODE)[name]


def new_node(plane):
    given = {"name": "ams-p-02", "url": "http://127.0.0.1:9002", "state": NodeState.READY, "chip": ""}
    return replace(node(plane), labels={"rack": "r1"}, **given)


def test_a_new_node_is_stored_written_down_and_told_to_the_gateways(inventory_plane, orders):
    plane, wanted = inventory_plane, new_node(inventory_plane)
    changed = create_item(plane, OLGA, Wish(wanted), WHY)
    assert [str(change.ref) for change in changed.plan.items] == ["node ams-p-02"]
    assert node(plane, "ams-p-02") == wanted
    [order] = [order for order in orders if order.task == "policies.push"]
    pushed = FleetSnapshot.from_document(order.arguments["fleet"])
    assert wanted in pushed.nodes
    with plane.database.reading() as session:
        assert load_snapshot(session) == pushed
    event = newest_event(plane)
    assert (event.actor, event.action, event.target) == ("olga", "node.create", "node/ams-p-02")
    assert (event.before, event.after["labels"], event.reason) == (None, {"rack": "r1"}, "because")


def test_a_change_says_what_was_and_what_is(inventory_plane):
    plane = inventory_plane
    before = node(plane)
    replace_item(plane, OLGA, Wish(replace(before, slots=9)), Terms("more", frozenset({item_version(before)})))
    assert node(plane).slots == 9
    event = newest_event(plane)
    assert (event.action, event.before["slots"], event.after["slots"]) == ("node.change", before.slots, 9)


def test_a_change_must_be_made_against_what_is_stored(inventory_plane, orders):
    plane = inventory_plane
    wish = Wish(replace(node(plane), slots=9))
    with pytest.raises(PreconditionRequiredError):
        replace_item(plane, OLGA, wish, WHY)
    with pytest.raises(StaleRevisionError):
        replace_item(plane, OLGA, wish, Terms("why", frozenset({"old"})))
    with pytest.raises(PreconditionRequiredError):
        delete_item(plane, OLGA, wish.ref, WHY)
    with pytest.raises(StaleRevisionError):
        apply_fleet(plane, OLGA, FleetWish({}), Terms("why", frozenset({"old"})))
    assert (node(plane).slots, orders) == (4, [])


def test_of_two_changes_at_the_same_moment_one_is_stale(inventory_plane):
    plane = inventory_plane
    before = node(plane)
    terms = Terms("why", frozenset({item_version(before)}))

    def change(slots):
        try:
            return replace_item(plane, OLGA, Wish(replace(before, slots=slots)), terms).plan.is_empty
        except StaleRevisionError:
            return "stale"

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(change, [11, 12, 13]))
    assert sorted(answers, key=str) == [False, "stale", "stale"]


def test_deleting_what_is_in_use_is_refused_with_its_users(inventory_plane):
    plane = inventory_plane
    create_item(plane, OLGA, Wish(CHIP), WHY)
    replace_item(plane, OLGA, Wish(replace(node(plane), chip=CHIP.name)), ANY)
    cases = {
        ItemRef(Kind.SITE, "fra"): ["nodes.fra-md-01", "links.ams-fra"],
        ItemRef(Kind.CHIP, CHIP.name): ["nodes.ams-p-01"],
        ItemRef(Kind.MODEL, "smollm2-135m"): ["model", "nodes.ams-p-01", "nodes.fra-md-01"],
    }
    for ref, users in cases.items():
        for terms in (ANY, Terms("why", dry_run=True)):
            with pytest.raises(InUseError) as caught:
                delete_item(plane, OLGA, ref, terms)
            assert [problem.path for problem in caught.value.problems] == users
    assert "the fleet, whose first model it is, node ams-p-01, node fra-md-01" in caught.value.detail
    assert len(stored(plane).chips) == 1


def test_what_nothing_needs_can_go_with_its_reports(inventory_plane, clock):
    plane = inventory_plane
    record_report(plane, Report("o", "ams-gw-01", "ams", 1, "applied", "", clock.now))
    for ref in (
        ItemRef(Kind.LINK, "ams-fra"),
        ItemRef(Kind.GATEWAY, "ams-gw-01"),
        ItemRef(Kind.NODE, "fra-md-01"),
        ItemRef(Kind.SITE, "fra"),
    ):
        delete_item(plane, OLGA, ref, ANY)
    left = stored(plane)
    assert ([site.name for site in left.sites], left.links, left.gateways) == (["ams"], (), ())
    assert (newest_event(plane).action, newest_event(plane).after) == ("site.delete", None)
    with pytest.raises(NotFoundError):
        delete_item(plane, OLGA, ItemRef(Kind.SITE, "fra"), ANY)


def test_refuses_what_does_not_fit_and_stores_nothing(inventory_plane, orders):
    plane = inventory_plane
    before = stored(plane)
    good = new_node(plane)
    for bad, path in (
        (replace(good, url="http://10.0.0.1"), "nodes.ams-p-02.url"),
        (replace(good, url="http://169.254.169.254/latest"), "nodes.ams-p-02.url"),
        (replace(good, url=node(plane).url), "nodes.ams-p-02.url"),
        (replace(good, chip="none"), "nodes.ams-p-02.chip"),
        (replace(good, site="par"), "nodes.ams-p-02.site"),
    ):
        with pytest.raises(InvalidError) as caught:
            create_item(plane, OLGA, Wish(bad), WHY)
        assert [problem.path for problem in caught.value.problems] == [path]
    with pytest.raises(ConflictError):
        create_item(plane, OLGA, Wish(node(plane)), WHY)
    with pytest.raises(NotFoundError):
        replace_item(plane, OLGA, Wish(good), ANY)
    with pytest.raises(InvalidError, match="Say why"):
        create_item(plane, OLGA, Wish(good), Terms("  "))
    for attempt in (
        lambda: create_item(plane, VERA, Wish(good), WHY),
        lambda: replace_item(plane, VERA, Wish(node(plane)), ANY),
        lambda: delete_item(plane, VERA, ItemRef(Kind.NODE, "ams-p-01"), ANY),
        lambda: apply_fleet(plane, VERA, FleetWish({}), ANY),
        lambda: import_items(plane, VERA, Kind.NODE, [], ANY),
    ):
        with pytest.raises(ForbiddenError):
            attempt()
    assert (stored(plane), orders) == (before, [])


def test_a_dry_run_plans_and_stores_nothing(inventory_plane, orders):
    plane = inventory_plane
    before, event = stored(plane), newest_event(plane).id
    dry = Terms("why", dry_run=True)
    assert not create_item(plane, OLGA, Wish(new_node(plane)), dry).plan.is_empty
    assert not replace_item(plane, OLGA, Wish(replace(node(plane), slots=9)), dry).plan.is_empty
    assert not delete_item(plane, OLGA, ItemRef(Kind.NODE, "ams-p-01"), dry).plan.is_empty
    assert not apply_fleet(plane, OLGA, FleetWish({Kind.NODE: []}), dry).plan.is_empty
    assert (stored(plane), newest_event(plane).id, orders) == (before, event, [])


def test_a_document_is_applied_as_a_whole_and_keeps_what_it_leaves_out(inventory_plane, orders):
    plane = inventory_plane
    create_item(plane, OLGA, Wish(CHIP), WHY)
    before = stored(plane)
    drained = replace(node(plane), state=NodeState.DRAINING)
    replace_item(plane, OLGA, Wish(drained), ANY)
    orders.clear()
    sections = {
        Kind.MODEL: [Wish(item) for item in before.models] + [Wish(ModelProfile("other", 64))],
        Kind.NODE: [
            Wish(replace(drained, state=NodeState.READY, slots=2), frozenset({"state"})),
            Wish(new_node(plane)),
        ],
        Kind.LINK: [Wish(Link("back", "fra", "ams", 1e6, 0.1)), Wish(Link("forth", "ams", "fra", 1e6, 0.1))],
    }
    changed = apply_fleet(plane, OLGA, FleetWish(sections, "other"), ANY)
    after = stored(plane)
    assert after == changed.after
    assert inventory_version(after) == inventory_version(changed.after) != inventory_version(before)
    assert (after.chips, after.sites, after.gateways, after.model) == (
        before.chips,
        before.sites,
        before.gateways,
        "other",
    )
    assert [(item.name, item.slots, item.state) for item in after.nodes] == [
        ("ams-p-01", 2, NodeState.DRAINING),
        ("ams-p-02", 4, NodeState.READY),
    ]
    event = newest_event(plane)
    assert (event.action, event.target, event.before["model"], event.after["model"]) == (
        "fleet.apply",
        "fleet",
        "smollm2-135m",
        "other",
    )
    assert (event.before["link/ams-fra"]["source"], event.after["link/ams-fra"]) == ("ams", None)
    assert (event.before["node/ams-p-01"], event.after["node/ams-p-01"]) == ({"slots": 4}, {"slots": 2})
    assert [order.task for order in orders].count("policies.push") == 1
    orders.clear()
    assert apply_fleet(plane, OLGA, FleetWish(sections, "other"), ANY).plan.is_empty
    assert (newest_event(plane).id, orders) == (event.id, [])


def test_links_can_exchange_their_names_in_one_document(inventory_plane):
    plane = inventory_plane
    names = [Link("a", "ams", "fra", 1e6, 0.1), Link("b", "fra", "ams", 2e6, 0.2)]
    apply_fleet(plane, OLGA, FleetWish({Kind.LINK: [Wish(link) for link in names]}), ANY)
    swapped = [replace(names[0], name="b"), replace(names[1], name="a")]
    apply_fleet(plane, OLGA, FleetWish({Kind.LINK: [Wish(link) for link in swapped]}), ANY)
    assert stored(plane).links == (swapped[1], swapped[0])


def test_a_document_that_removes_what_others_need_is_refused(inventory_plane):
    plane = inventory_plane
    with pytest.raises(InUseError):
        apply_fleet(plane, OLGA, FleetWish({Kind.SITE: [Wish(Site("ams", "", LOOPBACK_NETWORKS))]}), ANY)
    with pytest.raises(InvalidError):
        apply_fleet(plane, OLGA, FleetWish({Kind.CHIP: [Wish(CHIP), Wish(CHIP)]}), ANY)


def test_an_import_adds_and_changes_and_removes_nothing(inventory_plane):
    plane = inventory_plane
    wishes = [Wish(new_node(plane)), Wish(replace(node(plane), role=Role.RELAY), frozenset({"chip", "labels"}))]
    plan = import_items(plane, OLGA, Kind.NODE, wishes, WHY).plan
    assert [(change.ref.name, change.action.value) for change in plan.items] == [
        ("ams-p-01", "changed"),
        ("ams-p-02", "added"),
    ]
    assert [item.name for item in stored(plane).nodes] == ["ams-p-01", "ams-p-02", "fra-md-01"]
    with pytest.raises(InvalidError):
        import_items(plane, OLGA, Kind.NODE, [*wishes, wishes[0]], WHY)


def test_a_start_keeps_what_the_operator_has_added(inventory_plane, fleet):
    plane = inventory_plane
    create_item(plane, OLGA, Wish(new_node(plane)), WHY)
    seed_fleet(plane, replace(fleet, nodes=fleet.nodes[:1], links=()), "test")
    assert [item.name for item in stored(plane).nodes] == ["ams-p-01", "ams-p-02"]
    assert node(plane, "ams-p-02") == new_node(plane)
    assert stored(plane).by_name(Kind.SITE)["ams"].networks == LOOPBACK_NETWORKS


def test_a_node_that_an_operation_works_on_is_neither_moved_nor_removed(inventory_plane, clock):
    plane = inventory_plane
    with plane.database.unit_of_work(plane.send) as work:
        work.session.add(
            OperationRow(
                kind="drain",
                target="node/ams-p-01",
                open_key="drain:node/ams-p-01",
                subjects=["node/ams-p-01"],
                parameters={},
                state="running",
                actor="olga",
                reason="why",
                created_at=clock.now,
            )
        )
    with pytest.raises(InUseError, match="drain is under way on the node ams-p-01"):
        replace_item(plane, OLGA, Wish(replace(node(plane), role=Role.RELAY)), ANY)
    with pytest.raises(InUseError):
        delete_item(plane, OLGA, ItemRef(Kind.NODE, "ams-p-01"), ANY)
    replace_item(plane, OLGA, Wish(replace(node(plane), labels={"rack": "r1"})), ANY)
    replace_item(plane, OLGA, Wish(replace(node(plane, "fra-md-01"), role=Role.RELAY)), ANY)
