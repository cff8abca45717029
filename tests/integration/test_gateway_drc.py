"""What crosses the WAN, in bytes: only what MD lacks, and nothing twice."""

import asyncio

import pytest

from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, KV_BYTES_PER_TOKEN, ONE_SHOT, gateway_rig

FRAMING_BYTES_PER_TOKEN = 4  # frames, hashes and checksums of 64-token blocks
FRAMING_BYTES = 400


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


def assert_carries(bytes_sent, tokens):
    """KV of so many tokens and its framing, no block more."""
    assert tokens * KV_BYTES_PER_TOKEN <= bytes_sent
    assert bytes_sent <= tokens * (KV_BYTES_PER_TOKEN + FRAMING_BYTES_PER_TOKEN) + FRAMING_BYTES


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT])
async def test_the_second_turn_of_a_session_moves_only_new_tokens(rig, changes):
    await rig.configure(changes)
    first_prompt = prompt_of(640)
    first = await rig.complete(first_prompt, max_tokens=30)
    await rig.settled()
    assert_carries(rig.link.bytes_total, 640)
    before = rig.link.bytes_total
    second_prompt = first_prompt + first.token_ids + prompt_of(200, 2)
    second = await rig.complete(second_prompt, max_tokens=30)
    await rig.settled()
    assert second.token_ids == (await rig.alone(second_prompt, max_tokens=30))[0]
    assert second.explained["main_node"] == first.explained["main_node"]
    # Whole blocks and the tail behind them: the last token of an answer is the only one that was not evaluated there.
    new_tokens = 200 + 1
    assert second.explained["uncached_tokens"] == new_tokens
    assert_carries(rig.link.bytes_total - before, new_tokens)
    assert second.explained["drc_hit_rate"] >= 640 / len(second_prompt) - 0.01
    assert second.explained["pulled_tokens"] == new_tokens


async def test_a_turn_that_arrives_during_the_last_transfer_sends_nothing_twice(rig):
    await rig.configure(ONE_SHOT)
    rig.link.reshape({"paused": True})
    first_prompt = prompt_of(640)
    first = asyncio.create_task(rig.complete(first_prompt, max_tokens=400))
    relays = [rig.nodes[name].node for name in ("ams-rld-01", "ams-rld-02")]
    await rig.until(lambda: sum(relay.counters.decode_tokens for relay in relays) > 0 and rig.link.flows)
    second_prompt = first_prompt + prompt_of(128, 2)
    second = asyncio.create_task(rig.complete(second_prompt, max_tokens=400))
    await rig.until(lambda: len(rig.transfers()) == 2)
    rig.link.reshape({"paused": False})
    first_answer, second_answer = await asyncio.gather(first, second)
    await rig.settled()
    assert first_answer.token_ids == (await rig.alone(first_prompt, max_tokens=400))[0]
    assert second_answer.token_ids == (await rig.alone(second_prompt, max_tokens=400))[0]
    assert second_answer.explained["uncached_tokens"] == 128
    assert_carries(rig.link.bytes_total, 768)


async def test_a_failed_transfer_leaves_no_mark_behind(rig):
    await rig.configure(DIRECT_ALWAYS)
    rig.link.reshape({"paused": True})
    prompt = prompt_of(320)
    asking = asyncio.create_task(rig.complete(prompt, max_tokens=5))
    await rig.until(lambda: rig.gateway.state.index.transfers == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await rig.settled() == {}
    rig.link.reshape({"paused": False})
    answer = await rig.complete(prompt, max_tokens=5)
    assert answer.explained["uncached_tokens"] == 320
    assert answer.token_ids == (await rig.alone(prompt, max_tokens=5))[0]


async def test_a_prefix_on_its_way_counts_as_being_there(rig):
    await rig.configure({**ONE_SHOT, "routing.direct_hit_rate": 0.9})
    rig.link.reshape({"paused": True})
    prompt = prompt_of(640)
    first = asyncio.create_task(rig.complete(prompt, max_tokens=300))
    await rig.until(lambda: rig.link.flows)
    second = asyncio.create_task(rig.complete(prompt[:630], max_tokens=5))
    await rig.until(lambda: rig.gateway.state.index.transfers == 2)
    rig.link.reshape({"paused": False})
    await first
    answer = await second
    assert (answer.explained["pipeline"], answer.explained["reason"]) == ("direct", "hit_rate_high")
    await rig.settled()
