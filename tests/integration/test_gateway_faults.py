"""Nodes that die under a request: the client sees a pause, no token twice and none missing."""

import asyncio
import contextlib

import pytest

from tests.fleet import emulated_process, instant_node, prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, gateway_rig

STEP_S = 0.004


@contextlib.asynccontextmanager
async def rig_with_victim(tmp_path, changes, *names, **fields):
    """A rig in which the named nodes live in a process that can be killed."""
    victims = [instant_node(name, decode_step_s=STEP_S, **fields) for name in names]
    async with (
        gateway_rig(tmp_path, decode_step_s=STEP_S, **fields) as rig,
        emulated_process(victims, tmp_path) as host,
    ):
        await rig.configure(changes, urls=host.urls)
        yield rig, host.process


async def read(events, answer, tokens):
    async for _ in events:
        if len(answer.token_ids) >= tokens:
            return


async def kill(process):
    process.kill()
    await process.wait()


async def assert_answer_is_whole(rig, answer, prompt, max_tokens):
    expected = await rig.alone(prompt, max_tokens=max_tokens)
    assert (answer.token_ids, answer.text, answer.finish_reason) == expected
    assert answer.is_done
    assert answer.explained["resumes"] >= 1
    assert await rig.settled() == {}


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, CATCH_UP])
async def test_main_decode_killed_mid_stream(tmp_path, changes):
    async with rig_with_victim(tmp_path, changes, "fra-md-01") as (rig, process):
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=200) as (answer, events):
            await read(events, answer, 60)
            await kill(process)
            await read(events, answer, 10_000)
        await assert_answer_is_whole(rig, answer, prompt, 200)
        assert answer.explained["main_node"] == "fra-md-02"


async def test_relay_killed_while_the_kv_is_on_its_way(tmp_path):
    async with rig_with_victim(tmp_path, ONE_SHOT, "ams-rld-01") as (rig, process):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=200) as (answer, events):
            await read(events, answer, 20)
            await kill(process)
            await read(events, answer, 60)
            assert len(answer.token_ids) >= 60
            rig.link.reshape({"paused": False})
            await read(events, answer, 10_000)
        await assert_answer_is_whole(rig, answer, prompt, 200)
        assert answer.explained["relay_node"] == "ams-rld-02"


async def test_all_relays_killed_leaves_the_stream_waiting_for_main_decode(tmp_path):
    async with rig_with_victim(tmp_path, ONE_SHOT, "ams-rld-01", "ams-rld-02") as (rig, process):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=100) as (answer, events):
            await read(events, answer, 20)
            await kill(process)
            rig.link.reshape({"paused": False})
            await read(events, answer, 10_000)
        await assert_answer_is_whole(rig, answer, prompt, 100)


async def test_main_decode_killed_while_it_pulls(tmp_path):
    async with rig_with_victim(tmp_path, ONE_SHOT, "fra-md-01") as (rig, process):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=200) as (answer, events):
            await read(events, answer, 20)
            await rig.until(lambda: rig.link.flows)
            await kill(process)
            rig.link.reshape({"paused": False})
            await read(events, answer, 10_000)
        await assert_answer_is_whole(rig, answer, prompt, 200)
        assert answer.explained["main_node"] == "fra-md-02"


async def test_all_main_decode_killed_lets_the_relay_finish_alone(tmp_path):
    async with rig_with_victim(tmp_path, ONE_SHOT, "fra-md-01", "fra-md-02") as (rig, process):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=150) as (answer, events):
            await read(events, answer, 20)
            await kill(process)
            await read(events, answer, 10_000)
        rig.link.reshape({"paused": False})
        await assert_answer_is_whole(rig, answer, prompt, 150)
        assert answer.explained["eager_tokens"] == 150


