"""The rows of the decision table as requests meet them; the table itself has its own tests."""

import asyncio
from dataclasses import replace

import pytest

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import NodeState, Role
from engine_agents.gateway import transfers
from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, gateway_rig


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


def why(answer):
    return answer.explained["pipeline"], answer.explained["reason"]


async def test_an_outlier_ends_on_the_relay_and_sends_nothing(rig):
    await rig.configure({**ONE_SHOT, "outlier.min_uncached_tokens": 200, "outlier.max_output_tokens": 50})
    prompt = prompt_of(300)
    answer = await rig.complete(prompt, max_tokens=50)
    assert why(answer) == ("outlier", "outlier_short_output")
    assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=50)
    assert answer.explained["eager_tokens"] == 50
    assert rig.link.bytes_total == 0
    assert await rig.settled() == {}


async def test_a_parameter_that_no_cut_survives_goes_direct(rig):
    await rig.configure(ONE_SHOT)
    answer = await rig.complete(prompt_of(300), max_tokens=5, temperature=0.5, seed=3)
    assert why(answer) == ("direct", "parameter")


async def test_a_known_prefix_goes_direct(rig):
    await rig.configure({**ONE_SHOT, "routing.direct_hit_rate": 0.9})
    prompt = prompt_of(640)
    await rig.complete(prompt, max_tokens=5)
    await rig.settled()
    assert why(await rig.complete([*prompt, 97], max_tokens=5)) == ("direct", "hit_rate_high")


async def test_a_full_relay_pool_sends_to_main_decode_while_the_objective_holds(rig):
    crowded = {**ONE_SHOT, "routing.relay_load_ceiling": 0.1}
    await rig.configure(crowded)
    rig.link.reshape({"paused": True})
    async with rig.open_stream(prompt_of(300), max_tokens=5000) as (_, events):
        await anext(events)
        waiting = asyncio.create_task(rig.complete(prompt_of(300, 1), max_tokens=5))
        await rig.until(lambda: rig.gateway.state.index.transfers == 2)
        rig.link.reshape({"paused": False})
        assert why(await waiting) == ("direct", "relay_at_ceiling")
    assert await rig.settled() == {}


async def test_a_full_relay_pool_sheds_what_would_miss_its_objective(rig):
    hasty = {"classes.default.ttft_p90_s": 0.001, "classes.default.ttft_p99_s": 0.001}
    await rig.configure({**ONE_SHOT, **hasty, "routing.relay_load_ceiling": 0.1})
    rig.link.reshape({"paused": True})
    async with rig.open_stream(prompt_of(300), max_tokens=5000) as (_, events):
        await anext(events)
        refused = await rig.complete(prompt_of(300, 1), max_tokens=5)
    assert (refused.status, refused.error["code"]) == (503, "relay_at_ceiling_slo_missed")
    assert int(refused.headers["retry-after"]) >= 1
    await rig.until(lambda: len(rig.records) == 2)
    shed = next(record for record in rig.records if record.status == 503)
    assert (shed.outcome, shed.reason) == ("shed", "relay_at_ceiling_slo_missed")


async def test_a_relay_pool_stays_closed_until_its_load_has_fallen_well_below_the_ceiling(rig):
    await rig.configure({**ONE_SHOT, "routing.relay_load_ceiling": 0.2})  # of 8 slots: shuts at 2, opens below 1
    rig.link.reshape({"paused": True})

    state = rig.gateway.state

    async def pools_after_one_more(seed, others):
        await rig.until(lambda: state.index.transfers == state.requests_in_flight == others)
        asking = asyncio.create_task(rig.complete(prompt_of(64, seed), max_tokens=5))
        await rig.until(lambda: state.index.transfers > others)  # it has been decided on
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return (await rig.state())["pools_at_ceiling"]

    async with rig.open_stream(prompt_of(300, 1), max_tokens=5000) as (_, first):
        await anext(first)
        async with rig.open_stream(prompt_of(300, 2), max_tokens=5000) as (_, second):
            await anext(second)
            assert await pools_after_one_more(3, others=2) == ["ams/emulated-test"]
        assert await pools_after_one_more(4, others=1) == ["ams/emulated-test"]
    assert await pools_after_one_more(5, others=0) == []
    rig.link.reshape({"paused": False})
    assert await rig.settled() == {}


