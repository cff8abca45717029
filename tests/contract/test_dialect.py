"""The node dialect, step by step, the same for every kind of node that is ours."""

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_agents.nodes.kv_prefix import cut_blocks
from tests.contract.conftest import QUEUE_LIMIT, SLOTS
from tests.fleet import MODEL, NodeReplyError

pytestmark = pytest.mark.asyncio(loop_scope="module")

_seeds = itertools.count()
_SENTENCE = "The quick brown fox jumps over the lazy dog and then it naps near river number {}. "


@pytest.fixture
def p(nodes):
    return nodes["p"]


@pytest.fixture
def rld(nodes):
    return nodes["rld"]


@pytest.fixture
def md(nodes):
    return nodes["md"]


async def prompt_on(client, count: int) -> list[int]:
    """A prompt of so many tokens that no other test has used."""
    seed = next(_seeds)
    text = f"Story {seed}. " + "".join(_SENTENCE.format(seed + index) for index in range(count // 10))
    tokens = (await client.post("/tokenize", {"model": MODEL, "prompt": text})).json()["tokens"]
    assert len(tokens) >= count
    return tokens[:count]


@asynccontextmanager
async def silent_port():
    """A KV port that accepts and says nothing; gives the port and the connections."""
    connections: list[asyncio.StreamWriter] = []
    ended = []

    async def accept(reader, writer):
        connections.append(writer)
        try:
            while await reader.read(1000):
                pass
        except OSError:
            pass
        ended.append(writer)
        writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connections, ended
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def refused(awaitable) -> NodeReplyError:
    with pytest.raises(NodeReplyError) as caught:
        await awaitable
    assert set(caught.value.error) == {"message", "type", "param", "code"}
    return caught.value


# --- text and tokens


async def test_tokens_of_a_text_give_the_text_back(p):
    reply = (await p.post("/tokenize", {"model": MODEL, "prompt": "Hello, na\u00efve \U0001f600 world"})).json()
    assert reply["count"] == len(reply["tokens"])
    assert reply["max_model_len"] == p.node.engine.max_model_len
    back = await p.post("/detokenize", {"model": MODEL, "tokens": reply["tokens"]})
    assert back.json()["prompt"].endswith("Hello, na\u00efve \U0001f600 world")


async def test_messages_are_tokenized_through_the_chat_template(p):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    asked = {"model": MODEL, "messages": messages, "add_generation_prompt": True}
    tokens = (await p.post("/tokenize", asked)).json()["tokens"]
    text = (await p.post("/detokenize", {"model": MODEL, "tokens": tokens})).json()["prompt"]
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    closed = (await p.post("/tokenize", {**asked, "add_generation_prompt": False})).json()["tokens"]
    assert tokens[: len(closed)] == closed
    assert len(closed) < len(tokens)


# --- completions


async def test_a_completion_says_what_it_used(p):
    prompt = await prompt_on(p, 100)
    reply = await p.complete(prompt, max_tokens=5, ignore_eos=True)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 5
    assert reply["usage"]["prompt_tokens"] == 100
    assert reply["usage"]["completion_tokens"] == 5
    assert reply["usage"]["total_tokens"] == 105
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert reply["pdd"]["computed_tokens"] == 100


async def test_a_stream_says_the_same_as_a_completion(p):
    prompt = await prompt_on(p, 100)
    whole = (await p.complete(prompt, max_tokens=24, ignore_eos=True))["choices"][0]
    streamed = await p.stream(prompt, max_tokens=24, ignore_eos=True)
    assert streamed.token_ids == whole["token_ids"]
    assert streamed.text == whole["text"]
    assert streamed.finish_reason == "length"
    assert streamed.is_done
    assert streamed.last["choices"] == []
    assert streamed.last["usage"]["completion_tokens"] == 24


async def test_text_is_sent_on_character_boundaries_only(p):
    prompt = await prompt_on(p, 70)
    streamed = await p.stream(prompt, max_tokens=60, ignore_eos=True)
    ids: list[int] = []
    sent = ""
    for chunk in streamed.chunks[:-1]:
        choice = chunk["choices"][0]
        ids += choice["token_ids"]
        sent += choice["text"]
        if choice["text"] and choice["finish_reason"] is None:
            so_far = (await p.post("/detokenize", {"tokens": ids})).json()["prompt"]
            assert so_far == sent


async def test_ids_and_usage_come_only_when_asked_for(p):
    prompt = await prompt_on(p, 66)
    async with p.open_stream(prompt, max_tokens=3, ignore_eos=True, return_token_ids=False) as chunks:
        seen = [chunk async for chunk in chunks]
    assert all(chunk["choices"] and chunk["choices"][0]["token_ids"] is None for chunk in seen)
    assert not any("pdd" in chunk for chunk in seen)


async def test_log_probabilities_come_per_token_and_only_when_asked_for(p):
    ids = await prompt_on(p, 40)
    plain = (await p.complete(ids, max_tokens=8, ignore_eos=True))["choices"][0]
    choice = (await p.complete(ids, max_tokens=8, ignore_eos=True, logprobs=3))["choices"][0]
    streamed = await p.stream(ids, max_tokens=8, ignore_eos=True, logprobs=3)
    likely = choice["logprobs"]
    assert plain["logprobs"] is None
    assert choice["token_ids"] == plain["token_ids"]
    assert {len(likely[name]) for name in likely} == {8}
    assert list(likely) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    known = [at for at, logprob in enumerate(likely["token_logprobs"]) if logprob is not None]
    assert known
    for at in known:
        token, logprob, top = likely["tokens"][at], likely["token_logprobs"][at], likely["top_logprobs"][at]
        assert logprob <= 0
        assert top[token] == logprob == max(top.values())
        assert len(top) == 3
    pieces = [chunk["choices"][0]["logprobs"] for chunk in streamed.chunks if chunk["choices"]]
    assert {name: [value for piece in pieces for value in piece[name]] for name in likely} == likely


async def test_tools_and_their_results_are_part_of_the_prompt(p):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "24 degrees"},
    ]
    body = {"model": p.model, "messages": messages, "tools": [tool]}
    tokens = (await p.post("/tokenize", body)).json()["tokens"]
    text = (await p.post("/detokenize", {"tokens": tokens})).json()["prompt"]
    for part in ('"name": "weather"', "<tools>", "<tool_call>", '{"city": "Bern"}', "24 degrees", "Is it warm?"):
        assert part in text
    assert text.endswith("<|im_start|>assistant\n")
    assert (
        await p.post("/tokenize", {"model": p.model, "messages": [{"role": "user", "tool_calls": [3]}]})
    ).status_code == 400


