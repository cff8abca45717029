"""The gateway's HTTP face: OpenAI's shapes, refusals before any engine work, and the admin API."""

import json
import logging

import openai
import pytest

from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot
from engine_agents.gateway.app import MAX_BODY_BYTES
from tests.fleet import MODEL, SECRET, prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, gateway_rig

WORDS = "tell me about the quick brown animal house over and over again " * 12
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": WORDS}]


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
async def client(rig):
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def alone_chat(rig, max_tokens):
    tokenized = await rig.nodes["alone"].post("/tokenize", {"model": MODEL, "messages": MESSAGES})
    return await rig.alone(tokenized.json()["tokens"], max_tokens=max_tokens)


async def test_the_openai_client_streams_a_chat_through_relay(rig, client):
    await rig.configure(ONE_SHOT)
    rig.link.reshape({"paused": True})
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=80,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == 12:
            rig.link.reshape({"paused": False})
    _, text, _ = await alone_chat(rig, 80)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 80
    await rig.settled()
    (record,) = rig.records
    assert record.pipeline == "relay"
    assert 0 < record.eager_tokens < 80


async def test_the_openai_client_gets_a_chat_in_one_body(rig, client):
    await rig.configure(DIRECT_ALWAYS)
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_completion_tokens=20
    )
    _, text, finish = await alone_chat(rig, 20)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, finish)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_the_openai_client_completes_a_text(rig, client):
    await rig.configure(DIRECT_ALWAYS)
    answer = await client.completions.create(model=MODEL, prompt="once upon a time", temperature=0, max_tokens=10)
    assert len(answer.choices[0].text) > 0
    assert (await client.models.list()).data[0].id == MODEL


async def test_the_openai_client_sees_a_refusal_as_its_own_exception(rig, client):
    await rig.configure(DIRECT_ALWAYS)
    with pytest.raises(openai.BadRequestError, match="`n`"):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="another", messages=MESSAGES)


REFUSALS = (
    ({"prompt": []}, 400, "empty_prompt"),
    ({"prompt": ""}, 400, "empty_prompt"),
    ({"prompt": prompt_of(500)}, 400, "context_length_exceeded"),
    ({"prompt": "a " * 600}, 400, "context_length_exceeded"),
    ({"max_tokens": 300}, 400, "context_length_exceeded"),
    ({"n": 2}, 400, "unsupported_parameter"),
    ({"model": "other"}, 404, "model_not_found"),
)


async def test_refuses_with_a_status_before_any_engine_work(tmp_path):
    async with gateway_rig(tmp_path, max_model_len=400) as rig:
        await rig.configure(DIRECT_ALWAYS)
        for fields, status, code in REFUSALS:
            for is_stream in (False, True):
                answer = await rig.complete(**{"prompt": prompt_of(200), "stream": is_stream, **fields})
                assert (answer.status, answer.error["code"]) == (status, code)
                assert set(answer.error) == {"message", "type", "param", "code"}
        assert all(client.node.counters.requests == 0 for client in rig.nodes.values())


async def test_a_token_that_no_model_knows_is_the_clients_mistake(rig):
    await rig.configure(DIRECT_ALWAYS)
    answer = await rig.complete([10, 2_000_000_000], max_tokens=4)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


async def test_refuses_what_is_not_json_and_what_is_too_large(rig):
    await rig.configure(DIRECT_ALWAYS)
    for body, status in ((b"{", 400), (b"[]", 400), (b" " * (MAX_BODY_BYTES + 1), 413)):
        response = await rig.http.post(f"{rig.url}/v1/completions", content=body)
        assert response.status_code == status
        assert response.json()["error"]["message"]


async def test_echoes_a_request_id_or_makes_one(rig):
    await rig.configure(DIRECT_ALWAYS)
    body = rig.body(prompt_of(20), max_tokens=2)
    given = await rig.http.post(f"{rig.url}/v1/completions", json=body, headers={"X-Request-Id": "my-id"})
    made = await rig.http.post(f"{rig.url}/v1/completions", json=body, headers={"X-Request-Id": "bad\tid"})
    refused = await rig.http.post(f"{rig.url}/v1/completions", json={}, headers={"X-Request-Id": "third"})
    assert (given.headers["x-request-id"], given.json()["id"]) == ("my-id", "cmpl-my-id")
    assert len(made.headers["x-request-id"]) == 32
    assert refused.headers["x-request-id"] == "third"
    assert [record.request_id for record in rig.records] == ["my-id", made.headers["x-request-id"]]


async def test_marks_demo_traffic(rig):
    await rig.configure(DIRECT_ALWAYS)
    body = rig.body(prompt_of(20), max_tokens=2)
    await rig.http.post(f"{rig.url}/v1/completions", json=body, headers={"X-PDD-Traffic": "demo"})
    assert rig.records[0].traffic == "demo"


async def test_usage_and_ids_come_only_when_asked_for(rig):
    await rig.configure(DIRECT_ALWAYS)
    body = {"model": MODEL, "prompt": prompt_of(20), "max_tokens": 3, "stream": True}
    response = await rig.http.post(f"{rig.url}/v1/completions", json=body)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert all("token_ids" not in chunk["choices"][0] for chunk in chunks)


