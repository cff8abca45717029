"""Operations in SQL, with agents that answer as the test says."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlmodel import select

from control.domain.inventory import ItemRef
from control.domain.inventory import Kind as ItemKind
from control.domain.operations import Kind, OperationState, Stage, StepState, Verdict
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.staleness import Health, Sighting, judge_health
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from control.orders import (
    ADVANCE_OPERATION,
    ASSIGN_NODE,
    OBSERVE_GATEWAY,
    OBSERVE_NODE,
    PROBE_LINK,
    PUSH_POLICY,
    RESTART_NODE,
    WARM_NODE,
)
from control.services.access import Principal
from control.services.access import Role as AccessRole
from control.services.audit import load_events
from control.services.fleet import load_nodes, load_snapshot, seed_fleet
from control.services.fleet_push import watch_orders
from control.services.inventory_users import outside_users
from control.services.link_rollout import LinkReport, record_link_report
from control.services.operation_engine import (
    STEP_LEASE_S,
    StepReport,
    advance_operation,
    record_step_report,
    sweep_operations,
)
from control.services.operation_store import load_operation
from control.services.operations import (
    cancel_operation,
    load_probes,
    open_operation,
    preview_operation,
    retry_operation,
)
from control.services.policies import RevisionDraft, create_revision, find_active_number, found_policy
from control.services.pools import load_pools
from control.services.rollout import Report, record_report
from control.services.sightings import load_sightings, record_agent
from control.store.tables import AuditEventRow, NodeRow

OPERATOR = Principal("olga", AccessRole.OPERATOR)
VIEWER = Principal("vera", AccessRole.VIEWER)
PARTS = {Role.PREFILL: ("ams-p-01", "ams-p-02", "ams-p-03"), Role.RELAY: ("ams-rld-01",), Role.MAIN: ("fra-md-01",)}
NODES = tuple(
    Node(name, name[:3], role, f"http://127.0.0.1:9000/nodes/{name}", "emulated", "m")
    for role, names in PARTS.items()
    for name in names
)
FLEET = FleetSnapshot(
    sites=(Site("ams"), Site("fra")),
    nodes=NODES,
    links=(Link("ams-fra", "ams", "fra", 5e6, 0.03, None, "127.0.0.1", 9100, "http://127.0.0.1:9101"),),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    model="m",
    kv_bytes_per_token=64,
)
AT_REST = {"running": 0, "waiting": 0, "pulling": 0, "leases": 0, "incarnation": "i1", "error": ""}


class Fleet:
    """A plane whose gateways and agents do what they are told, one order at a time."""

    def __init__(self, plane, orders, clock):
        self.seen = {node.name: Sighting("ready", 0.5) for node in NODES}
        self.plane = replace(plane, sightings=lambda: self.seen)
        self.orders, self.clock = orders, clock
        self.in_flight = {}
        self.told = []
        seed_fleet(self.plane, FLEET, "test")
        found_policy(self.plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")

    def open(self, kind, **parameters):
        return open_operation(self.plane, OPERATOR, kind, parameters, "a test").stored.id

    def load(self, number):
        with self.plane.database.reading() as session:
            return load_operation(session, number)

    def node(self, name):
        with self.plane.database.reading() as session:
            return next(node for node in load_nodes(session) if node.name == name)

    def gateway_says(self):
        """The gateway runs what is stored."""
        self.clock.advance(milliseconds=10)
        with self.plane.database.reading() as session:
            revision, fleet_revision = find_active_number(session), load_snapshot(session).revision
        record_report(
            self.plane,
            Report("o", "ams-gw-01", "ams", revision, "applied", "", self.clock(), fleet_revision),
        )

    def answer(self, order, verdict=Verdict.DONE, error="", **progress):
        header = {name: order.arguments[name] for name in ("operation_id", "position", "token", "source")}
        report = {**header, "verdict": verdict.value, "progress": progress, "error": error}
        return record_step_report(self.plane, StepReport.from_arguments(report))

    def take(self, *tasks):
        """The next order of these tasks, out of the queue."""
        found = next((order for order in self.orders if order.task in tasks), None)
        if found is not None:
            self.orders.remove(found)
        return found

    def obey(self, order):
        name = order.arguments["source"]
        self.told.append((order.task, name))
        match order.task:
            case str(task) if task == OBSERVE_NODE:
                busy = self.in_flight.get(name, 0)
                self.answer(order, Verdict.AGAIN if busy else Verdict.DONE, **{**AT_REST, "running": busy})
            case str(task) if task == OBSERVE_GATEWAY:
                busy = self.in_flight.get(order.arguments["node"], 0)
                self.answer(order, Verdict.AGAIN if busy else Verdict.DONE, requests=busy, error="")
            case _:
                self.answer(order)

    def run(self, number, until=None, rounds=60):
        """Sweep, report and obey until the operation is over, or comes to a stage."""
        tasks = (OBSERVE_NODE, OBSERVE_GATEWAY, ASSIGN_NODE, WARM_NODE, RESTART_NODE, PROBE_LINK)
        for _ in range(rounds):
            current = self.load(number).operation.current
            if current is None or (until is not None and current.plan.stage is until and current.state.is_active):
                return self.load(number)
            self.gateway_says()
            sweep_operations(self.plane)
            if until is not None and (now := self.load(number).operation.current) and now.plan.stage is until:
                return self.load(number)
            if order := self.take(*tasks):
                self.obey(order)
        raise AssertionError(f"still {self.load(number).operation.current}")


@pytest.fixture
def fleet(plane, orders, clock):
    return Fleet(plane, orders, clock)


def test_a_drain_holds_the_node_waits_for_the_gateway_and_for_rest(fleet):
    number = fleet.open(Kind.DRAIN, node="ams-p-01")
    assert fleet.orders[-1].task == ADVANCE_OPERATION
    advance_operation(fleet.plane, number)
    assert fleet.node("ams-p-01").state is NodeState.DRAINING
    [push] = [order for order in fleet.orders if order.task == PUSH_POLICY]
    pushed = FleetSnapshot.from_document(push.arguments["fleet"])
    assert next(n for n in pushed.nodes if n.name == "ams-p-01").state is NodeState.DRAINING
    converging = fleet.load(number).operation.current
    assert (converging.plan.stage, converging.state) == (Stage.CONVERGE, StepState.RUNNING)
    assert converging.progress["waiting_for"] == ["gateway ams-gw-01 has not been heard"]

    fleet.in_flight["ams-p-01"] = 2
    fleet.run(number, until=Stage.EMPTY)
    for _ in range(2):
        fleet.obey(fleet.take(OBSERVE_NODE, OBSERVE_GATEWAY))
    emptying = fleet.load(number).operation.current
    assert (emptying.progress["requests_in_flight"], emptying.progress["generations_in_flight"]) == (2, 2)
    assert fleet.take(OBSERVE_GATEWAY) is not None, "a source that counts something is asked again"

    fleet.in_flight.clear()
    fleet.clock.advance(seconds=STEP_LEASE_S)
    assert fleet.run(number).operation.state is OperationState.DONE
    assert fleet.node("ams-p-01").state is NodeState.DRAINING


def test_a_node_is_looked_at_last_so_that_nothing_planned_for_it_is_missed(fleet):
    number = fleet.open(Kind.DRAIN, node="ams-p-01")
    fleet.run(number, until=Stage.EMPTY)
    fleet.answer(fleet.take(OBSERVE_NODE), Verdict.DONE, **AT_REST)
    assert fleet.load(number).operation.state is OperationState.RUNNING
    fleet.answer(fleet.take(OBSERVE_GATEWAY), Verdict.DONE, requests=0, error="")
    assert fleet.load(number).operation.state is OperationState.RUNNING
    fleet.answer(fleet.take(OBSERVE_NODE), Verdict.DONE, **AT_REST)
    assert fleet.load(number).operation.state is OperationState.DONE


def test_a_switch_goes_through_all_its_stages_and_tells_the_node_once(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    stored = fleet.run(number)
    assert stored.operation.state is OperationState.DONE
    node = fleet.node("ams-p-01")
    assert (node.role, node.state) == (Role.RELAY, NodeState.READY)
    assert [told for told in fleet.told if told[0] in {ASSIGN_NODE, WARM_NODE}] == [
        (ASSIGN_NODE, "ams-p-01"),
        (WARM_NODE, "ams-p-01"),
    ]
    fences = [step.fence for step in stored.operation.steps]
    assert fences == sorted(set(fences))


def test_the_same_operation_asked_twice_is_one_and_another_one_on_the_node_is_refused(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number, until=Stage.WARM)
    assert fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay") == number
    with pytest.raises(ConflictError, match="with other parameters"):
        fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="main")
    with pytest.raises(ConflictError, match=f"Operation {number} .* is open on node/ams-p-01"):
        fleet.open(Kind.DRAIN, node="ams-p-01")
    fleet.run(number)
    assert fleet.open(Kind.DRAIN, node="ams-p-01", force=True) != number


def test_a_silent_agent_is_given_up_and_the_step_goes_to_the_next_one_under_a_higher_fence(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number, until=Stage.ASSIGN)
    late = fleet.take(ASSIGN_NODE)
    sweep_operations(fleet.plane)
    assert fleet.take(ASSIGN_NODE) is None, "its lease holds"
    fleet.clock.advance(seconds=STEP_LEASE_S)
    sweep_operations(fleet.plane)
    again = fleet.take(ASSIGN_NODE)
    assert again.arguments["fence"] > late.arguments["fence"]
    assert not fleet.answer(late)
    assert fleet.load(number).operation.current.plan.stage is Stage.ASSIGN
    assert fleet.answer(again)
    assert fleet.run(number).operation.state is OperationState.DONE


def test_a_step_that_never_ends_fails_in_time_says_why_and_gives_the_node_back(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number, until=Stage.WARM)
    fleet.answer(fleet.take(WARM_NODE), Verdict.AGAIN, waiting_for=["the node answered 500: no"])
    fleet.clock.advance(seconds=90)
    sweep_operations(fleet.plane)
    node = fleet.node("ams-p-01")
    assert (node.role, node.state) == (Role.PREFILL, NodeState.READY)
    stored = fleet.run(number)
    assert stored.operation.state is OperationState.FAILED
    assert stored.row.error == "warm of ams-p-01 took longer than 90 s: the node answered 500: no"
    assert stored.row.finished_at is not None
    back = [step for step in stored.operation.steps if step.plan.undoes]
    assert [(step.plan.stage, step.state) for step in back] == [
        (Stage.RESTORE, StepState.DONE),
        (Stage.ASSIGN, StepState.DONE),
    ]


def test_an_agent_that_never_answers_is_named(fleet):
    number = fleet.open(Kind.RESTART, node="ams-p-01")
    fleet.run(number, until=Stage.RESTART)
    fleet.clock.advance(seconds=180)
    sweep_operations(fleet.plane)
    assert fleet.load(number).row.error == (
        "restart of ams-p-01 took longer than 180 s: the agent of site ams has not answered"
    )


def test_a_drain_that_nobody_reports_on_says_who_was_not_heard(fleet):
    number = fleet.open(Kind.DRAIN, node="ams-p-01")
    fleet.run(number, until=Stage.EMPTY)
    fleet.answer(fleet.take(OBSERVE_GATEWAY), Verdict.AGAIN, requests=1, error="")
    for _ in range(2):
        fleet.clock.advance(seconds=200)
        sweep_operations(fleet.plane)
    assert fleet.load(number).row.error == (
        "empty of ams-p-01 took longer than 300 s: ams-gw-01 has not been heard; ams-p-01 has not been heard"
    )
    assert fleet.node("ams-p-01").state is NodeState.DRAINING


def test_a_restart_names_the_incarnation_that_was_seen_at_rest(fleet):
    number = fleet.open(Kind.RESTART, node="ams-p-01")
    fleet.run(number, until=Stage.RESTART)
    assert fleet.take(RESTART_NODE).arguments["incarnation"] == "i1"


def test_a_cancelled_switch_gives_the_node_back_and_takes_no_late_report(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number, until=Stage.WARM)
    late = fleet.take(WARM_NODE)
    cancel_operation(fleet.plane, OPERATOR, number, "changed my mind")
    node = fleet.node("ams-p-01")
    assert (node.role, node.state) == (Role.PREFILL, NodeState.READY)
    assert not fleet.answer(late)
    assert fleet.run(number).operation.state is OperationState.CANCELLED
    with pytest.raises(ConflictError, match="is over: cancelled"):
        cancel_operation(fleet.plane, OPERATOR, number, "again")


def test_what_was_cancelled_can_be_tried_again_and_what_was_done_cannot(fleet):
    number = fleet.open(Kind.DRAIN, node="ams-p-01")
    cancel_operation(fleet.plane, OPERATOR, number, "no")
    assert fleet.run(number).operation.state is OperationState.CANCELLED
    again = retry_operation(fleet.plane, OPERATOR, number, "yes").stored
    assert (again.row.retry_of, again.id) == (number, number + 1)
    assert fleet.run(again.id).operation.state is OperationState.DONE
    with pytest.raises(ConflictError, match="only a failed or cancelled one"):
        retry_operation(fleet.plane, OPERATOR, again.id, "more")


def test_the_last_node_of_a_role_is_held_only_by_force(fleet):
    for name in ("ams-rld-01", "fra-md-01"):
        with pytest.raises(ConflictError, match="is the last ready"):
            fleet.open(Kind.DRAIN, node=name)
    assert fleet.open(Kind.DRAIN, node="fra-md-01", force=True)


def test_a_role_that_lost_its_last_other_node_meanwhile_is_not_emptied(fleet):
    first = fleet.open(Kind.DRAIN, node="ams-p-01")
    second = fleet.open(Kind.DRAIN, node="ams-p-02")
    third = fleet.open(Kind.DRAIN, node="ams-p-03")
    states = [fleet.run(number) for number in (first, second, third)]
    assert [s.operation.state for s in states] == [OperationState.DONE, OperationState.DONE, OperationState.FAILED]
    assert states[2].row.error == "hold of ams-p-03: ams-p-03 is the last ready prefill node"
    assert fleet.node("ams-p-03").state is NodeState.READY


def test_automation_refuses_to_act_on_stale_data_and_says_so(fleet):
    fleet.seen["ams-p-01"] = Sighting("ready", 60.0)
    for kind, parameters in (
        (Kind.SWITCH_ROLE, {"node": "ams-p-01", "role": "relay"}),
        (Kind.RESTART, {"node": "ams-p-01"}),
        (Kind.REBALANCE, {"site": "ams", "target": "2:2:0"}),
    ):
        with pytest.raises(ConflictError, match="ams-p-01 is stale: last seen 60 s ago"):
            fleet.open(kind, **parameters)
    assert fleet.open(Kind.DRAIN, node="ams-p-01"), "an operator may take out what nobody sees"
    fleet.seen = {}
    with pytest.raises(ConflictError, match=r"no other prefill node is known to be healthy: .* no observer"):
        fleet.open(Kind.DRAIN, node="ams-p-02")


def test_the_nodes_of_a_site_whose_agent_is_silent_are_stale_until_it_answers(fleet):
    record_agent(fleet.plane, "ams")
    record_agent(fleet.plane, "fra")
    fleet.clock.advance(seconds=31)
    record_agent(fleet.plane, "fra")
    seen = load_sightings(fleet.plane)
    assert {name: judge_health(seen[name]) for name in ("ams-p-01", "fra-md-01")} == {
        "ams-p-01": Health.STALE,
        "fra-md-01": Health.HEALTHY,
    }
    with pytest.raises(ConflictError, match="ams-p-01 is stale: the agent of its site has been silent for 31 s"):
        fleet.open(Kind.RESTART, node="ams-p-01")
    record_agent(fleet.plane, "ams")
    assert fleet.open(Kind.RESTART, node="ams-p-01")


def test_a_node_that_turns_stale_before_it_is_held_stops_the_operation(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.seen["ams-p-01"] = Sighting("ready", 11.0)
    advance_operation(fleet.plane, number)
    stored = fleet.load(number)
    assert stored.row.error == "hold of ams-p-01: ams-p-01 is stale: last seen 11 s ago"
    assert fleet.node("ams-p-01").state is NodeState.READY


def test_a_rebalance_shows_its_plan_and_switches_one_node_at_a_time(fleet):
    preview = preview_operation(fleet.plane, Kind.REBALANCE, {"site": "ams", "target": "1:1:0"})
    assert preview.result["moves"] == [{"node": "ams-p-03", "from": "prefill", "to": "relay"}]
    assert preview.result["after"] == {"prefill": 2, "relay": 2, "main": 0}
    number = fleet.open(Kind.REBALANCE, site="ams", target="1:3:0")
    stored = fleet.run(number)
    assert stored.operation.state is OperationState.DONE
    with fleet.plane.database.reading() as session:
        roles = [node.role for node in load_nodes(session) if node.site == "ams"]
    assert sorted(roles) == sorted([Role.PREFILL, Role.RELAY, Role.RELAY, Role.RELAY])
    with pytest.raises(InvalidError, match="has that ratio already"):
        fleet.open(Kind.REBALANCE, site="ams", target="1:3:0")


def test_a_rebalance_to_the_policy_takes_its_targets_and_leaves_other_roles_as_they_are(fleet):
    with pytest.raises(InvalidError, match=r"no pools\.ams\.<role>\.target"):
        fleet.open(Kind.REBALANCE, site="ams", to_policy=True)
    for wrong in ({}, {"target": "1:3:0", "to_policy": True}):
        with pytest.raises(InvalidError, match="Say either a target"):
            fleet.open(Kind.REBALANCE, site="ams", **wrong)
    changes = {"pools.ams.prefill.target": 1, "pools.ams.relay.target": 3}
    draft = RevisionDraft("more relays", 1, changes=changes, apply=True)
    create_revision(fleet.plane, OPERATOR, draft)
    with fleet.plane.database.reading() as session:
        before = [(pool.role.value, pool.nodes, pool.target, pool.drift) for pool in load_pools(session, "ams")]
    assert before == [("prefill", 3, 1, 2), ("relay", 1, 3, -2), ("main", 0, None, None)]
    number = fleet.open(Kind.REBALANCE, site="ams", to_policy=True)
    assert fleet.run(number).operation.state is OperationState.DONE
    with fleet.plane.database.reading() as session:
        assert [pool.drift for pool in load_pools(session, "ams")] == [0, 0, None]


def test_a_shaped_link_is_a_policy_revision_that_the_relay_enforces(fleet):
    shape = {"rate_cap_bytes_per_s": 1e6, "max_transfers": 2}
    number = fleet.open(Kind.SHAPE_LINK, link="ams-fra", shape=shape)
    assert fleet.open(Kind.SHAPE_LINK, link="ams-fra", shape=shape) == number
    sweep_operations(fleet.plane)
    assert fleet.load(number).operation.current.progress["waiting_for"] == ["the relay has not been heard"]
    record_link_report(fleet.plane, LinkReport("o", "ams-fra", 2, "applied", "", fleet.clock()))
    sweep_operations(fleet.plane)
    assert fleet.load(number).operation.state is OperationState.DONE
    with fleet.plane.database.reading() as session:
        assert find_active_number(session) == 2


def test_a_probe_is_kept_with_the_link(fleet):
    number = fleet.open(Kind.PROBE_LINK, link="ams-fra")
    sweep_operations(fleet.plane)
    order = fleet.take(PROBE_LINK)
    assert order.queue == "site.fra"
    figures = {"size_bytes": 4_000_000, "duration_s": 1.0, "bandwidth_bytes_per_s": 4e6, "rtt_s": 0.031}
    fleet.answer(order, **figures)
    stored = fleet.load(number)
    assert (stored.operation.state, stored.row.result) == (OperationState.DONE, figures)
    with fleet.plane.database.reading() as session:
        [row] = load_probes(session, "ams-fra", 10)
    assert (row.bandwidth_bytes_per_s, row.rtt_s, row.operation_id) == (4e6, 0.031, number)


def test_applying_a_policy_waits_for_every_gateway(fleet):
    number = fleet.open(Kind.APPLY_POLICY, revision=1)
    sweep_operations(fleet.plane)
    assert fleet.load(number).operation.state is OperationState.RUNNING
    assert fleet.run(number).operation.state is OperationState.DONE


def test_who_may_not_and_what_is_not_is_refused(fleet):
    with pytest.raises(ForbiddenError):
        open_operation(fleet.plane, VIEWER, Kind.DRAIN, {"node": "ams-p-01"}, "no")
    with pytest.raises(NotFoundError, match="There is no node nowhere"):
        fleet.open(Kind.DRAIN, node="nowhere")
    with pytest.raises(InvalidError, match="is a prefill node already"):
        fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="prefill")
    with pytest.raises(InvalidError, match="Give a reason"):
        open_operation(fleet.plane, OPERATOR, Kind.DRAIN, {"node": "ams-p-01"}, " ")
    with pytest.raises(NotFoundError, match="There is no operation 7"):
        fleet.load(7)


def test_a_node_that_is_disabled_meanwhile_stays_disabled(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number, until=Stage.WARM)
    with fleet.plane.database.unit_of_work(fleet.orders.append) as work:
        work.session.get_one(NodeRow, "ams-p-01").state = NodeState.DISABLED.value
    fleet.answer(fleet.take(WARM_NODE))
    stored = fleet.run(number)
    assert stored.row.error == "admit of ams-p-01: ams-p-01 has been disabled meanwhile"
    assert (fleet.node("ams-p-01").role, fleet.node("ams-p-01").state) == (Role.PREFILL, NodeState.DISABLED)
    for kind, parameters in ((Kind.UNDRAIN, {}), (Kind.DRAIN, {}), (Kind.SWITCH_ROLE, {"role": "main"})):
        with pytest.raises(ConflictError, match="ams-p-01 is disabled"):
            fleet.open(kind, node="ams-p-01", **parameters)


def test_who_is_under_an_open_operation_is_in_use(fleet):
    number = fleet.open(Kind.PROBE_LINK, link="ams-fra")
    drain = fleet.open(Kind.DRAIN, node="ams-p-01")
    with fleet.plane.database.reading() as session:
        for ref, users in (
            (ItemRef(ItemKind.NODE, "ams-p-01"), [f"operations.{drain}"]),
            (ItemRef(ItemKind.NODE, "ams-p-02"), []),
            (ItemRef(ItemKind.LINK, "ams-fra"), [f"operations.{number}"]),
            (ItemRef(ItemKind.SITE, "ams"), []),
        ):
            assert [user.path for user in outside_users(session, ref)] == users


def test_every_change_is_in_the_audit_trail_under_who_asked(fleet):
    number = fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay")
    fleet.run(number)
    with fleet.plane.database.reading() as session:
        events = [event for event in reversed(load_events(session, 50)) if event.actor == "olga"]
        assert session.exec(select(AuditEventRow)).first() is not None
    assert [event.action for event in events] == [
        "operation.open",
        "node.hold",
        "node.switch",
        "node.admit",
        "operation.done",
    ]
    assert (events[2].before["role"], events[2].after["role"]) == ("prefill", "relay")


def test_however_many_workers_move_an_operation_on_each_order_leaves_once(fleet):
    with ThreadPoolExecutor(4) as workers:
        asked = list(workers.map(lambda _: fleet.open(Kind.SWITCH_ROLE, node="ams-p-01", role="relay"), range(4)))
        assert len(set(asked)) == 1
        [number] = set(asked)
        fleet.gateway_says()
        for _ in range(30):
            list(workers.map(lambda _: sweep_operations(fleet.plane), range(4)))
            if not fleet.load(number).operation.state.is_open:
                break
            fleet.gateway_says()
            if order := fleet.take(OBSERVE_NODE, OBSERVE_GATEWAY, ASSIGN_NODE, WARM_NODE):
                fleet.obey(order)
    assert fleet.load(number).operation.state is OperationState.DONE
    told = Counter(fleet.told)
    assert (told[ASSIGN_NODE, "ams-p-01"], told[WARM_NODE, "ams-p-01"], told[OBSERVE_GATEWAY, "ams-gw-01"]) == (1, 1, 1)
    assert [step.attempt for step in fleet.load(number).operation.steps] == [1] * 8


def test_each_site_is_told_its_own_part_of_the_fleet_and_no_secret(fleet):
    with fleet.plane.database.reading() as session:
        orders = watch_orders(load_snapshot(session))
    told = {order.queue: FleetSnapshot.from_document(order.arguments["fleet"]) for order in orders}
    assert {queue: [node.name[:3] for node in part.nodes] for queue, part in told.items()} == {
        "site.ams": ["ams"] * 4,
        "site.fra": ["fra"],
    }
    assert [link.name for link in told["site.ams"].links] == ["ams-fra"]
    assert told["site.fra"].links == told["site.fra"].tenants == ()
