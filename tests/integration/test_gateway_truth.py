"""What was foretold against what came: evicted prefixes, stranded KV, and the figures that show both."""

import asyncio

import pytest

from engine_agents.gateway import handoff
from engine_agents.gateway.watch import NodeWatch
from tests.fleet import SECRET, prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, gateway_rig

ADMIN = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
def evicting(rig, monkeypatch):
    """Every main node loses its cache right after the first pull has arrived."""
    pulls = []
    pull = handoff.pull_ahead

    async def pull_then_lose(x, plan, transfer):
        await pull(x, plan, transfer)
        pulls.append(plan.main.name)
        if len(pulls) == 1:
            rig.nodes[plan.main.name].node.engine.store.clear()

    monkeypatch.setattr(handoff, "pull_ahead", pull_then_lose)
    return pulls


async def metrics(rig):
    lines = (await rig.http.get(f"{rig.url}/metrics")).text.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
async def test_what_main_decode_evicted_before_the_extend_is_pulled_again(rig, evicting, changes):
    await rig.configure(changes)
    rig.gateway.state.prefill_s_per_token = 1.0  # computing is far slower than sending
    prompt = prompt_of(320)
    answer = await rig.relayed(prompt, 30, max_tokens=800)
    assert answer.token_ids == (await rig.alone(prompt, max_tokens=800))[0]
    assert len(evicting) == 2
    assert await rig.settled() == {}
    (record,) = rig.records
    assert record.pulled_tokens == 2 * 320
    assert record.recomputed_tokens <= record.expected_recomputed_tokens + 1


async def test_where_computing_is_faster_than_sending_main_decode_computes(rig, evicting):
    await rig.configure(ONE_SHOT)
    prompt = prompt_of(320)
    rig.link.reshape({"paused": True})
    async with rig.open_stream(prompt, max_tokens=120) as (answer, events):
        async for _ in events:
            if len(answer.token_ids) >= 20:
                rig.gateway.state.prefill_s_per_token = 0.0
                rig.link.reshape({"paused": False})
    assert answer.token_ids == (await rig.alone(prompt, max_tokens=120))[0]
    assert len(evicting) == 1
    await rig.settled()
    (record,) = rig.records
    assert record.repulls == 0
    assert record.recomputed_tokens >= 320
    counted = await metrics(rig)
    assert float(counted['pdd_recomputed_tokens_total{kind="evicted"}']) >= 319


async def test_predictions_are_held_against_what_came(rig):
    await rig.configure(DIRECT_ALWAYS)
    prompt = prompt_of(320)
    await rig.complete(prompt, max_tokens=5)
    rig.nodes["ams-p-01"].node.engine.store.clear()  # the index does not know
    await rig.complete(prompt, max_tokens=5)
    await rig.settled()
    first, second = rig.records
    assert (first.predicted_prefix_hit_rate, first.prefix_hit_rate) == (0, 0)
    assert (second.predicted_prefix_hit_rate, second.prefix_hit_rate) == (1, 0)
    assert first.predicted_transfer_s > 0
    assert first.transfer_s > 0
    counted = await metrics(rig)
    assert counted['pdd_transfer_prediction_error_ratio_count{site="ams"}'] == "1.0"
    assert counted['pdd_prefix_hit_prediction_error_ratio_count{site="ams"}'] == "2.0"
    assert counted['pdd_prefix_hit_prediction_error_ratio_bucket{le="0.0",site="ams"}'] == "1.0"
    assert counted['pdd_prefix_hit_prediction_error_ratio_bucket{le="1.0",site="ams"}'] == "2.0"
    assert counted['pdd_class_requests_total{outcome="completed",service_class="default",site="ams"}'] == "2.0"


async def cache_lags(rig):
    counted = await metrics(rig)
    return {float(counted[f'pdd_cache_lag_tokens{{node="fra-md-0{number}",site="ams"}}']) for number in (1, 2)}


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT])
async def test_a_main_node_lags_from_the_moment_that_prefill_has_the_kv(tmp_path, changes):
    async with gateway_rig(tmp_path, prefill_tokens_per_s=1000.0) as rig:
        await rig.configure(changes)
        rig.link.reshape({"paused": True})
        waiting = asyncio.create_task(rig.complete(prompt_of(350), max_tokens=2000))
        await rig.until(lambda: rig.gateway.state.index.transfers)
        assert await cache_lags(rig) == {0.0}, "P has nothing yet that MD could lack"
        await rig.until(lambda: rig.link.flows)
        assert await cache_lags(rig) == {350.0, 0.0}
        rig.link.reshape({"paused": False})
        await waiting
        assert await rig.settled() == {}
        assert await cache_lags(rig) == {0.0}
        (record,) = rig.records
        stages = {stage.name: stage for stage in record.stages}
        assert record.cache_lag_s >= record.transfer_s
        assert record.cache_lag_s <= record.e2e_s - stages["prefill"].end_s


async def test_an_answer_that_ends_before_its_transfer_has_lagged_until_then(tmp_path):
    async with gateway_rig(tmp_path, eos_period=12) as rig:
        await rig.configure(ONE_SHOT)
        rig.link.reshape({"paused": True})
        await rig.complete(prompt_of(200), max_tokens=2000)
        (record,) = rig.records
        assert record.transfer_s is None
        assert 0 < record.cache_lag_s < record.e2e_s
        assert await cache_lags(rig) == {200.0, 0.0}, "the transfer goes on"
        rig.link.reshape({"paused": False})
        assert await rig.settled() == {}
        assert await cache_lags(rig) == {0.0}


