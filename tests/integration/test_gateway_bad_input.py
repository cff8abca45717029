"""Whatever a request or a node does wrong: an error in OpenAI's shape or an exact answer, and all is given back."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fleet import MODEL, prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, SETTLE_S, gateway_rig

P, RELAYS, MAINS = "ams-p-01", ("ams-rld-01", "ams-rld-02"), ("fra-md-01", "fra-md-02")


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path, max_model_len=4000) as rig:
        yield rig


def files_in_use(rig):
    """Open files without the connections that are kept idle, each of which has both its ends in this process."""
    kept = sum(len(target.idle) for target in rig.gateway.client._http._targets.values())
    kept += sum(connection.is_idle() for connection in rig.http._transport._pool.connections)
    return len(list(Path("/proc/self/fd").iterdir())) - 2 * kept


@contextlib.asynccontextmanager
async def nothing_is_kept(rig):
    """Slots, leases, marks, open files and tasks are in the end what they were."""
    files, tasks = files_in_use(rig), len(asyncio.all_tasks())
    yield
    assert await rig.settled() == {}
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    while files_in_use(rig) > files or len(asyncio.all_tasks()) > tasks:
        assert asyncio.get_running_loop().time() < deadline_s, (files_in_use(rig) - files, asyncio.all_tasks())
        await asyncio.sleep(0.05)


async def configured(rig, changes=DIRECT_ALWAYS):
    """Have one request served, so that what lives as long as the gateway does is there."""
    await rig.configure(changes)
    await rig.complete(prompt_of(100, 90), max_tokens=30)
    assert await rig.settled() == {}
    rig.records.clear()


def is_openai_error(response, status):
    error = response.json()["error"]
    return (
        response.status_code == status
        and set(error) == {"message", "type", "param", "code"}
        and isinstance(error["message"], str)
    )


CHAT_MISTAKES = (
    ({"messages": []}, 400),
    ({"messages": "hello"}, 400),
    ({"messages": [{"content": "no role"}]}, 400),
    ({"messages": [{"role": "user", "content": 5}]}, 400),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400),
    ({"model": "another"}, 404),
    ({"model": 7}, 400),
    ({"max_completion_tokens": "5"}, 400),
    ({"stream": "yes"}, 400),
)
TEXT_MISTAKES = (
    ({"prompt": ""}, 400),
    ({"prompt": []}, 400),
    ({"prompt": {"text": "x"}}, 400),
    ({"prompt": [1, "two"]}, 400),
    ({"prompt": [-1]}, 400),
    ({"prompt": prompt_of(4001)}, 400),
    ({"prompt": None}, 400),
    ({"max_tokens": 0}, 400),
    ({"max_tokens": 1.5}, 400),
    ({"temperature": "hot"}, 400),
    ({"stop": 3}, 400),
)
NO_JSON = (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\xff"}', b'{"model": 1e999}')


async def test_a_request_that_is_wrong_costs_nothing_and_is_told_why(rig):
    await configured(rig)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    text = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
    async with nothing_is_kept(rig):
        for path, body, mistakes in (
            ("chat/completions", chat, CHAT_MISTAKES),
            ("completions", text, TEXT_MISTAKES),
        ):
            for mistake, status in mistakes:
                response = await rig.http.post(f"{rig.url}/v1/{path}", json={**body, **mistake})
                assert is_openai_error(response, status), (mistake, response.status_code, response.text)
            for data in NO_JSON:
                response = await rig.http.post(f"{rig.url}/v1/{path}", content=data)
                assert is_openai_error(response, 400), (data, response.status_code, response.text)
    assert {record.outcome for record in rig.records} == {"rejected"}
    assert {record.model for record in rig.records} == {MODEL, ""}, "a record keeps no text of a client's own"


async def test_a_client_that_leaves_while_it_sends_its_request(rig):
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


@pytest.mark.parametrize(("changes", "busy"), [(DIRECT_ALWAYS, MAINS), (ONE_SHOT, RELAYS), (CATCH_UP, MAINS)])
async def test_a_client_that_leaves_leaves_no_file_and_no_task_behind(rig, changes, busy):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        for is_held_up in (True, False):
            rig.link.reshape({"paused": is_held_up})
            asking = asyncio.create_task(rig.stream(prompt_of(300, is_held_up), max_tokens=3000))
            if is_held_up:
                await rig.until(lambda: rig.link.flows)
            else:
                await rig.until(lambda: any(rig.nodes[name].node.admission.running for name in busy))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert await rig.settled() == {}
    assert [record.outcome for record in rig.records] == ["client_closed"] * 2


def lose_lease(rig, monkeypatch, *lost):
    """P forgets the leases of these numbers as soon as it has given them; all, if none is named."""
    leases = rig.nodes[P].node.leases
    grant, numbers = leases.grant, iter(range(100))

    def grant_and_lose(*arguments):
        lease = grant(*arguments)
        if next(numbers) in (lost or range(100)):
            leases.release(lease.id)
        return lease

    monkeypatch.setattr(leases, "grant", grant_and_lose)


@pytest.mark.parametrize(("changes", "lost"), [(DIRECT_ALWAYS, 0), (ONE_SHOT, 0), (ONE_SHOT, 1)])
async def test_a_lease_that_expired_is_taken_anew(rig, monkeypatch, changes, lost):
    await configured(rig, changes)
    prompt = prompt_of(300)
    expected = (await rig.alone(prompt, max_tokens=60))[0]
    async with nothing_is_kept(rig):
        lose_lease(rig, monkeypatch, lost)
        answer = await rig.complete(prompt, max_tokens=60)
        assert (answer.status, answer.token_ids) == (200, expected)


def damage(rig, monkeypatch, *, is_lasting):
    """P's memory gives a block another content; the checksum it was stored with stays."""
    node = rig.nodes[P].node
    grant, kept = node.leases.grant, {}

    def grant_damaged(hashes, *arguments):
        blocks = node.engine.store._blocks
        if not kept:
            whole = kept[hashes[-1]] = blocks[hashes[-1]]
            payload = bytes(whole.payload)
            blocks[hashes[-1]] = replace(whole, payload=bytes([payload[0] ^ 1]) + payload[1:])
        elif not is_lasting:
            blocks.update(kept)
        return grant(hashes, *arguments)

    monkeypatch.setattr(node.leases, "grant", grant_damaged)


