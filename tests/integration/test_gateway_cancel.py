"""A client that leaves, at every stage: streams, pulls, slots, leases and marks are all given back."""

import asyncio
import contextlib

import pytest

from engine_agents.nodes.kv_connection import KvConnection
from tests.at_rest import configured, nothing_is_kept
from tests.fleet import MODEL, prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, OUTLIER, gateway_rig


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


@contextlib.asynccontextmanager
async def asking(rig, prompt, **fields):
    """A streaming client; leaving the context closes its connection if the answer still runs."""
    async with leaving(rig.stream(prompt, **fields)) as task:
        yield task


@contextlib.asynccontextmanager
async def leaving(asked):
    """A client that leaves at the end of the context; in the end nothing is kept of what it asked."""
    task = asyncio.create_task(asked)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def all_is_given_back(rig, changes):
    """Whatever the client of this context left behind is freed, and its one record says that it left."""
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        yield
    (record,) = rig.records
    assert (record.outcome, record.status) == ("client_closed", 499)


class Held:
    """An asynchronous method that a test holds up: a call after `skipped` others never returns."""

    def __init__(self, monkeypatch, owner, name, skipped=0):
        self.arrived = False
        self._skipped = skipped
        self._method = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._call)

    async def _call(self, *arguments, **more):
        self._skipped -= 1
        if self._skipped >= 0:
            return await self._method(*arguments, **more)
        self.arrived = True
        return await asyncio.Event().wait()


def decoded(rig, role):
    return sum(client.node.counters.decode_tokens for name, client in rig.nodes.items() if role in name)


def decodes(rig, role, tokens=3):
    """Whether nodes of the role have decoded more than so many tokens since now."""
    before = decoded(rig, role)
    return lambda: decoded(rig, role) > before + tokens


async def test_while_it_sends_its_request(rig):
    await configured(rig)
    host, port = rig.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: 500\r\n\r\n"
    async with nothing_is_kept(rig):
        for sent in (head[:20], head, head + '{"model": "emul'):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent.encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    assert rig.records == []


async def test_while_its_prompt_is_tokenized(rig, monkeypatch):
    async with all_is_given_back(rig, DIRECT_ALWAYS):
        held = Held(monkeypatch, rig.gateway.client, "tokenize")
        async with asking(rig, "a prompt", max_tokens=5):
            await rig.until(lambda: held.arrived)


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, OUTLIER])
async def test_while_prefilling(tmp_path, changes):
    async with (
        gateway_rig(tmp_path, prefill_tokens_per_s=1000.0) as rig,
        all_is_given_back(rig, changes),
        asking(rig, prompt_of(5000), max_tokens=5),
    ):
        await rig.until(lambda: rig.nodes["ams-p-01"].node.admission.running == 1)


async def test_while_it_waits_for_a_slot(rig):
    await configured(rig)
    slots = rig.nodes["ams-p-01"].node.admission._slots
    async with nothing_is_kept(rig):
        for _ in range(rig.nodes["ams-p-01"].node.engine.slots):
            await slots.acquire()
        async with asking(rig, prompt_of(300), max_tokens=5):
            await rig.until(lambda: rig.nodes["ams-p-01"].node.admission.waiting == 1)
        await rig.until(lambda: not rig.nodes["ams-p-01"].node.admission.waiting)
        for _ in range(rig.nodes["ams-p-01"].node.engine.slots):
            slots.release()
    assert [record.outcome for record in rig.records] == ["client_closed"]


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, CATCH_UP, OUTLIER])
async def test_at_any_step_of_the_event_loop(rig, changes):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        for steps in range(0, 42, 3):
            rig.records.clear()
            async with asking(rig, prompt_of(300, steps), max_tokens=500):
                await rig.until(lambda: rig.gateway.state.requests_in_flight)
                for _ in range(steps):
                    await asyncio.sleep(0)
            assert await rig.settled() == {}
            (record,) = rig.records
            assert (record.outcome, record.status) == ("client_closed", 499)


async def test_while_main_decode_pulls(rig):
    async with all_is_given_back(rig, DIRECT_ALWAYS):
        rig.link.reshape({"paused": True})
        async with asking(rig, prompt_of(300), max_tokens=5):
            await rig.until(lambda: rig.link.flows)


async def test_while_the_wan_relay_still_connects(rig):
    async with all_is_given_back(rig, DIRECT_ALWAYS):
        rig.link.reshape({"rtt_s": 60.0})
        async with asking(rig, prompt_of(300), max_tokens=5):
            await rig.until(lambda: rig.relay.handshakes)


@pytest.mark.parametrize("changes", [ONE_SHOT, OUTLIER])
async def test_while_relay_decode_pulls(rig, monkeypatch, changes):
    async with all_is_given_back(rig, changes):
        held = Held(monkeypatch, KvConnection, "fetch")
        relays = [rig.nodes[name].node.puller for name in ("ams-rld-01", "ams-rld-02")]
        async with asking(rig, prompt_of(300), max_tokens=5):
            await rig.until(lambda: held.arrived and any(puller.running for puller in relays))
            assert rig.nodes["ams-p-01"].node.kv_server.sessions