async def test_serves_nothing_until_it_is_configured(rig):
    answer = await rig.complete(prompt_of(20), max_tokens=2)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "not_configured", "5")
    assert (await rig.http.get(f"{rig.url}/health")).status_code == 503
    await rig.configure(DIRECT_ALWAYS)
    assert (await rig.http.get(f"{rig.url}/health")).status_code == 200


async def test_sheds_in_words_when_no_node_is_left(rig):
    await rig.configure(DIRECT_ALWAYS)
    fleet = rig.fleet()
    drained = FleetSnapshot(sites=fleet.sites, nodes=(), model=MODEL, kv_bytes_per_token=64)
    await rig.put_config(DEFAULT_POLICY_DOCUMENT, drained)
    answer = await rig.complete(prompt_of(20), max_tokens=2)
    assert answer.status == 404


async def test_the_admin_api_wants_the_sites_secret(rig):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": SECRET}):
        for path in ("config", "state"):
            response = await rig.http.get(f"{rig.url}/admin/v1/{path}", headers=headers)
            assert response.status_code == 401
    assert (await rig.http.put(f"{rig.url}/admin/v1/config", json={})).status_code == 401


async def test_a_configuration_is_idempotent_and_never_goes_back_unforced(rig):
    fleet = rig.fleet()
    first = await rig.put_config(DEFAULT_POLICY_DOCUMENT, fleet, revision=5)
    again = await rig.put_config(DEFAULT_POLICY_DOCUMENT, fleet, revision=5)
    older = await rig.put_config(DEFAULT_POLICY_DOCUMENT, fleet, revision=4)
    assert first.json() == again.json()
    assert (first.json()["revision"], older.status_code) == (5, 409)
    forced = await rig.put_config(DEFAULT_POLICY_DOCUMENT, fleet, revision=4, force="true")
    assert forced.json()["revision"] == 4
    wrong = await rig.put_config({"routing": {"relay_load_ceiling": 9}}, fleet, revision=6)
    assert wrong.status_code == 400
    assert "relay_load_ceiling" in wrong.json()["error"]["message"]
    running = await rig.http.get(f"{rig.url}/admin/v1/config", headers={"Authorization": f"Bearer {SECRET}"})
    assert running.json()["revision"] == 4


async def test_a_policy_change_shows_in_the_next_request(rig):
    await rig.configure(DIRECT_ALWAYS)
    first = await rig.complete(prompt_of(200, 1), max_tokens=5)
    await rig.configure(ONE_SHOT)
    second = await rig.complete(prompt_of(200, 2), max_tokens=5)
    assert [answer.explained["pipeline"] for answer in (first, second)] == ["direct", "relay"]
    assert [answer.explained["policy_revision"] for answer in (first, second)] == [1, 2]


async def test_a_draining_node_gets_nothing_new(rig):
    fleet = rig.fleet().to_document()
    for node in fleet["nodes"]:
        if node["name"] == "fra-md-01":
            node["state"] = "draining"
    await rig.put_config(DEFAULT_POLICY_DOCUMENT, FleetSnapshot.from_document(fleet))
    answer = await rig.complete(prompt_of(50), max_tokens=5)
    assert answer.explained["main_node"] == "fra-md-02"


async def test_metrics_have_the_names_that_boards_use(rig):
    await rig.configure(ONE_SHOT)
    await rig.relayed(prompt_of(200), 20, max_tokens=200)
    text = (await rig.http.get(f"{rig.url}/metrics")).text
    assert 'pdd_requests_total{outcome="completed",pipeline="relay",site="ams"} 1.0' in text
    assert 'pdd_policy_revision_info{revision="1",site="ams"} 1.0' in text
    for name in (
        "pdd_request_ttft_seconds_bucket",
        "pdd_request_tpot_seconds_bucket",
        "pdd_request_e2e_seconds_bucket",
        "pdd_kv_transfer_seconds_bucket",
        "pdd_kv_transfer_bytes_total",
        "pdd_kv_transfers_in_flight",
        "pdd_relay_utilization_ratio",
        "pdd_eager_tokens_total",
        "pdd_output_tokens_total",
        "pdd_handoff_seconds_bucket",
        "pdd_handoffs_total",
        "pdd_gateway_overhead_seconds_bucket",
    ):
        assert name in text


async def test_no_word_of_a_prompt_or_an_answer_is_logged(rig, caplog):
    caplog.set_level(logging.DEBUG)
    await rig.configure(DIRECT_ALWAYS)
    answer = await rig.complete("the password is xyzzy123", max_tokens=8)
    await rig.complete("the password is xyzzy123", max_tokens=0)
    assert answer.status == 200
    assert "xyzzy123" not in caplog.text
    assert answer.text.strip() not in caplog.text


async def test_unknown_paths_and_wrong_methods_are_errors_in_openais_shape(rig):
    admin = {"Authorization": f"Bearer {SECRET}"}
    cases = (
        ("GET", "/v1/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/admin/v1/config", 405, "GET, PUT"),
        ("DELETE", "/admin/v1/state", 405, "GET"),
        ("GET", "/admin/v1/nothing", 404, None),
        ("GET", "/nothing", 404, None),
    )
    for method, path, status, allow in cases:
        response = await rig.http.request(method, rig.url + path, headers=admin)
        assert (response.status_code, response.headers.get("allow")) == (status, allow)
        assert response.json()["error"]["code"]
    assert (await rig.http.post(f"{rig.url}/admin/v1/config")).status_code == 401, "strangers learn nothing"