async def test_a_block_that_was_damaged_on_its_way_is_fetched_again(rig, monkeypatch):
    await configured(rig)
    prompt = prompt_of(320)
    expected = (await rig.alone(prompt, max_tokens=40))[0]
    async with nothing_is_kept(rig):
        damage(rig, monkeypatch, is_lasting=False)
        answer = await rig.complete(prompt, max_tokens=40)
        assert (answer.status, answer.token_ids) == (200, expected)
    assert sum(rig.nodes[name].node.counters.failed_pulls for name in MAINS) == 1


async def test_kv_that_stays_damaged_is_never_decoded_from(rig, monkeypatch):
    await configured(rig)
    prompt = prompt_of(320)
    async with nothing_is_kept(rig):
        damage(rig, monkeypatch, is_lasting=True)
        answer = await rig.complete(prompt, max_tokens=40)
        assert (answer.status, answer.error["code"]) == (502, "engine_failed")
    assert [record.outcome for record in rig.records] == ["failed"]


def refuse(rig, monkeypatch, *names):
    """The named nodes fail on every generation, as with a bug of their own."""

    def broken(_):
        raise RuntimeError("a bug")

    for name in names:
        monkeypatch.setattr(rig.nodes[name].node, "_generate", broken)


@pytest.mark.parametrize(
    ("changes", "broken"), [(DIRECT_ALWAYS, MAINS[:1]), (ONE_SHOT, RELAYS), (DIRECT_ALWAYS, MAINS), (ONE_SHOT, (P,))]
)
async def test_a_node_that_refuses_costs_no_answer_while_another_way_is_left(rig, monkeypatch, changes, broken):
    await configured(rig, changes)
    prompt = prompt_of(300)
    expected = (await rig.alone(prompt, max_tokens=40))[0]
    async with nothing_is_kept(rig):
        refuse(rig, monkeypatch, *broken)
        answer = await rig.complete(prompt, max_tokens=40)
        assert (answer.status, answer.token_ids) == (200, expected)


async def test_where_all_nodes_refuse_the_client_is_told(rig, monkeypatch):
    await configured(rig)
    async with nothing_is_kept(rig):
        refuse(rig, monkeypatch, P, *RELAYS, *MAINS)
        answer = await rig.complete(prompt_of(300), max_tokens=40)
        assert (answer.status, answer.error["type"]) == (502, "server_error")


async def test_kv_of_another_model_is_refused_and_the_next_node_asked(rig, monkeypatch):
    await configured(rig)
    prompt = prompt_of(320)
    expected = (await rig.alone(prompt, max_tokens=40))[0]
    async with nothing_is_kept(rig):
        monkeypatch.setattr(rig.nodes[MAINS[0]].node.puller, "_fingerprint", "another model")
        for seed in (0, 1):  # whichever is asked first
            answer = await rig.complete(prompt if not seed else prompt_of(320, seed), max_tokens=40)
            assert answer.status == 200
            assert seed or answer.token_ids == expected
            assert answer.explained["main_node"] == MAINS[1]


async def test_kv_that_no_node_can_take_is_an_error(rig, monkeypatch):
    await configured(rig)
    async with nothing_is_kept(rig):
        for name in (*RELAYS, *MAINS):
            monkeypatch.setattr(rig.nodes[name].node.puller, "_fingerprint", "another model")
        answer = await rig.complete(prompt_of(320), max_tokens=40)
        assert (answer.status, answer.error["type"]) == (502, "server_error")