async def test_while_main_decodes(rig):
    async with all_is_given_back(rig, DIRECT_ALWAYS):
        is_decoding = decodes(rig, "md")
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(is_decoding)


async def test_while_an_outlier_decodes(rig):
    async with all_is_given_back(rig, OUTLIER):
        is_decoding = decodes(rig, "rld")
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(is_decoding)


async def test_while_the_second_lease_is_taken(rig, monkeypatch):
    async with all_is_given_back(rig, ONE_SHOT):
        held = Held(monkeypatch, rig.gateway.client, "prefill", skipped=1)
        is_decoding = decodes(rig, "rld")
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(lambda: held.arrived and is_decoding())


async def test_while_relay_decodes_and_the_kv_is_on_its_way(rig):
    async with all_is_given_back(rig, ONE_SHOT):
        rig.link.reshape({"paused": True})
        is_decoding = decodes(rig, "rld")
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(lambda: is_decoding() and rig.link.flows)
    assert rig.gateway.state.index.in_flight_blocks("fra-md-01") == 0


async def test_while_the_relay_waits_at_its_cap(rig):
    async with all_is_given_back(rig, {**ONE_SHOT, "handoff.relay_max_tokens": 5}):
        rig.link.reshape({"paused": True})
        has_reached_it = decodes(rig, "rld", 4)
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(lambda: has_reached_it() and rig.link.flows)


async def test_while_main_decode_computes_the_eager_tokens(rig, monkeypatch):
    async with all_is_given_back(rig, ONE_SHOT):
        stream = rig.gateway.client.stream
        opened = []

        def never_answering(node, *arguments, **more):
            answering = stream(node, *arguments, **more)
            if node.name.startswith("fra"):
                opened.append(Held(monkeypatch, answering, "run"))
            return answering

        monkeypatch.setattr(rig.gateway.client, "stream", never_answering)
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(lambda: any(held.arrived for held in opened))


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
async def test_after_the_handoff(rig, changes):
    async with all_is_given_back(rig, changes):
        is_decoding = decodes(rig, "md", 10)
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(is_decoding)


async def test_while_catching_up(tmp_path):
    async with gateway_rig(tmp_path, prefill_tokens_per_s=600.0) as rig, all_is_given_back(rig, CATCH_UP):
        rig.link.reshape({"paused": True})
        is_decoding = decodes(rig, "rld", 40)
        async with asking(rig, prompt_of(120), max_tokens=5000):
            await rig.until(is_decoding)
            rig.link.reshape({"paused": False})
            await rig.until(
                lambda: any(client.node.admission.running for name, client in rig.nodes.items() if "md" in name)
            )


async def test_while_a_transfer_is_tried_again(rig, monkeypatch):
    async with all_is_given_back(rig, ONE_SHOT):
        for name in ("fra-md-01", "fra-md-02"):
            monkeypatch.setattr(rig.nodes[name].node.puller, "_fingerprint", "another model")
        async with asking(rig, prompt_of(300), max_tokens=5000):
            await rig.until(lambda: sum(rig.nodes[n].node.counters.failed_pulls for n in ("fra-md-01", "fra-md-02")))


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, OUTLIER])
async def test_a_client_that_does_not_stream_may_leave_too(rig, changes):
    async with all_is_given_back(rig, changes):
        is_decoding = decodes(rig, "md" if changes is not OUTLIER else "rld")
        async with leaving(rig.complete(prompt_of(300), max_tokens=5000)):
            await rig.until(is_decoding)


async def test_a_chat_may_be_left_too(rig):
    async with all_is_given_back(rig, DIRECT_ALWAYS):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "tell me " * 40}], "max_tokens": 5000}
        is_decoding = decodes(rig, "md")
        async with leaving(rig.http.post(f"{rig.url}/v1/chat/completions", json=body)):
            await rig.until(is_decoding)


async def test_once_its_answer_is_complete_only_the_transfer_goes_on(tmp_path):
    async with gateway_rig(tmp_path, eos_period=12) as rig:
        await configured(rig, ONE_SHOT)
        async with nothing_is_kept(rig):
            rig.link.reshape({"paused": True})
            async with asking(rig, prompt_of(200), max_tokens=2000) as task:
                await task
            await rig.until(lambda: rig.link.transfers)  # a quick answer is there before the pull has reached the relay
            assert set(await rig.busy()) >= {"transfers_in_background", "relay_transfers"}
            rig.link.reshape({"paused": False})
        assert [record.outcome for record in rig.records] == ["completed"]


async def test_one_client_leaving_does_not_disturb_another_with_the_same_prefix(rig):
    await configured(rig)
    async with nothing_is_kept(rig):
        rig.link.reshape({"paused": True})
        prompt = prompt_of(640)
        async with asking(rig, prompt, max_tokens=5):
            await rig.until(lambda: rig.link.flows)
            staying = asyncio.create_task(rig.complete([*prompt, 99], max_tokens=30))
            await rig.until(lambda: len(rig.transfers()) == 2)
        rig.link.reshape({"paused": False})
        answer = await staying
        assert answer.token_ids == (await rig.alone([*prompt, 99], max_tokens=30))[0]
