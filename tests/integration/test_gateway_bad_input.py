"""Whatever a request or a node does wrong: an error in OpenAI's shape or an exact answer, and all is given back."""

import asyncio

import pytest

from tests.at_rest import configured, nothing_is_kept
from tests.fleet import MODEL, prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, OUTLIER, gateway_rig

P, RELAYS, MAINS = "ams-p-01", ("ams-rld-01", "ams-rld-02"), ("fra-md-01", "fra-md-02")


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path, max_model_len=4000) as rig:
        yield rig


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


def refuse(rig, monkeypatch, *names):
    """The named nodes fail on every generation, as with a bug of their own."""

    def broken(_):
        raise RuntimeError("a bug")

    for name in names:
        monkeypatch.setattr(rig.nodes[name].node, "_generate", broken)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        (DIRECT_ALWAYS, MAINS[:1]),
        (DIRECT_ALWAYS, MAINS),
        (ONE_SHOT, RELAYS),
        (ONE_SHOT, MAINS),
        (ONE_SHOT, (P,)),
        (OUTLIER, RELAYS[:1]),
        (OUTLIER, RELAYS),
    ],
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