async def test_a_text_prompt_is_the_same_as_its_ids(p):
    text = f"Once upon a time {next(_seeds)}"
    tokens = (await p.post("/tokenize", {"model": MODEL, "prompt": text})).json()["tokens"]
    one = await p.complete(text, max_tokens=6, ignore_eos=True)
    two = await p.complete(tokens, max_tokens=6, ignore_eos=True)
    assert one["choices"][0]["token_ids"] == two["choices"][0]["token_ids"]


async def test_a_stop_string_ends_the_text_before_it(p):
    prompt = await prompt_on(p, 80)
    free = (await p.complete(prompt, max_tokens=30, ignore_eos=True))["choices"][0]["text"]
    stop = free[10:13]
    cut = free.index(stop)
    for reply in (
        (await p.complete(prompt, max_tokens=30, ignore_eos=True, stop=[stop]))["choices"][0],
        (await p.stream(prompt, max_tokens=30, ignore_eos=True, stop=stop)),
    ):
        text = reply["text"] if isinstance(reply, dict) else reply.text
        reason = reply["finish_reason"] if isinstance(reply, dict) else reply.finish_reason
        assert text == free[:cut]
        assert reason == "stop"
    assert await p.is_idle()


async def test_a_prompt_seen_before_is_computed_from_its_end_only(p):
    prompt = await prompt_on(p, 130)
    await p.complete(prompt, max_tokens=1)
    again = await p.complete(prompt, max_tokens=1)
    assert again["pdd"]["computed_tokens"] == 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 129
    longer = await p.complete(prompt + (await prompt_on(p, 20)), max_tokens=1)
    assert longer["pdd"]["computed_tokens"] == 20
    assert longer["pdd"]["resident_tokens"] == 130


