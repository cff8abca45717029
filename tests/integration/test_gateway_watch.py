"""What the gateway learns by looking at its nodes: which are frozen, which were restarted, how much each can hold."""

import contextlib
import signal

import pytest

from control.site_secret import SiteSecret
from engine_agents.gateway.node_client import Deadlines, NodeClient
from engine_agents.gateway.watch import LOOKS_UNTIL_LOST, NodeWatch
from tests.fleet import SECRET, emulated_process, instant_node, prompt_of
from tests.gateways import DIRECT_ALWAYS, gateway_rig

STEP_S = 0.004


@contextlib.asynccontextmanager
async def watch_of(rig, look_s=5.0):
    client = NodeClient(SiteSecret(SECRET), Deadlines(look_s=look_s))
    try:
        yield NodeWatch(client, rig.gateway.state, rig.gateway.configs)
    finally:
        await client.close()


async def read(events, answer, tokens):
    async for _ in events:
        if len(answer.token_ids) >= tokens:
            return


async def test_a_frozen_node_loses_its_work_to_another(tmp_path):
    victim = instant_node("fra-md-01", decode_step_s=STEP_S)
    async with (
        gateway_rig(tmp_path, decode_step_s=STEP_S) as rig,
        emulated_process([victim], tmp_path) as host,
        watch_of(rig, look_s=0.5) as watch,
    ):
        await rig.configure(DIRECT_ALWAYS, urls=host.urls)
        prompt = prompt_of(100)
        async with rig.open_stream(prompt, max_tokens=100) as (answer, events):
            await read(events, answer, 20)
            host.process.send_signal(signal.SIGSTOP)
            for _ in range(LOOKS_UNTIL_LOST):
                await watch.look()
            await read(events, answer, 10_000)
        host.process.kill()
        assert answer.token_ids == (await rig.alone(prompt, max_tokens=100))[0]
        assert (answer.explained["main_node"], answer.explained["resumes"]) == ("fra-md-02", 1)
        assert await rig.settled() == {}


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        await rig.configure(DIRECT_ALWAYS)
        yield rig


async def test_a_restarted_node_is_thought_empty(rig):
    prompt = prompt_of(320)
    first = await rig.complete(prompt, max_tokens=5)
    main = rig.nodes[first.explained["main_node"]].node
    async with watch_of(rig) as watch:
        await watch.look()
        again = await rig.complete(prompt, max_tokens=5)
        main.id = "another start"
        main.engine.store.clear()
        await watch.look()
        rig.gateway.state.index.drop_node("fra-md-02")
        after = await rig.complete(prompt, max_tokens=5)
    assert again.explained["uncached_tokens"] == 0
    assert after.explained["uncached_tokens"] == 320
    assert first.token_ids == again.token_ids == after.token_ids


async def test_the_index_holds_no_more_than_the_node(rig):
    for name in ("fra-md-01", "fra-md-02"):
        rig.nodes[name].node.engine.store.capacity_tokens = 640
    async with watch_of(rig) as watch:
        await watch.look()
    for seed in range(6):
        await rig.complete(prompt_of(320, seed), max_tokens=2)
    held = rig.gateway.state.index
    assert max(held.resident_blocks(name) for name in ("fra-md-01", "fra-md-02")) == 10


async def test_a_node_that_answers_again_is_used_again(rig):
    state = rig.gateway.state
    state.lost("fra-md-01")
    assert not state.breakers.allows("fra-md-01")
    async with watch_of(rig) as watch:
        await watch.look()
    assert state.breakers.allows("fra-md-01")
