"""A client that leaves, at every stage: streams, pulls, slots, leases and marks are all given back."""

import asyncio
import contextlib

import pytest

from tests.fleet import prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, gateway_rig


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


@contextlib.asynccontextmanager
async def asking(rig, prompt, **fields):
    """A streaming client; leaving the context closes its connection if the answer still runs."""

    async def ask():
        await rig.stream(prompt, **fields)

    task = asyncio.create_task(ask())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def decoded(rig, role):
    return sum(client.node.counters.decode_tokens for name, client in rig.nodes.items() if role in name)


async def assert_all_is_given_back(rig):
    assert await rig.settled() == {}
    (record,) = rig.records
    assert (record.outcome, record.status) == ("client_closed", 499)


async def test_while_prefilling(tmp_path):
    async with gateway_rig(tmp_path, prefill_tokens_per_s=100.0) as rig:
        await rig.configure(DIRECT_ALWAYS)
        async with asking(rig, prompt_of(1000), max_tokens=5):
            await rig.until(lambda: rig.nodes["ams-p-01"].node.admission.running == 1)
        await assert_all_is_given_back(rig)


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT])
async def test_at_any_step_of_the_event_loop(rig, changes):
    await rig.configure(changes)
    for steps in range(0, 42, 3):
        rig.records.clear()
        async with asking(rig, prompt_of(300, steps), max_tokens=500):
            await rig.until(lambda: rig.gateway.state.requests_in_flight)
            for _ in range(steps):
                await asyncio.sleep(0)
        await assert_all_is_given_back(rig)


async def test_while_main_decode_pulls(rig):
    await rig.configure(DIRECT_ALWAYS)
    rig.link.reshape({"paused": True})
    async with asking(rig, prompt_of(300), max_tokens=5):
        await rig.until(lambda: rig.link.flows)
    await assert_all_is_given_back(rig)


async def test_while_main_decodes(rig):
    await rig.configure(DIRECT_ALWAYS)
    async with asking(rig, prompt_of(300), max_tokens=5000):
        await rig.until(lambda: decoded(rig, "md") > 3)
    await assert_all_is_given_back(rig)


async def test_while_relay_decodes_and_the_kv_is_on_its_way(rig):
    await rig.configure(ONE_SHOT)
    rig.link.reshape({"paused": True})
    async with asking(rig, prompt_of(300), max_tokens=5000):
        await rig.until(lambda: decoded(rig, "rld") > 3 and rig.link.flows)
    await assert_all_is_given_back(rig)
    assert rig.gateway.state.index.match("fra-md-01", ()).in_flight_blocks == 0


async def test_while_the_relay_waits_at_its_cap(rig):
    await rig.configure({**ONE_SHOT, "handoff.relay_max_tokens": 5})
    rig.link.reshape({"paused": True})
    async with asking(rig, prompt_of(300), max_tokens=5000):
        await rig.until(lambda: decoded(rig, "rld") == 5 and rig.link.flows)
    await assert_all_is_given_back(rig)


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
async def test_after_the_handoff(rig, changes):
    await rig.configure(changes)
    async with asking(rig, prompt_of(300), max_tokens=5000):
        await rig.until(lambda: decoded(rig, "md") > 10)
    await assert_all_is_given_back(rig)


async def test_while_catching_up(tmp_path):
    async with gateway_rig(tmp_path, prefill_tokens_per_s=600.0) as rig:
        await rig.configure(CATCH_UP)
        rig.link.reshape({"paused": True})
        async with asking(rig, prompt_of(120), max_tokens=5000):
            await rig.until(lambda: decoded(rig, "rld") > 40)
            rig.link.reshape({"paused": False})
            await rig.until(
                lambda: any(client.node.admission.running for name, client in rig.nodes.items() if "md" in name)
            )
        await assert_all_is_given_back(rig)


async def test_a_client_that_does_not_stream_may_leave_too(rig):
    await rig.configure(DIRECT_ALWAYS)
    task = asyncio.create_task(rig.complete(prompt_of(300), max_tokens=5000))
    await rig.until(lambda: decoded(rig, "md") > 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await assert_all_is_given_back(rig)


async def test_one_client_leaving_does_not_disturb_another_with_the_same_prefix(rig):
    await rig.configure(DIRECT_ALWAYS)
    rig.link.reshape({"paused": True})
    prompt = prompt_of(640)
    async with asking(rig, prompt, max_tokens=5):
        await rig.until(lambda: rig.link.flows)
        staying = asyncio.create_task(rig.complete([*prompt, 99], max_tokens=30))
        await rig.until(lambda: len(rig.transfers()) == 2)
    rig.link.reshape({"paused": False})
    answer = await staying
    assert answer.token_ids == (await rig.alone([*prompt, 99], max_tokens=30))[0]
    assert await rig.settled() == {}