async def test_a_salt_hides_one_tenants_prefix_from_another(p):
    prompt = await prompt_on(p, 70)
    plain = await p.complete(prompt, max_tokens=4, ignore_eos=True)
    salted = await p.complete(prompt, max_tokens=4, ignore_eos=True, cache_salt="tenant-b")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert salted["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]


async def test_dropping_the_cache_makes_it_compute_again(md):
    prompt = await prompt_on(md, 70)
    await md.complete(prompt, max_tokens=1)
    dropped = await md.delete("/pdd/v1/cache")
    assert dropped.status_code == 200
    assert dropped.json()["dropped_tokens"] >= 70
    assert (await md.info())["store"]["resident_tokens"] == 0
    assert (await md.complete(prompt, max_tokens=1))["pdd"]["computed_tokens"] == 70


# --- leases and pulls


async def test_a_lease_says_where_the_kv_is(p):
    prompt = await prompt_on(p, 100)
    params = await p.lease(prompt)
    info = await p.info()
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["remote_num_tokens"] == 100
    assert (params["remote_host"], params["remote_port"]) == (info["kv_host"], info["kv_port"])
    assert params["remote_engine_id"] == info["engine_id"]
    assert params["remote_block_ids"] == [0, 1]
    leases = (await p.get("/pdd/v1/leases")).json()["leases"]
    mine = next(lease for lease in leases if lease["id"] == params["remote_request_id"])
    assert mine["tokens"] == 100
    assert mine["bytes"] == 100 * info["kv_bytes_per_token"]
    assert 0 < mine["expires_in_s"] <= 30
    assert info["store"]["leased_bytes"] >= mine["bytes"]
    assert (await p.delete(f"/pdd/v1/leases/{mine['id']}")).status_code == 200
    assert (await p.delete(f"/pdd/v1/leases/{mine['id']}")).status_code == 404


async def test_a_lease_has_the_id_of_its_request(p):
    prompt = await prompt_on(p, 70)
    name = f"lease-mine-{next(_seeds)}"
    params = await p.lease(prompt, request_id=name)
    assert params["remote_request_id"] == name
    other = (await p.lease(prompt, request_id=name))["remote_request_id"]
    assert other != name
    for lease_id in (name, other):
        assert (await p.delete(f"/pdd/v1/leases/{lease_id}")).status_code == 200
    assert (await p.lease(prompt, request_id=name))["remote_request_id"] == name
    assert (await p.delete(f"/pdd/v1/leases/{name}")).status_code == 200


async def test_a_second_lease_hits_the_first_ones_kv(p):
    prompt = await prompt_on(p, 100)
    leases = [await p.lease(prompt), await p.lease(prompt)]
    assert leases[0]["remote_request_id"] != leases[1]["remote_request_id"]
    again = await p.complete(prompt, max_tokens=1)
    assert again["pdd"]["computed_tokens"] == 1
    for lease in leases:
        await p.delete(f"/pdd/v1/leases/{lease['remote_request_id']}")


async def test_a_consumer_pulls_everything_once_and_the_lease_ends(p, rld):
    prompt = await prompt_on(p, 150)
    params = await p.lease(prompt)
    reply = await rld.complete(prompt, max_tokens=1, kv_transfer_params=params)
    figures = reply["pdd"]
    assert figures["pulled_tokens"] == 150
    assert figures["pulled_bytes"] == 150 * (await p.info())["kv_bytes_per_token"]
    assert figures["computed_tokens"] == 1
    assert figures["resident_tokens"] == 0
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 149
    await until(lambda: not p.node.leases.is_live(params["remote_request_id"]))


async def test_a_consumer_pulls_only_what_it_lacks(p, md):
    prompt = await prompt_on(p, 128)
    await md.complete(prompt, max_tokens=1, kv_transfer_params=await p.lease(prompt))
    longer = prompt + await prompt_on(p, 50)
    reply = await md.complete(longer, max_tokens=1, kv_transfer_params=await p.lease(longer))
    assert reply["pdd"]["pulled_tokens"] == 50
    assert reply["pdd"]["resident_tokens"] == 127
    assert reply["pdd"]["computed_tokens"] == 1


@pytest.mark.parametrize("eager", [0, 17])
async def test_the_next_turn_sends_only_the_tokens_whose_kv_is_not_here(p, rld, md, eager):
    """The last turn's partial tail was pulled, extended by the eager tokens in one batch, and decoded on, here."""
    prompt = await prompt_on(p, 100)
    relayed = await rld.complete(prompt, max_tokens=17, ignore_eos=True, kv_transfer_params=await p.lease(prompt))
    await md.complete(prompt, max_tokens=1, ignore_eos=True, kv_transfer_params=await p.lease(prompt))
    held = prompt + relayed["choices"][0]["token_ids"][:eager]
    answer = (await md.complete(held, max_tokens=10, ignore_eos=True))["choices"][0]["token_ids"]
    turn = held + answer + (await prompt_on(p, 50))
    alone = await p.complete(turn, max_tokens=12, ignore_eos=True, cache_salt="alone")
    before = (await md.info())["counters"]
    reply = await md.complete(turn, max_tokens=12, ignore_eos=True, kv_transfer_params=await p.lease(turn))
    after, token_bytes = (await md.info())["counters"], (await p.info())["kv_bytes_per_token"]
    # All that was evaluated: the last token of an answer is chosen, and evaluated only with the next turn.
    resident = len(held) + 9
    assert reply["pdd"]["pulled_tokens"] == len(turn) - resident
    assert reply["pdd"]["pulled_bytes"] == (len(turn) - resident) * token_bytes
    assert reply["pdd"]["resident_tokens"] == resident - 1
    assert after["joined_tokens"] - before["joined_tokens"] == resident % 64
    assert after["joined_bytes"] - before["joined_bytes"] == resident % 64 * token_bytes
    assert after["failed_joins"] == before["failed_joins"]
    assert reply["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


async def test_a_beginning_with_damage_is_not_joined(p, md):
    prompt = await prompt_on(p, 100)
    await md.complete(prompt, max_tokens=1, kv_transfer_params=await p.lease(prompt))
    tail = md.node.engine.store.get(cut_blocks(prompt)[-1].hash)
    damaged = bytearray(tail.payload)
    damaged[len(damaged) // 3] ^= 1
    assert md.node.engine.store.discard(tail.hash)
    assert md.node.engine.store.put(replace(tail, payload=bytes(damaged)))
    turn = prompt + await prompt_on(p, 50)
    failed = (await md.info())["counters"]["failed_joins"]
    alone = await p.complete(turn, max_tokens=12, ignore_eos=True, cache_salt="alone")
    reply = await md.complete(turn, max_tokens=12, ignore_eos=True, kv_transfer_params=await p.lease(turn))
    assert reply["pdd"]["pulled_tokens"] == 150 - 64
    assert (await md.info())["counters"]["failed_joins"] == failed + 1
    assert reply["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


async def test_two_pulls_of_one_prompt_at_once_carry_each_block_once(p, md):
    prompt = await prompt_on(p, 256)
    leases = [await p.lease(prompt), await p.lease(prompt)]
    replies = await asyncio.gather(*(md.complete(prompt, max_tokens=1, kv_transfer_params=lease) for lease in leases))
    assert sum(reply["pdd"]["pulled_tokens"] for reply in replies) == 256
    assert all(reply["pdd"]["computed_tokens"] == 1 for reply in replies)
    await until(lambda: not any(p.node.leases.is_live(lease["remote_request_id"]) for lease in leases))


@pytest.mark.parametrize("tokens", [64, 100, 333])
async def test_a_handoff_says_what_one_node_alone_would_have_said(p, rld, md, tokens):
    prompt = await prompt_on(p, tokens)
    alone = await md.stream(prompt, max_tokens=40, ignore_eos=True, cache_salt="alone")
    first, second = await p.lease(prompt), await p.lease(prompt)
    relayed, pulled = await asyncio.gather(
        rld.stream(prompt, max_tokens=17, ignore_eos=True, kv_transfer_params=first),
        md.complete(prompt, max_tokens=1, ignore_eos=True, kv_transfer_params=second),
    )
    eager = relayed.token_ids
    rest = await md.complete(prompt + eager, max_tokens=23, ignore_eos=True)
    assert pulled["choices"][0]["token_ids"] == eager[:1]
    assert eager + rest["choices"][0]["token_ids"] == alone.token_ids
    assert rest["pdd"]["computed_tokens"] == 17


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_node_refuses_to_compute_more_than_it_was_told(p, md, is_stream):
    prompt = await prompt_on(p, 100)
    await md.complete(prompt, max_tokens=1, kv_transfer_params=await p.lease(prompt))
    longer = [*prompt, *prompt[:10]]
    ask = md.stream if is_stream else md.complete
    await ask(longer, max_tokens=2, max_computed_tokens=10)
    await md.delete("/pdd/v1/cache")
    with pytest.raises(NodeReplyError) as refused:
        await ask([*prompt, *prompt[:20]], max_tokens=2, max_computed_tokens=20)
    assert (refused.value.status, refused.value.error["code"]) == (410, "prefix_gone")
    assert await md.is_idle()


async def test_catching_up_in_batches_says_the_same_and_leaves_little_to_compute(p, rld, md):
    prompt = await prompt_on(p, 90)
    alone = await md.complete(prompt, max_tokens=60, ignore_eos=True, cache_salt="alone")
    expected = alone["choices"][0]["token_ids"]
    await md.complete(prompt, max_tokens=1, kv_transfer_params=await p.lease(prompt))
    for batch in (20, 40):
        caught = await md.complete(prompt + expected[:batch], max_tokens=1, ignore_eos=True)
        assert caught["choices"][0]["token_ids"] == expected[batch : batch + 1]
        assert caught["pdd"]["computed_tokens"] == 20
    rest = await md.complete(prompt + expected[:45], max_tokens=15, ignore_eos=True)
    assert rest["pdd"]["computed_tokens"] == 5
    assert rest["choices"][0]["token_ids"] == expected[45:]


async def test_an_answer_is_kept_for_the_next_turn(md):
    prompt = await prompt_on(md, 100)
    answer = (await md.complete(prompt, max_tokens=30, ignore_eos=True))["choices"][0]["token_ids"]
    turn = prompt + answer + await prompt_on(md, 15)
    figures = (await md.complete(turn, max_tokens=1))["pdd"]
    assert figures["computed_tokens"] == 16
    assert figures["resident_tokens"] == 129


# --- refusals


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[1, 2], [3]]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": [2**31 - 1]}, 400, None),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 1_000_000}, 400, "prompt"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 2}, 400, "n"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"presence_penalty": 2.5}, 400, "presence_penalty"),
        ({"repetition_penalty": 0}, 400, "repetition_penalty"),
        ({"min_tokens": 3}, 400, "min_tokens"),
        ({"stream": True, "kv_transfer_params": {"do_remote_decode": True}}, 400, "stream"),
    ],
)
async def test_refuses_what_it_cannot_serve(p, fields, status, param):
    error = await refused(p.complete([10, 11, 12], **fields) if "prompt" not in fields else p.complete(**fields))
    assert error.status == status
    assert error.error["param"] == param


async def test_refuses_a_streamed_prompt_with_a_status_not_an_event(p):
    error = await refused(p.stream([2**31 - 1], max_tokens=2))
    assert error.status == 400


async def test_refuses_what_is_no_json(p):
    response = await p.http.post(p.url + "/v1/completions", content=b"{nope")
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_an_unknown_path_has_openais_error_shape(p):
    response = await p.get("/v1/unknown")
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_refuses_a_lease_for_a_prompt_of_another_length(p, md):
    prompt = await prompt_on(p, 80)
    params = await p.lease(prompt)
    error = await refused(md.complete([*prompt, 11], max_tokens=1, kv_transfer_params=params))
    assert error.status == 400
    assert error.error["param"] == "kv_transfer_params"
    await p.delete(f"/pdd/v1/leases/{params['remote_request_id']}")


async def test_a_lease_that_is_gone_is_410(p, md):
    prompt = await prompt_on(p, 80)
    params = await p.lease(prompt)
    await p.delete(f"/pdd/v1/leases/{params['remote_request_id']}")
    error = await refused(md.complete(prompt, max_tokens=1, kv_transfer_params=params))
    assert (error.status, error.error["code"]) == (410, "lease_gone")


async def test_kv_of_another_kind_is_409(p, md, monkeypatch):
    prompt = await prompt_on(p, 80)
    params = await p.lease(prompt)
    monkeypatch.setattr(p.node.kv_server, "_fingerprint", "another model")
    error = await refused(md.complete(prompt, max_tokens=1, kv_transfer_params=params))
    assert (error.status, error.error["code"]) == (409, "fingerprint_mismatch")
    await p.delete(f"/pdd/v1/leases/{params['remote_request_id']}")


async def test_a_kv_port_that_is_not_there_is_502(p, md):
    prompt = await prompt_on(p, 80)
    params = await p.lease(prompt)
    error = await refused(md.complete(prompt, max_tokens=1, kv_transfer_params={**params, "remote_port": 1}))
    assert (error.status, error.error["code"]) == (502, "pull_failed")
    await p.delete(f"/pdd/v1/leases/{params['remote_request_id']}")
    assert await md.is_idle()


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/pdd/v1/cache"), ("DELETE", "/pdd/v1/leases/x")])
async def test_what_changes_something_needs_the_sites_secret(p, method, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = await p.http.request(method, p.url + path, headers=headers)
        assert response.status_code == 401


# --- admission and clients that leave


async def test_beyond_slots_and_queue_it_says_503_and_when_to_come_back(p):
    prompt = await prompt_on(p, 70)
    full = SLOTS + QUEUE_LIMIT
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(p.stream([*prompt, 65 + index], max_tokens=300)) for index in range(full)]
        await until(lambda: p.node.admission.admitted == full)
        assert p.node.admission.running == SLOTS
        assert (await p.get("/load")).json() == {"server_load": full}
        response = await p.post("/v1/completions", p.body(prompt, max_tokens=1))
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
        for task in held:
            task.cancel()
    assert await p.is_idle()


async def test_a_client_that_leaves_a_stream_frees_the_slot(p):
    prompt = await prompt_on(p, 70)
    async with p.open_stream(prompt, max_tokens=900) as chunks:
        await anext(chunks)
        assert p.node.admission.running == 1
    assert await p.is_idle()
    assert p.node.engine.store.pinned_bytes == 0


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_client_that_leaves_before_its_answer_frees_everything(p, is_waiting):
    prompt = await prompt_on(p, 70)
    before = p.node.counters.client_closed
    holders = [
        asyncio.create_task(p.stream([*prompt, 65 + index], max_tokens=900)) for index in range(SLOTS * is_waiting)
    ]
    await until(lambda: p.node.admission.running == len(holders))
    asking = asyncio.create_task(p.complete(prompt, max_tokens=900))
    await until(lambda: p.node.admission.admitted == len(holders) + 1)
    if is_waiting:
        await until(lambda: p.node.admission.waiting == 1)
    asking.cancel()
    await until(lambda: p.node.admission.admitted == len(holders))
    for task in holders:
        task.cancel()
    await asyncio.gather(asking, *holders, return_exceptions=True)
    assert await p.is_idle()
    await until(lambda: p.node.counters.client_closed == before + len(holders) + 1)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_while_pulling_closes_the_pull(md, is_stream):
    prompt = await prompt_on(md, 200)
    async with silent_port() as (port, connections, ended):
        params = {
            "do_remote_prefill": True,
            "remote_request_id": "lease-x",
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "remote_num_tokens": 200,
        }
        ask = md.stream if is_stream else md.complete
        asking = asyncio.create_task(ask(prompt, max_tokens=4, kv_transfer_params=params))
        await until(lambda: len(connections) == 1)
        assert (await md.info())["pulling"] == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: len(ended) == 1)
    assert await md.is_idle()
    assert md.node.puller.blocks_in_flight == 0