async def test_prefill_killed_during_the_transfer(tmp_path):
    # More KV than the sockets between P and the link can hold, so that a part of it dies with P.
    one_stream = {**ONE_SHOT, "link.ams-fra.streams_per_transfer": 1}
    async with rig_with_victim(tmp_path, one_stream, "ams-p-01", kv_bytes_per_token=4096) as (rig, process):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(4000)
        async with rig.open_stream(prompt, max_tokens=120) as (answer, events):
            await read(events, answer, 20)
            await rig.until(lambda: rig.link.flows)
            await kill(process)
            rig.link.reshape({"paused": False})
            await read(events, answer, 10_000)
        await assert_answer_is_whole(rig, answer, prompt, 120)


async def test_a_node_that_is_down_from_the_start_costs_a_retry(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        await rig.configure(DIRECT_ALWAYS, urls={"fra-md-01": "http://127.0.0.1:1"})
        prompt = prompt_of(200)
        first = await rig.complete(prompt, max_tokens=20)
        second = await rig.complete(prompt, max_tokens=20)
        assert first.token_ids == second.token_ids == (await rig.alone(prompt, max_tokens=20))[0]
        assert (first.explained["resumes"], second.explained["resumes"]) == (1, 0)


async def test_a_fleet_that_is_gone_is_a_status_and_leaves_nothing_behind(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        names = ("ams-p-01", "ams-rld-01", "ams-rld-02", "fra-md-01", "fra-md-02")
        await rig.configure(ONE_SHOT, urls=dict.fromkeys(names, "http://127.0.0.1:1"))
        answer = await rig.complete(prompt_of(20), max_tokens=20)
        assert answer.status in {502, 503}
        assert answer.error["type"] == "server_error"
        assert await rig.settled() == {}


async def test_when_everything_dies_mid_stream_the_client_gets_an_error_event(tmp_path):
    names = ("ams-p-01", "ams-rld-01", "ams-rld-02", "fra-md-01", "fra-md-02")
    async with rig_with_victim(tmp_path, DIRECT_ALWAYS, *names) as (rig, process):
        prompt = prompt_of(200)
        async with rig.open_stream(prompt, max_tokens=4000) as (answer, events):
            await read(events, answer, 20)
            await kill(process)
            await read(events, answer, 10_000)
        assert answer.error["type"] == "server_error"
        ids, _, _ = await rig.alone(prompt, max_tokens=len(answer.token_ids))
        assert answer.token_ids == ids
        await rig.until(lambda: rig.records)
        assert rig.records[0].outcome in {"failed", "shed"}
        assert await rig.settled() == {}


async def test_a_busy_main_node_is_said_as_busy(tmp_path):
    nodes = [instant_node(name, decode_step_s=STEP_S) for name in ("ams-p-01", "alone")]
    nodes.append(instant_node("fra-md-01", decode_step_s=STEP_S, slots=1, queue_limit=0))
    async with gateway_rig(tmp_path, nodes) as rig:
        await rig.configure(DIRECT_ALWAYS)
        async with rig.open_stream(prompt_of(50), max_tokens=5000) as (answer, events):
            await read(events, answer, 2)
            refused = await rig.complete(prompt_of(50, 1), max_tokens=5)
        assert (refused.status, refused.error["code"]) == (503, "nodes_busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert await rig.settled() == {}


async def test_many_streams_survive_one_death(tmp_path):
    changes = {**ONE_SHOT, "routing.relay_load_ceiling": 1.0}
    async with rig_with_victim(tmp_path, changes, "fra-md-01") as (rig, process):
        prompts = [prompt_of(150, seed) for seed in range(8)]
        asking = [asyncio.create_task(rig.stream(prompt, max_tokens=120)) for prompt in prompts]
        await rig.until(lambda: rig.gateway.state.running("fra-md-01") >= 2)
        await asyncio.sleep(0.1)
        await kill(process)
        for prompt, answer in zip(prompts, await asyncio.gather(*asking), strict=True):
            assert answer.token_ids == (await rig.alone(prompt, max_tokens=120))[0]
        assert await rig.settled() == {}