async def test_stranded_kv_is_seen_and_can_be_released(rig):
    await rig.configure(DIRECT_ALWAYS)
    p = rig.nodes["ams-p-01"]
    await p.lease(prompt_of(256))
    watch = NodeWatch(rig.gateway.client, rig.gateway.state, rig.gateway.configs)
    await watch.look()
    counted = await metrics(rig)
    stranded = p.node.leases.stranded()
    assert float(counted['pdd_stranded_kv_bytes{node="ams-p-01",site="ams"}']) == stranded.size_bytes > 0
    assert float(counted['pdd_stranded_kv_age_seconds{node="ams-p-01",site="ams"}']) >= 0

    url = f"{rig.url}/admin/v1/leases"
    assert (await rig.http.delete(url)).status_code == 401
    (listed,) = (await rig.http.get(url, headers=ADMIN)).json()["leases"]
    assert (listed["node"], listed["tokens"], listed["attached"]) == ("ams-p-01", 256, False)
    kept = await rig.http.delete(url, headers=ADMIN, params={"older_than_s": 3600})
    assert kept.json() == {"released": 0, "released_bytes": 0, "silent_nodes": []}
    released = await rig.http.delete(url, headers=ADMIN, params={"node": "ams-p-01"})
    assert released.json() == {"released": 1, "released_bytes": stranded.size_bytes, "silent_nodes": []}
    assert len(p.node.leases) == 0
    assert (await rig.http.delete(url, headers=ADMIN, params={"node": "nobody"})).status_code == 404
    assert (await rig.http.delete(url, headers=ADMIN, params={"older_than_s": "soon"})).status_code == 400


async def test_a_lease_that_is_being_read_is_not_released(rig):
    await rig.configure(DIRECT_ALWAYS)
    rig.link.reshape({"paused": True})
    prompt = prompt_of(320)
    waiting = asyncio.create_task(rig.complete(prompt, max_tokens=5))
    p = rig.nodes["ams-p-01"].node
    await rig.until(lambda: any(lease.attached for lease in p.leases))
    reply = await rig.http.delete(f"{rig.url}/admin/v1/leases", headers=ADMIN)
    assert reply.json()["released"] == 0
    rig.link.reshape({"paused": False})
    assert (await waiting).token_ids == (await rig.alone(prompt, max_tokens=5))[0]


@pytest.mark.parametrize(("changes", "max_tokens"), [(DIRECT_ALWAYS, 5), (ONE_SHOT, 800)])
async def test_main_decodes_own_word_on_what_it_had_stands_beside_the_prediction(rig, changes, max_tokens):
    await rig.configure(changes)
    prompt = prompt_of(320)
    await rig.complete(prompt, max_tokens=max_tokens)
    await rig.settled()
    main = rig.records[0].main_node
    await rig.complete([*prompt, *prompt_of(100, 1)], max_tokens=max_tokens)
    await rig.settled()
    rig.nodes[main].node.engine.store.clear()  # the index does not know
    await rig.complete([*prompt, *prompt_of(100, 2)], max_tokens=max_tokens)
    await rig.settled()
    cold, warm, lost = rig.records
    assert {record.main_node for record in rig.records} == {main}
    assert (cold.reported_drc_tokens, cold.drc_resident_tokens) == (0, 0)
    assert warm.drc_resident_tokens >= 320
    # The last token of a prompt always counts as computed.
    assert warm.reported_drc_tokens >= warm.drc_resident_tokens - 1
    assert (lost.reported_drc_tokens, lost.drc_resident_tokens) == (0, warm.drc_resident_tokens)
    counted = await metrics(rig)
    assert counted['pdd_drc_hit_prediction_error_ratio_count{site="ams"}'] == "3.0"
    assert counted['pdd_drc_hit_prediction_error_ratio_bucket{le="0.5",site="ams"}'] == "2.0"


async def test_waiting_for_a_slot_is_a_stage_of_its_own(tmp_path):
    async with gateway_rig(tmp_path, slots=1, decode_step_s=0.005) as rig:
        await rig.configure(DIRECT_ALWAYS, urls={"fra-md-02": "http://127.0.0.1:1"})
        await rig.complete(prompt_of(64, 5), max_tokens=2)  # learns that the second main node is gone
        rig.records.clear()
        async with rig.open_stream(prompt_of(100, 1), max_tokens=60) as (_, events):
            await anext(events)
            behind = asyncio.create_task(rig.complete(prompt_of(100, 2), max_tokens=2))
            await rig.until(lambda: rig.nodes["fra-md-01"].node.admission.waiting)
            async for _ in events:
                pass
        assert (await behind).status == 200
        await rig.settled()
        first, second = sorted(rig.records, key=lambda record: record.received_at_s)
        assert "queue" not in {stage.name for stage in first.stages}
        (queue,) = [stage for stage in second.stages if stage.name == "queue"]
        assert 0 < queue.end_s - queue.start_s < second.e2e_s
