"""DIRECT, RELAY and both handoffs against one node alone: every id, every character, whatever the timing."""

import asyncio

import pytest

from tests.fleet import prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, RELAY_ALWAYS, gateway_rig


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


async def test_direct_equals_one_node(rig):
    await rig.configure(DIRECT_ALWAYS)
    prompt = prompt_of(300)
    answer = await rig.complete(prompt, max_tokens=60)
    assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=60)
    assert answer.explained["pipeline"] == "direct"
    assert answer.explained["main_node"] == "fra-md-01"
    assert (
        answer.explained["pulled_bytes"] == rig.link.bytes_by_pipeline["direct"]
        or answer.explained["pulled_tokens"] == 300
    )


@pytest.mark.parametrize(("changes", "mode"), [(ONE_SHOT, "one_shot"), (CATCH_UP, "catch_up")])
async def test_relay_equals_one_node_in_both_handoff_modes(rig, changes, mode):
    await rig.configure(changes)
    prompt = prompt_of(300)
    answer = await rig.relayed(prompt, 30, max_tokens=200)
    assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=200)
    assert (answer.explained["pipeline"], answer.explained["handoff_mode"]) == ("relay", mode)
    assert 30 <= answer.explained["eager_tokens"] < 200
    assert answer.explained["recomputed_tokens"] <= answer.explained["expected_recomputed_tokens"] + 1
    assert answer.is_done
    assert await rig.settled() == {}


async def test_catch_up_hands_over_in_batches(rig):
    await rig.configure(CATCH_UP)
    answer = await rig.relayed(prompt_of(300), 40, max_tokens=200)
    assert answer.explained["handoff_batches"] >= 1
    assert answer.explained["expected_recomputed_tokens"] < answer.explained["eager_tokens"]
    assert rig.gateway.state.token_mismatches == 0


async def test_many_at_once_are_all_exact_whatever_the_interleaving(rig):
    await rig.configure({**RELAY_ALWAYS, "handoff.one_shot_max_tokens": 6, "routing.relay_load_ceiling": 1.0})
    prompts = [prompt_of(100 + 17 * number, number) for number in range(16)]
    answers = await asyncio.gather(*(rig.complete(prompt, max_tokens=50) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=50)
    assert await rig.settled() == {}


async def test_a_cut_before_the_relays_first_token_is_exact(tmp_path):
    async with gateway_rig(tmp_path, prefill_tokens_per_s=3000.0) as rig:
        await rig.configure(ONE_SHOT)
        prompt = prompt_of(200)
        answer = await rig.complete(prompt, max_tokens=20)
        assert answer.token_ids == (await rig.alone(prompt, max_tokens=20))[0]


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, CATCH_UP])
async def test_one_token_is_one_token(rig, changes):
    await rig.configure(changes)
    prompt = prompt_of(100)
    answer = await rig.complete(prompt, max_tokens=1)
    ids, text, _ = await rig.alone(prompt, max_tokens=1)
    assert (answer.token_ids, answer.text, answer.finish_reason) == (ids, text, "length")
    assert answer.usage["completion_tokens"] == 1


async def test_the_limit_may_fall_on_the_cut(rig):
    await rig.configure({**ONE_SHOT, "handoff.relay_max_tokens": 22})
    for limit in range(20, 25):
        prompt = prompt_of(150, limit)
        answer = await rig.relayed(prompt, 18, max_tokens=limit)
        assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=limit)


async def test_the_relay_stops_at_its_cap_and_the_stream_waits_for_main_decode(rig):
    await rig.configure({**ONE_SHOT, "handoff.relay_max_tokens": 12})
    rig.link.reshape({"paused": True})
    prompt = prompt_of(200)
    async with rig.open_stream(prompt, max_tokens=60) as (answer, events):
        reading = asyncio.create_task(anext_until(events, answer, 60))
        relays = [rig.nodes[name].node for name in ("ams-rld-01", "ams-rld-02")]
        await rig.until(lambda: sum(relay.counters.completed for relay in relays) == 1)
        assert len(answer.token_ids) <= 12
        rig.link.reshape({"paused": False})
        await reading
    assert answer.token_ids == (await rig.alone(prompt, max_tokens=60))[0]
    assert answer.explained["eager_tokens"] <= 12


