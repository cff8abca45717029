"""Rebalancing, rest, and what may be believed of nodes: tables and properties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.lifecycle import evidence_of, judge_rest
from control.domain.operations import Stage, Step, StepPlan, StepState, Verdict
from control.domain.rebalance import ROLES, RebalanceError, parse_ratio, plan_rebalance, target_counts
from control.domain.staleness import Health, Sighting, judge_health, why_not_held
from control.domain.topology import Node, NodeState, Role
from control.telemetry.sightings import read_snapshot

P, RLD, MD = ROLES


def node(name, role, site="ams", **fields):
    return Node(name, site, role, f"http://127.0.0.1/{name}", "emulated", "m", **fields)


def pool(prefill, relay, main):
    counts = {P: prefill, RLD: relay, MD: main}
    return [node(f"{role}-{i}", role) for role, count in counts.items() for i in range(count)]


@pytest.mark.parametrize(
    ("ratio", "total", "counts"),
    [
        ("3:1:2", 6, (3, 1, 2)),
        ("3:1:2", 12, (6, 2, 4)),
        ("1:0:0", 4, (4, 0, 0)),
        ("40:3:32", 8, (4, 1, 3)),
        ("1:1:1", 4, (2, 1, 1)),
    ],
)
def test_a_ratio_becomes_whole_nodes_of_which_every_role_in_it_has_one(ratio, total, counts):
    assert tuple(target_counts(parse_ratio(ratio), total).values()) == counts


@pytest.mark.parametrize(("ratio", "total", "words"), [("0:0:0", 3, "above zero"), ("1:1:1", 2, "cannot have 3 roles")])
def test_a_ratio_that_cannot_be_met_is_refused(ratio, total, words):
    with pytest.raises(RebalanceError, match=words):
        target_counts(parse_ratio(ratio), total)


@pytest.mark.parametrize("text", ["", "1:2", "a:b:c", "1:-1:1", "1:2:3:4", "1.5:1:1"])
def test_what_is_no_ratio_is_refused(text):
    with pytest.raises(RebalanceError, match="P:RLD:MD"):
        parse_ratio(text)


counts_of = st.tuples(*[st.integers(0, 6)] * 3).filter(any)


@given(before=counts_of, ratio=st.tuples(*[st.integers(0, 9)] * 3).filter(any))
def test_the_fewest_moves_reach_the_target_and_no_role_in_use_runs_dry(before, ratio):
    nodes = pool(*before)
    wanted = dict(zip(ROLES, ratio, strict=True))
    if sum(count > 0 for count in ratio) > len(nodes):
        return
    plan = plan_rebalance(nodes, wanted)
    now = dict(plan.before)
    for move in plan.moves:
        assert now[move.node.role] > plan.after[move.node.role], "only surplus nodes move"
        now[move.node.role] -= 1
        now[move.role] += 1
        assert all(now[role] >= 1 for role in ROLES if ratio[ROLES.index(role)] and plan.before[role])
    assert now == dict(plan.after)
    assert len(plan.moves) == sum(max(0, plan.after[role] - plan.before[role]) for role in ROLES)
    assert len({move.node.name for move in plan.moves}) == len(plan.moves)


def test_nodes_that_are_not_ready_are_left_alone_and_mixed_models_are_refused():
    nodes = [*pool(2, 0, 0), node("x", P, state=NodeState.DRAINING)]
    assert [move.node.name for move in plan_rebalance(nodes, parse_ratio("1:1:0")).moves] == ["prefill-1"]
    with pytest.raises(RebalanceError, match="several models"):
        plan_rebalance([*pool(1, 0, 0), replace(node("y", P), model="other")], parse_ratio("1:1:0"))


@pytest.mark.parametrize(
    ("sighting", "health"),
    [
        (None, Health.STALE),
        (Sighting("ready", 10.1), Health.STALE),
        (Sighting("unreachable", 11.0), Health.STALE),
        (Sighting("ready", 10.0), Health.HEALTHY),
        (Sighting("stalled", 0.0), Health.STALLED),
        (Sighting("unreachable", 0.0), Health.UNREACHABLE),
        (Sighting("something new", 0.0), Health.UNREACHABLE),
    ],
)
def test_only_a_fresh_sample_says_anything(sighting, health):
    assert judge_health(sighting) is health


WELL, ILL, OLD = Sighting("ready", 1.0), Sighting("unreachable", 1.0), Sighting("ready", 99.0)
PAIR = [node("p1", P), node("p2", P)]


@pytest.mark.parametrize(
    ("sightings", "automatic", "force", "words"),
    [
        ({"p1": WELL, "p2": WELL}, True, False, ""),
        ({"p1": OLD, "p2": WELL}, True, False, "p1 is stale: last seen 99 s ago"),
        ({"p1": OLD, "p2": WELL}, True, True, "p1 is stale"),
        ({"p1": OLD, "p2": WELL}, False, False, ""),
        ({"p1": WELL, "p2": OLD}, False, False, "no other prefill node is known to be healthy: p2 is stale"),
        ({"p1": WELL}, False, False, "no observer has reported it"),
        ({"p1": WELL, "p2": ILL}, False, False, "no other prefill node is healthy"),
        ({"p1": WELL, "p2": ILL}, False, True, ""),
        ({}, False, True, ""),
    ],
)
def test_a_node_is_held_only_while_another_one_is_seen_to_serve(sightings, automatic, force, words):
    reason = why_not_held(PAIR, PAIR[0], sightings, automatic=automatic, force=force)
    assert words in reason
    assert bool(words) == bool(reason)


def test_sightings_grow_old_with_the_snapshot_that_they_are_in():
    raw = b'{"now_s": 100.0, "nodes": [{"name": "p1", "state": "ready", "age_s": 0.5, "more": 1}], "tiles": {}}'
    assert read_snapshot(raw, 101.0) == {"p1": Sighting("ready", 1.5)}
    assert judge_health(read_snapshot(raw, 120.0)["p1"]) is Health.STALE
    assert read_snapshot(None, 0.0) == {}


def rest(**facts):
    return {"running": 0, "waiting": 0, "pulling": 0, "leases": 0, "error": "", **facts}


@pytest.mark.parametrize(
    ("seen", "verdict", "waiting_for"),
    [
        ({}, Verdict.AGAIN, ["gw has not been heard", "n has not been heard"]),
        ({"gw": {"requests": 0}, "n": rest()}, Verdict.DONE, []),
        ({"gw": {"requests": 2}, "n": rest()}, Verdict.AGAIN, ["gw counts 2 requests"]),
        ({"gw": {"requests": 0}, "n": rest(leases=1, pulling=2)}, Verdict.AGAIN, ["n counts 2 pulling, 1 leases"]),
        ({"gw": {"requests": 0}, "n": {"error": "timed out"}}, Verdict.AGAIN, ["n: timed out"]),
        ({"gw": {"requests": 0}, "n": {"running": 0, "waiting": None}}, Verdict.DONE, []),
    ],
)
def test_a_node_is_at_rest_when_every_source_has_said_so(seen, verdict, waiting_for):
    found, countdown = judge_rest(["gw", "n"], seen)
    assert (found, countdown["waiting_for"]) == (verdict, waiting_for)


def test_the_countdown_tells_requests_handoffs_and_generations_apart():
    _, countdown = judge_rest(
        ["gw", "n"], {"gw": {"requests": 3}, "n": rest(running=2, waiting=1, pulling=4, leases=1)}
    )
    del countdown["waiting_for"]
    assert countdown == {"requests_in_flight": 3, "handoffs_in_flight": 5, "generations_in_flight": 3}


def test_a_timeout_knows_who_has_not_answered():
    plan = StepPlan(Stage.WARM, "n", "ams", 1.0)
    assert evidence_of(Step(plan, StepState.CLAIMED)) == "the agent of site ams has not answered"
    assert evidence_of(Step(plan, StepState.RUNNING, progress={"waiting_for": ["a", "b"]})) == "a; b"


def test_roles_are_the_fleets():
    assert set(ROLES) == set(Role)