async def test_transfers_in_the_background_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "MAX_TRANSFERS_IN_BACKGROUND", 2)
    async with gateway_rig(tmp_path) as rig:
        await rig.configure({**ONE_SHOT, "routing.relay_load_ceiling": 1.0})
        rig.link.reshape({"paused": True})
        for seed in range(4):
            await rig.complete(prompt_of(200, seed), max_tokens=5)
        await rig.until(lambda: rig.gateway.state.index.transfers == 2)
        assert (await rig.state())["transfers_in_background"] == 2
        rig.link.reshape({"paused": False})
        assert await rig.settled() == {}


async def test_equal_requests_spread_over_the_pool(rig):
    await rig.configure({**DIRECT_ALWAYS, "routing.affinity_weight": 0.0})
    answers = await asyncio.gather(*(rig.complete(prompt_of(64, seed), max_tokens=40) for seed in range(6)))
    assert {answer.explained["main_node"] for answer in answers} == {"fra-md-01", "fra-md-02"}


@pytest.mark.parametrize("may_serve_alone", [True, False])
async def test_without_main_decode_the_policy_says_whether_the_relay_answers_alone(rig, may_serve_alone):
    fleet = rig.fleet()
    nodes = (
        replace(node, state=NodeState.DRAINING if node.role is Role.MAIN else NodeState.READY) for node in fleet.nodes
    )
    policy = apply_changes(DEFAULT_POLICY_DOCUMENT, {**ONE_SHOT, "routing.relay_may_serve_alone": may_serve_alone})
    assert (await rig.put_config(policy, replace(fleet, nodes=tuple(nodes)))).status_code == 200
    prompt = prompt_of(300)
    answer = await rig.complete(prompt, max_tokens=20)
    if may_serve_alone:
        assert why(answer) == ("outlier", "no_main_relay_alone")
        assert answer.token_ids == (await rig.alone(prompt, max_tokens=20))[0]
    else:
        assert (answer.status, answer.error["code"]) == (503, "no_main")
        assert "retry-after" in answer.headers
    assert await rig.settled() == {}


async def test_a_canarys_requests_run_and_are_recorded_under_its_revision_and_sessions_stay_in_their_group(rig):
    relayed = {
        "policy": apply_changes(DEFAULT_POLICY_DOCUMENT, ONE_SHOT),
        "revision": 9,
        "site": None,
        "share": 0.5,
        "salt": "rollout-1",
    }
    answer = await rig.put_config(apply_changes(DEFAULT_POLICY_DOCUMENT, DIRECT_ALWAYS), rig.fleet(), canary=relayed)
    assert (answer.json()["revision"], answer.json()["canary_revision"]) == (1, 9)
    for turn in range(2):
        for session in range(8):
            body = rig.body(prompt_of(200, 8 * turn + session), max_tokens=4)
            headers = {"X-PDD-Session": f"s{session}", "X-Request-Id": f"{session}/{turn}"}
            assert (await rig.http.post(f"{rig.url}/v1/completions", json=body, headers=headers)).status_code == 200
    await rig.until(lambda: len(rig.records) == 16)
    groups = {}
    for record in rig.records:
        groups.setdefault(record.request_id.partition("/")[0], set()).add((record.policy_revision, record.pipeline))
    assert set().union(*groups.values()) == {(1, "direct"), (9, "relay")}
    assert {len(group) for group in groups.values()} == {1}
    text = (await rig.http.get(f"{rig.url}/metrics")).text
    assert 'pdd_policy_canary_revision_info{revision="9",site="ams"} 1.0' in text
    assert 'pdd_policy_revision_info{revision="1",site="ams"} 1.0' in text
    assert await rig.settled() == {}
