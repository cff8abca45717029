"""What must hold of the twin's model whatever the figures, told by the plain reference."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.domain.routing import Pipeline, Reason
from control.domain.topology import Role
from control.twin.reference import simulate_plainly
from control.twin.scenario import Fault, TwinLink, Workload
from control.twin.state import TURN, FaultKind
from tests.unit.twin.scenarios import PHYSICS, agents, faulty, link, nodes, policy, scenario

NEVER_RELAY = {"routing__relay_when_transfer_exceeds_s": 600, "outlier__enabled": False}


def one_turn(input_tokens: int, output_tokens: int, *, reuse: int = 0, at_s: float = 1.0) -> Workload:
    turns = np.zeros(1, TURN)
    turns[0] = (input_tokens, reuse, reuse, output_tokens, 10_000, 0.0)
    return Workload(np.array([at_s]), np.array([0, 1]), turns)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_scenario_gives_the_same_results(seed) -> None:
    assert simulate_plainly(faulty(seed)).tobytes() == simulate_plainly(faulty(seed)).tobytes()
    assert simulate_plainly(faulty(seed)).tobytes() != simulate_plainly(faulty(seed + 10)).tobytes()


def test_every_turn_ends_and_begins_after_the_one_before_it() -> None:
    case = scenario(3)
    results = simulate_plainly(case)
    first = case.workload.first_turn
    assert (results["end_s"] > 0).all()
    for begin, end in pairwise(first):
        gaps = results["arrived_s"][begin + 1 : end] - results["end_s"][begin : end - 1]
        assert gaps == pytest.approx(case.workload.turns["think_s"][begin + 1 : end], abs=1e-9)


@given(st.integers(0, 10_000), st.floats(0.5, 20.0))
@settings(max_examples=8, deadline=None)
def test_tokens_in_are_tokens_out(seed: int, gbps: float) -> None:
    case = scenario(workload=agents(seed, 12, 4, 1.0), links=(link(gbps),))
    results = simulate_plainly(case)
    served = results["shed"] == 0
    assert results["output_tokens"].sum() == case.workload.turns["output_tokens"].sum()
    assert (results["eager_tokens"] <= results["output_tokens"]).all()
    assert (results["eager_tokens"][results["pipeline"] == Pipeline.DIRECT] == 0).all()
    assert (results["eager_tokens"] == results["output_tokens"])[results["pipeline"] == Pipeline.OUTLIER].all()
    # What crossed the link and what MD had make up the prompt.
    assert (results["sent_tokens"][served] <= results["input_tokens"][served]).all()
    assert (results["sent_tokens"][results["pipeline"] == Pipeline.OUTLIER] == 0).all()
    assert (results["ttft_s"][served] > 0).all()


@given(st.integers(0, 10_000), st.floats(0.2, 10.0), st.floats(1.1, 20.0))
@settings(max_examples=8, deadline=None)
def test_more_bandwidth_never_worsens_the_mean_of_direct_requests(seed: int, gbps: float, times: float) -> None:
    def mean_ttft_s(rate: float) -> float:
        load = agents(seed, 40, 1, 4.0)
        # One turn each, so that the load does not depend on the answers; places enough, so that only the link binds.
        fleet = nodes(4, 0, 1, slots=100, tau1_s=0.0)
        case = scenario(nodes=fleet, policy=policy(**NEVER_RELAY), workload=load)
        only = replace(case, links=(TwinLink("ams", "fra", rate, 0.03, max_transfers=1000),))
        return float(simulate_plainly(only)["ttft_s"].mean())

    assert mean_ttft_s(gbps * 1e9 / 8 * times) <= mean_ttft_s(gbps * 1e9 / 8) + 1e-9


def test_with_an_endless_link_pdd_is_a_single_site() -> None:
    apart = scenario(
        links=(TwinLink("ams", "fra", 1e18, 0.0, max_transfers=1000),),
        physics=PHYSICS._replace(direct_setup_s=0.0, direct_bytes_per_s=1e18),
    )
    beside = replace(apart, nodes=tuple(replace(node, site="ams") for node in apart.nodes), links=())
    first, second = simulate_plainly(apart), simulate_plainly(beside)
    for name in ("ttft_s", "end_s", "sent_tokens", "eager_tokens"):
        assert first[name] == pytest.approx(second[name], rel=1e-9)


def test_plain_time_to_first_token_is_the_sum_of_its_parts() -> None:
    case = scenario(nodes=nodes(1, 0, 1), workload=one_turn(20_000, 100), links=(TwinLink("ams", "fra", 1.25e9, 0.03),))
    case = replace(case, physics=PHYSICS._replace(slow_start=False))
    out = simulate_plainly(case)[0]
    # T_pre + T_x + ρ/2 + τ: three chunks at 15,000 tokens/s, a cold flow's two round trips, one step of a batch of one.
    expected_s = 20_000 / 15_000 * (1 + 10_000 / 1e9) + 0.06 + 20_000 * 50e3 / 1.25e9 + 0.015 + 0.0255
    assert out["ttft_s"] == pytest.approx(expected_s, rel=1e-4)
    assert out["end_s"] - 1.0 - out["ttft_s"] == pytest.approx(99 * 0.0255, rel=1e-6)
    assert out["reason"] == Reason.NO_RELAY


def test_relay_hides_the_transfer_and_hands_over() -> None:
    case = scenario(nodes=nodes(1, 1, 1), workload=one_turn(20_000, 400), links=(link(1.0),))
    plain = simulate_plainly(replace(case, policy=policy(**NEVER_RELAY)))[0]
    relayed = simulate_plainly(case)[0]
    assert relayed["pipeline"] == Pipeline.RELAY
    assert relayed["ttft_s"] < plain["ttft_s"] - relayed["transfer_s"] * 0.9
    assert 0 < relayed["eager_tokens"] <= 400
    assert relayed["stall_s"] > 0 or relayed["eager_tokens"] == 400


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_empty_and_single_tokens_are_served(input_tokens, output_tokens) -> None:
    out = simulate_plainly(scenario(nodes=nodes(1, 1, 1), workload=one_turn(input_tokens, output_tokens)))[0]
    assert out["end_s"] >= out["arrived_s"] + out["ttft_s"] > out["arrived_s"]
    assert out["tpot_s"] == 0.0
    assert (out["input_tokens"], out["output_tokens"]) == (1, 1)


def test_a_prompt_that_main_has_crosses_no_link() -> None:
    out = simulate_plainly(scenario(nodes=nodes(1, 1, 1), workload=one_turn(5000, 10, reuse=5000)))[0]
    assert (out["sent_tokens"], out["pipeline"], out["reason"]) == (0, Pipeline.DIRECT, Reason.TRANSFER_SHORT)


def test_bytes_in_flight_are_not_sent_again() -> None:
    turns = np.zeros(2, TURN)
    turns[0] = (30_000, 0, 0, 5, 10_000, 0.0)
    turns[1] = (30_100, 30_005, 0, 5, 10_000, 0.1)
    load = Workload(np.array([1.0]), np.array([0, 2]), turns)
    always = policy(routing__relay_when_transfer_exceeds_s=0, routing__direct_hit_rate=None)
    case = scenario(nodes=nodes(1, 1, 1), workload=load, links=(link(0.5),), policy=always)
    aware = simulate_plainly(case)
    assert list(aware["sent_tokens"]) == [30_000, 100]
    assert list(simulate_plainly(replace(case, counts_in_flight=False))["sent_tokens"]) == [30_000, 30_100]
    assert aware["ttft_s"][1] < 1.0


def test_requests_survive_their_nodes() -> None:
    results = simulate_plainly(faulty(18))
    served = results["shed"] == 0
    assert results["resumes"].sum() > 0
    assert (results["end_s"] >= results["arrived_s"]).all()
    assert (results["ttft_s"][served] > 0).all()


def test_a_cut_link_holds_back_what_must_cross_it_until_it_is_back() -> None:
    cut = (Fault(5.0, FaultKind.LINK_RATE, 0, 0.0), Fault(65.0, FaultKind.LINK_RATE, 0, 1.0))
    case = scenario(nodes=nodes(1, 0, 1), workload=one_turn(20_000, 10))
    whole, broken = (simulate_plainly(replace(case, faults=faults))[0] for faults in ((), cut))
    assert broken["ttft_s"] == pytest.approx(whole["ttft_s"] + 60.0)


def test_a_full_main_makes_requests_wait_in_their_order() -> None:
    load = agents(4, 12, 1, 50.0)
    case = scenario(nodes=nodes(12, 0, 1, slots=1), workload=load, policy=policy(**NEVER_RELAY))
    results = simulate_plainly(replace(case, links=(TwinLink("ams", "fra", 1e15, 0.0, max_transfers=99),)))
    ends = np.sort(results["end_s"])
    work_s = np.sort(case.workload.turns["output_tokens"]) * 0.0255
    assert ends[-1] - results["arrived_s"].min() >= work_s.sum() - 1e-6


def test_a_node_without_room_keeps_no_more_than_it_has() -> None:
    roomy = scenario(5)
    tight = replace(
        roomy,
        nodes=tuple(replace(node, capacity_tokens=60_000) if node.role is Role.MAIN else node for node in roomy.nodes),
    )
    assert simulate_plainly(tight)["sent_tokens"].sum() > simulate_plainly(roomy)["sent_tokens"].sum()
