"""The decision table, row by row, and the choice of nodes."""

import pytest

from control.domain.routing import (
    HIT_RULE_OFF,
    NodeChoice,
    NodeKnobs,
    NodeView,
    Pipeline,
    Reason,
    RouteInputs,
    RouteKnobs,
    best_node,
    choose_nodes,
    choose_pipeline,
    link_cost,
    relay_at_ceiling,
)

KNOBS = RouteKnobs(0.3, 0.95, 0.85, 10.0, True, 32_768, 500, False)
LONG = RouteInputs(1000, 0, 0, 1000, 4.0, 6.0, 0.2, False, True, True, False)


@pytest.mark.parametrize(
    ("inputs", "knobs", "expected"),
    [
        (LONG, KNOBS, (Pipeline.RELAY, Reason.TRANSFER_LONG)),
        (LONG._replace(has_main=False), KNOBS, (Pipeline.NONE, Reason.NO_MAIN)),
        (
            LONG._replace(has_main=False),
            KNOBS._replace(relay_may_serve_alone=True),
            (Pipeline.OUTLIER, Reason.NO_MAIN_RELAY_ALONE),
        ),
        (
            LONG._replace(has_main=False, relay_utilization=0.9),
            KNOBS._replace(relay_may_serve_alone=True),
            (Pipeline.NONE, Reason.NO_MAIN),
        ),
        (
            LONG._replace(input_tokens=40_000, max_output_tokens=500),
            KNOBS,
            (Pipeline.OUTLIER, Reason.OUTLIER_SHORT_OUTPUT),
        ),
        (LONG._replace(input_tokens=40_000, max_output_tokens=501), KNOBS, (Pipeline.RELAY, Reason.TRANSFER_LONG)),
        (
            LONG._replace(input_tokens=40_000, max_output_tokens=5),
            KNOBS._replace(outlier_enabled=False),
            (Pipeline.RELAY, Reason.TRANSFER_LONG),
        ),
        (LONG._replace(predicted_transfer_s=0.3), KNOBS, (Pipeline.DIRECT, Reason.TRANSFER_SHORT)),
        (
            LONG._replace(resident_tokens=900, in_flight_tokens=50),
            KNOBS,
            (Pipeline.DIRECT, Reason.HIT_RATE_HIGH),
        ),
        (
            LONG._replace(resident_tokens=1000),
            KNOBS._replace(direct_hit_rate=HIT_RULE_OFF),
            (Pipeline.RELAY, Reason.TRANSFER_LONG),
        ),
        (LONG._replace(parameter_forces_direct=True), KNOBS, (Pipeline.DIRECT, Reason.PARAMETER)),
        (LONG._replace(has_relay=False), KNOBS, (Pipeline.DIRECT, Reason.NO_RELAY)),
        (LONG._replace(relay_utilization=0.85), KNOBS, (Pipeline.DIRECT, Reason.RELAY_AT_CEILING)),
        (
            LONG._replace(relay_utilization=0.85, predicted_direct_ttft_s=11.0),
            KNOBS,
            (Pipeline.NONE, Reason.RELAY_AT_CEILING_SLO_MISSED),
        ),
    ],
)
def test_the_first_row_that_applies_decides(inputs, knobs, expected) -> None:
    assert choose_pipeline(inputs, knobs) == expected


def test_a_forced_direct_request_is_not_shed_for_a_full_relay() -> None:
    full = LONG._replace(relay_utilization=1.0, predicted_direct_ttft_s=99.0, parameter_forces_direct=True)
    assert choose_pipeline(full, KNOBS) == (Pipeline.DIRECT, Reason.PARAMETER)


def test_the_ceiling_lets_go_only_below_its_hysteresis() -> None:
    assert not relay_at_ceiling(0.8, was_at_ceiling=False, ceiling=0.85)
    assert relay_at_ceiling(0.8, was_at_ceiling=True, ceiling=0.85)
    assert not relay_at_ceiling(0.75, was_at_ceiling=True, ceiling=0.85)


NODE_KNOBS = NodeKnobs(affinity_weight=1.0, max_load_skew=1.5)


def view(
    name: str,
    *,
    running: int = 0,
    matched: int = 0,
    site: str = "a",
    is_eligible: bool = True,
    fingerprint: str = "",
) -> NodeView:
    return NodeView(name, site, is_eligible, running, 4, matched, fingerprint)


def test_the_node_that_knows_the_prefix_wins() -> None:
    assert best_node(100, [view("n1"), view("n2", matched=90, running=2)], NODE_KNOBS).name == "n2"


def test_a_hot_node_gets_no_affinity() -> None:
    hot = view("n2", matched=100, running=8)
    assert best_node(100, [view("n1", running=1), hot], NODE_KNOBS._replace(affinity_weight=9.0)).name == "n1"


def test_a_node_that_is_not_eligible_is_never_chosen() -> None:
    assert best_node(100, [view("n1", is_eligible=False, matched=100)], NODE_KNOBS) is None


def test_the_relay_node_stands_beside_the_prefill_node() -> None:
    choice = choose_nodes(
        100,
        [view("p1", site="a"), view("p2", site="b", matched=100)],
        [view("r1", site="a"), view("r2", site="b", running=3)],
        [view("m1", site="c")],
        NODE_KNOBS,
    )
    assert choice == NodeChoice("p2", "r2", "m1")


def test_without_a_prefill_node_nothing_is_chosen() -> None:
    assert choose_nodes(100, [], [view("r")], [view("m")], NODE_KNOBS) == NodeChoice(None, None, None)


P_AT_A = [view("p", site="a", fingerprint="x")]


def test_nodes_whose_kv_is_of_another_kind_are_left_out() -> None:
    relays = [view("r1", fingerprint="y"), view("r2", fingerprint="x", running=3)]
    mains = [view("m1", site="b", fingerprint="y", matched=100), view("m2", site="b", running=3)]
    assert choose_nodes(100, P_AT_A, relays, mains, NODE_KNOBS) == NodeChoice("p", "r2", "m2")
    assert choose_nodes(100, P_AT_A, relays[:1], mains[:1], NODE_KNOBS) == NodeChoice("p", None, None)
    unknown = [view("p", site="a")]
    assert choose_nodes(100, unknown, relays, mains, NODE_KNOBS) == NodeChoice("p", "r1", "m1")


@pytest.mark.parametrize(
    ("near", "far", "chosen"),
    [
        ({}, {}, "near"),
        ({"running": 1}, {}, "near"),
        ({"running": 3}, {}, "far"),
        ({}, {"matched": 90}, "far"),
        ({}, {"matched": 40}, "near"),
        ({"running": 1}, {"matched": 100, "running": 8}, "near"),
    ],
)
def test_the_way_to_main_decode_counts_beside_its_load_and_its_prefix(near, far, chosen) -> None:
    mains = [view("far", site="c", **far), view("near", site="b", **near)]
    seconds = {("a", "b"): 1.0, ("a", "c"): 2.0, ("b", "c"): 0.1}
    assert choose_nodes(100, P_AT_A, [], mains, NODE_KNOBS, transfer_s=seconds).main == chosen


def test_a_way_counts_against_the_shortest_one_only() -> None:
    assert [link_cost(seconds, 2.0) for seconds in (2.0, 4.0, 8.0, float("inf"))] == [0.0, 0.5, 0.75, 1.0]
    assert link_cost(0.0, 0.0) == 0.0
    mains = [view("m1", site="b", running=1), view("m2", site="b")]
    slow = {("a", "b"): 60.0}
    assert choose_nodes(100, P_AT_A, [], mains, NODE_KNOBS, transfer_s=slow).main == "m2"
