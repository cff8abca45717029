import json
from dataclasses import asdict, replace

from sqlmodel import select

from control.domain.topology import FleetSnapshot, Link, NodeState, Site
from control.services.fleet import load_snapshot, seed_fleet
from control.services.rollout import Report, record_report, sweep_gateways
from control.store.tables import AuditEventRow, LinkRow, NodeRow


def stored(plane):
    with plane.database.reading() as session:
        return load_snapshot(session)


def events(plane):
    with plane.database.reading() as session:
        return [event.action for event in session.exec(select(AuditEventRow))]


def test_a_seeded_fleet_reads_back_equal_and_survives_json(plane, fleet):
    assert seed_fleet(plane, fleet, "test")
    assert stored(plane) == fleet
    assert FleetSnapshot.from_document(json.loads(json.dumps(stored(plane).to_document()))) == fleet


def test_an_empty_database_holds_an_empty_fleet(plane):
    assert stored(plane) == FleetSnapshot()


def test_seeding_twice_changes_nothing_and_says_so(plane, fleet):
    seed_fleet(plane, fleet, "test")
    assert not seed_fleet(plane, fleet, "test")
    assert events(plane) == ["fleet.seed"]


def test_seeding_makes_the_stored_fleet_equal_to_the_new_document(plane, fleet):
    seed_fleet(plane, fleet, "test")
    new = replace(
        fleet,
        sites=(Site("ams", "Amsterdam"), Site("par")),
        nodes=(replace(fleet.nodes[0], url="http://127.0.0.1:9999"),),
        links=(Link("renamed", "ams", "par", 1.0, 0.1),),
        gateways=(replace(fleet.gateways[0], name="par-gw-01", site="par"),),
        model="other",
    )
    assert seed_fleet(plane, new, "test")
    # The node still serves the earlier model, so what is known of that stays.
    assert stored(plane) == replace(new, revision=1, model_labels={fleet.model: dict(fleet.labels)})


def test_a_renamed_link_between_the_same_sites_is_no_conflict(plane, fleet):
    seed_fleet(plane, fleet, "test")
    new = replace(fleet, links=(replace(fleet.links[0], name="renamed"),))
    assert seed_fleet(plane, new, "test")
    assert stored(plane).links == new.links


def test_what_an_operator_says_that_a_link_carries_outlives_a_restart(plane, fleet):
    seed_fleet(plane, fleet, "test")
    edited = replace(fleet.links[0], capacity_bytes_per_s=2.5e6, rtt_s=0.08, flow_cap_bytes_per_s=None)
    with plane.database.unit_of_work(plane.send) as work:
        work.session.merge(LinkRow(**asdict(edited)))
    assert not seed_fleet(plane, fleet, "test")
    assert stored(plane).links == (edited,)


def test_an_operators_wish_for_a_node_outlives_a_restart(plane, fleet):
    seed_fleet(plane, fleet, "test")
    with plane.database.unit_of_work(plane.send) as work:
        work.session.get_one(NodeRow, "ams-p-01").state = NodeState.DRAINING.value
    assert not seed_fleet(plane, fleet, "test")
    assert stored(plane).nodes[0].state is NodeState.DRAINING


def test_a_changed_fleet_is_sent_to_the_gateways_by_the_next_sweep_and_an_equal_one_is_not(seeded, fleet, clock):
    record_report(seeded, Report("o", "ams-gw-01", "ams", 1, "applied", "", clock.now, 0))
    seed_fleet(seeded, fleet, "test")
    assert sweep_gateways(seeded, lambda _: 0) == []
    seed_fleet(seeded, replace(fleet, nodes=fleet.nodes[:1]), "test")
    assert sweep_gateways(seeded, lambda _: 0) == ["ams-gw-01"]