async def test_a_client_that_leaves_a_prefill_leaves_no_lease(p):
    before = len(p.node.leases)
    prompt = await prompt_on(p, 900)
    asking = asyncio.create_task(p.lease(prompt))
    await until(lambda: p.node.admission.admitted == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await p.is_idle()
    assert len(p.node.leases) == before


# --- who watches


async def test_the_watchers_endpoints_answer(p):
    assert (await p.get("/health")).status_code == 200
    assert "version" in (await p.get("/version")).json()
    models = (await p.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == [MODEL]


async def test_health_is_progress_not_an_open_port(md, monkeypatch):
    prompt = await prompt_on(md, 128)
    async with silent_port() as (port, connections, _):
        params = {
            "do_remote_prefill": True,
            "remote_request_id": "lease-x",
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "remote_num_tokens": 128,
        }
        asking = asyncio.create_task(md.complete(prompt, max_tokens=1, kv_transfer_params=params))
        await until(lambda: len(connections) == 1)
        assert (await md.get("/health")).status_code == 200
        monkeypatch.setattr(md.node.progress, "stall_after_s", 0.0)
        assert (await md.get("/health")).status_code == 503
        monkeypatch.undo()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert await md.is_idle()
    assert (await md.get("/health")).status_code == 200


async def test_a_node_describes_itself(p):
    info = await p.info()
    assert {"name", "engine", "model", "fingerprint", "kv_bytes_per_token", "exact", "counters"} <= set(info)
    assert info["block_tokens"] == 64
    assert info["slots"] == SLOTS
    assert info["exact"] is True
    assert {"resident_tokens", "capacity_tokens", "leased_bytes", "leases"} <= set(info["store"])


async def test_metrics_count_what_was_done(p):
    prompt = await prompt_on(p, 100)
    before = await metrics_of(p)
    reply = await p.complete(prompt, max_tokens=7, ignore_eos=True)
    after = await metrics_of(p)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 7
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 100
    computed = "vllm:prompt_tokens_by_source_total/local_compute"
    assert after[computed] - before[computed] == reply["pdd"]["computed_tokens"] > 0
    completed = "pdd_node_request_outcomes_total/completed"
    assert after[completed] - before[completed] == 1


async def metrics_of(client) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
            values["/".join([sample.name, *extra])] = sample.value
    return values
