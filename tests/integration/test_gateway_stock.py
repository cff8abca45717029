"""The gateway before nodes that behave as a stock vLLM: no extensions, joined tokens, pulls that start one by one."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.fleet import prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, gateway_rig
from tests.stock_vllm import DecodeStream, stock_front

NODES = ("ams-p-01", "ams-rld-01", "fra-md-01")
STOCK = {"routing.relay_load_ceiling": 1.0, "cache.block_tokens": 64}


def text_of(token_ids):
    """What vLLM says for ids: the same as our nodes, but for a half character at the end, which it leaves out."""
    decoder = DecodeStream()
    return "".join(decoder.step(token) for token in token_ids)


@asynccontextmanager
async def stock_rig(tmp_path, changes, tokens_per_chunk):
    """A rig of one P, one RLD and one MD, each behind a front."""
    async with gateway_rig(tmp_path) as rig, AsyncExitStack() as stack:
        fronts = {}
        for name in NODES:
            fronts[name] = await stack.enter_async_context(stock_front(rig.nodes[name].url, rig.http, tokens_per_chunk))
        for name in set(rig.nodes) - {*NODES, "alone"}:
            del rig.nodes[name]
        await rig.configure({**changes, **STOCK}, {name: front.url for name, front in fronts.items()}, "vllm")
        yield rig, fronts


async def relayed(rig, front, prompt, eager, **fields):
    """A streamed answer of which the relay makes at least `eager` tokens before MD has the prompt."""
    front.hold_pulls.clear()
    async with rig.open_stream(prompt, **fields) as (answer, events):
        async for _ in events:
            if len(answer.token_ids) >= eager:
                front.hold_pulls.set()
    return answer


@pytest.mark.parametrize("tokens_per_chunk", [1, 3, 5])
@pytest.mark.parametrize(("changes", "mode"), [(ONE_SHOT, "one_shot"), (CATCH_UP, "catch_up")])
async def test_a_cut_between_joined_tokens_is_exact(tmp_path, changes, mode, tokens_per_chunk):
    async with stock_rig(tmp_path, changes, tokens_per_chunk) as (rig, fronts):
        for seed in range(4):
            prompt = prompt_of(150, seed)
            answer = await relayed(rig, fronts["fra-md-01"], prompt, 20 + seed, max_tokens=100)
            ids, _, finish = await rig.alone(prompt, max_tokens=100)
            assert (answer.token_ids, answer.finish_reason) == (ids, finish)
            assert answer.text == text_of(ids)
            assert answer.explained["handoff_mode"] == mode
            assert answer.explained["eager_tokens"] >= 20
        assert rig.gateway.state.token_mismatches == 0
        assert await rig.settled() == {}


async def test_direct_with_joined_tokens_is_exact(tmp_path):
    async with stock_rig(tmp_path, DIRECT_ALWAYS, 4) as (rig, _):
        prompt = prompt_of(150)
        answer = await rig.complete(prompt, max_tokens=90)
        ids, _, finish = await rig.alone(prompt, max_tokens=90)
        assert (answer.token_ids, answer.text, answer.finish_reason) == (ids, text_of(ids), finish)
        assert answer.explained["pipeline"] == "direct"


async def test_the_relays_own_cap_inside_a_character_loses_nothing(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 4) as (rig, fronts):
        for cap in range(16, 24):
            await rig.configure(
                {**ONE_SHOT, **STOCK, "handoff.relay_max_tokens": cap},
                {name: front.url for name, front in fronts.items()},
                "vllm",
            )
            prompt = prompt_of(150, cap)
            answer = await relayed(rig, fronts["fra-md-01"], prompt, 8, max_tokens=80)
            ids, _, _ = await rig.alone(prompt, max_tokens=80)
            assert (answer.token_ids, answer.text) == (ids, text_of(ids))


async def test_words_seen_before_cost_no_question(tmp_path):
    async with stock_rig(tmp_path, DIRECT_ALWAYS, 1) as (rig, fronts):
        front, prompt = fronts["fra-md-01"], prompt_of(150)
        await rig.complete(prompt, max_tokens=91)
        assert front.detokenized == 0
        front.tokens_per_chunk = 3
        await rig.complete(prompt, max_tokens=91)
        assert 0 < front.detokenized < 90 // 3


async def test_an_overlapping_pull_starts_after_the_first_has_ended(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 1) as (rig, fronts):
        front = fronts["fra-md-01"]
        front.hold_pulls.clear()
        first_prompt = prompt_of(320)
        second_prompt = first_prompt + prompt_of(100, 2)
        first = asyncio.create_task(rig.complete(first_prompt, max_tokens=300))
        await rig.until(lambda: front.pulls == 1)
        second = asyncio.create_task(rig.complete(second_prompt, max_tokens=300))
        relay = rig.nodes["ams-rld-01"].node
        await rig.until(lambda: relay.admission.admitted == 2)
        await rig.until(lambda: rig.gateway.state.index.transfers == 2)
        assert front.pulls == 1
        front.hold_pulls.set()
        for prompt, answer in ((first_prompt, await first), (second_prompt, await second)):
            ids, _, _ = await rig.alone(prompt, max_tokens=300)
            assert (answer.token_ids, answer.text) == (ids, text_of(ids))
        await rig.settled()
        assert (front.pulls, front.most_pulls_at_once) == (2, 1)


async def test_pulls_of_unlike_prompts_go_at_once(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 1) as (rig, fronts):
        front = fronts["fra-md-01"]
        front.hold_pulls.clear()
        both = [asyncio.create_task(rig.complete(prompt_of(200, seed), max_tokens=100)) for seed in range(2)]
        await rig.until(lambda: front.pulls_under_way == 2)
        front.hold_pulls.set()
        await asyncio.gather(*both)
        assert await rig.settled() == {}


async def test_a_pull_that_waits_goes_on_when_the_first_is_given_up(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 1) as (rig, fronts):
        front = fronts["fra-md-01"]
        front.hold_pulls.clear()
        prompt = prompt_of(320)
        first = asyncio.create_task(rig.complete(prompt, max_tokens=3000))
        await rig.until(lambda: front.pulls == 1)
        second = asyncio.create_task(rig.complete(prompt, max_tokens=200))
        await rig.until(lambda: rig.gateway.state.index.transfers == 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await rig.until(lambda: front.pulls == 2)
        front.hold_pulls.set()
        assert (await second).token_ids == (await rig.alone(prompt, max_tokens=200))[0]


async def test_a_stock_link_carries_no_more_transfers_than_the_policy_allows(tmp_path):
    changes = {**ONE_SHOT, "link.ams-fra.max_transfers": 2, "routing.relay_load_ceiling": 1.0}
    async with stock_rig(tmp_path, changes, 1) as (rig, fronts):
        front = fronts["fra-md-01"]
        front.hold_pulls.clear()
        asking = [asyncio.create_task(rig.complete(prompt_of(200, seed), max_tokens=400)) for seed in range(4)]
        await rig.until(lambda: front.pulls_under_way == 2)
        await rig.until(lambda: rig.gateway.state.places.waiting("ams-fra") == 2)
        assert front.pulls == 2
        front.hold_pulls.set()
        for seed, answer in enumerate(await asyncio.gather(*asking)):
            assert answer.token_ids == (await rig.alone(prompt_of(200, seed), max_tokens=400))[0]
        assert await rig.settled() == {}
        assert front.most_pulls_at_once == 2
        waited = [record for record in rig.records if any(stage.name == "queue" for stage in record.stages)]
        assert len(waited) >= 2


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
async def test_what_a_stock_engine_computed_at_the_extend_is_its_own_word(tmp_path, changes):
    async with stock_rig(tmp_path, changes, 1) as (rig, fronts):
        prompt = prompt_of(150)
        answer = await relayed(rig, fronts["fra-md-01"], prompt, 20, max_tokens=200)
        assert answer.token_ids == (await rig.alone(prompt, max_tokens=200))[0]
        await rig.settled()
        (record,) = rig.records
        extended = len(prompt) + record.eager_tokens
        assert record.recomputed_tokens + record.extend_resident_tokens == extended
        assert 0 < record.recomputed_tokens <= record.expected_recomputed_tokens + 1
        assert record.reported_drc_tokens is None, "a pull's cached tokens are the prefill node's"