async def anext_until(events, answer, tokens):
    async for _ in events:
        pass
    assert len(answer.token_ids) == tokens


async def test_a_stop_string_across_the_cut_is_found_and_never_shown(rig):
    prompt = prompt_of(200)
    ids, text, _ = await rig.alone(prompt, max_tokens=120)
    await rig.configure({**ONE_SHOT, "handoff.relay_max_tokens": 40})
    made = (await rig.nodes["alone"].complete(prompt, max_tokens=40))["choices"][0]["text"]
    stop = text[len(made) - 4 : len(made) + 4]
    answer = await rig.relayed(prompt, 20, max_tokens=120, stop=[stop])
    assert answer.text == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    assert answer.token_ids == ids[: len(answer.token_ids)]
    assert await rig.settled() == {}


async def test_text_held_back_for_a_stop_string_is_sent_when_it_turns_out_to_be_none(rig):
    await rig.configure(ONE_SHOT)
    prompt = prompt_of(200)
    _, text, _ = await rig.alone(prompt, max_tokens=80)
    near_misses = [text[start : start + 3] + "\x00" for start in (10, 30, 50)]
    answer = await rig.relayed(prompt, 20, max_tokens=80, stop=near_misses)
    assert (answer.text, answer.finish_reason) == (text, "length")


async def test_every_chunk_of_a_stream_is_whole_characters(rig):
    await rig.configure({**ONE_SHOT, "routing.relay_load_ceiling": 1.0})
    for seed in range(6):
        prompt = prompt_of(120, seed)
        answer = await rig.relayed(prompt, 10 + seed, max_tokens=60)
        _, text, _ = await rig.alone(prompt, max_tokens=60)
        assert answer.text == text
        whole = "".join(choice["text"] for chunk in answer.chunks[:-2] for choice in chunk["choices"])
        assert "\ufffd" not in whole


async def test_end_of_text_on_the_relay_wins_and_the_transfer_finishes(tmp_path):
    async with gateway_rig(tmp_path, eos_period=12) as rig:
        await rig.configure(ONE_SHOT)
        prompt = prompt_of(200)
        rig.link.reshape({"paused": True})
        answer = await rig.complete(prompt, max_tokens=2000)
        assert (answer.token_ids, answer.text, answer.finish_reason) == await rig.alone(prompt, max_tokens=2000)
        assert answer.finish_reason == "stop"
        assert answer.explained["eager_tokens"] == len(answer.token_ids)
        state = await rig.state()
        assert (state["transfers_in_background"], state["requests_in_flight"]) == (1, 0)
        rig.link.reshape({"paused": False})
        assert await rig.settled() == {}
        assert rig.nodes["fra-md-01"].node.counters.pulled_tokens == 200


async def test_the_record_tells_the_whole_story(rig):
    await rig.configure(CATCH_UP)
    await rig.relayed(prompt_of(300), 40, max_tokens=800)
    await rig.settled()
    (record,) = rig.records
    assert (record.pipeline, record.reason, record.outcome, record.status) == (
        "relay",
        "transfer_long",
        "completed",
        200,
    )
    assert (record.input_tokens, record.output_tokens, record.uncached_tokens) == (300, 800, 300)
    assert (record.prefill_node, record.link) == ("ams-p-01", "ams-fra")
    assert (record.cached_tokens, record.pulled_tokens, record.resumes) == (0, 300, 0)
    assert record.handoff_batches >= 1
    names = [stage.name for stage in record.stages]
    assert set(names) == {"tokenize", "prefill", "kv_rdma", "kv_wan", "relay_decode", "handoff", "main_decode"}
    assert all(0 <= stage.start_s <= stage.end_s <= record.e2e_s for stage in record.stages)
    assert 0 < record.ttft_s <= record.ttst_s <= record.e2e_s
    assert record.max_itl_s >= record.tpot_s > 0


async def test_main_decode_computes_the_prompt_itself_when_no_prefill_node_is_left(rig):
    await rig.configure(DIRECT_ALWAYS, urls={"ams-p-01": "http://127.0.0.1:1"})
    prompt = prompt_of(100)
    answer = await rig.complete(prompt, max_tokens=20)
    assert answer.token_ids == (await rig.alone(prompt, max_tokens=20))[0]
    assert answer.explained["prefill_node"] == ""
