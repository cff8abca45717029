"""What the gateway reads out of a stock vLLM's replies, written out as vLLM 0.32 writes them."""

import json
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from control.domain.topology import Node, Role
from control.site_secret import SiteSecret
from engine_agents.gateway.node_client import NodeClient
from engine_agents.gateway.node_errors import NodeBusyError, NodeRefusedError, TransferRefusedError
from engine_agents.gateway.prompt import Prompt
from engine_agents.nodes.serve import serving

PULL_PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_request_id": "r"}
LEASE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "394c7319-eda6-4d31-8350-6eefc73afe3d",
    "remote_request_id": "cmpl-lease-abc0-0-8e06f98e",
    "remote_host": "127.0.0.1",
    "remote_port": 5601,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 96,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "read",
}


def error(status: int, kind: str, message: str = "Internal server error") -> dict:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def reply(token: int = 346, finish: str = "length", **fields) -> dict:
    details = {"cached_tokens": 64, "created_cache_tokens": None, "multimodal_tokens": None}
    return {
        "id": "cmpl-lease-abc0",
        "object": "text_completion",
        "created": 1796062618,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "zo",
                "logprobs": None,
                "finish_reason": finish,
                "stop_reason": None,
                "token_ids": [token],
                "prompt_logprobs": None,
                "prompt_token_ids": [1] * 96,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-39d2aeae",
        "usage": {
            "prompt_tokens": 96,
            "total_tokens": 97,
            "completion_tokens": 1,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        },
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
        **fields,
    }


def chunk(ids: list[int], text: str, finish: str | None = None) -> dict:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": ids}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


USAGE_CHUNK = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [],
    "usage": {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": None},
    "system_fingerprint": "vllm-0.32.0-39d2aeae",
}


@asynccontextmanager
async def saying(answer, status: int = 200):
    """A client and a node that gives one answer: a document, or the documents of a stream."""
    asked = []

    async def handle(request):
        asked.append((request.method, request.url.path, await request.body()))
        if isinstance(answer, dict):
            return JSONResponse(answer, status)

        async def events():
            for document in answer:
                yield b"data: " + json.dumps(document).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST", "DELETE"])])
    async with serving(app, host="127.0.0.1", port=0) as port:
        client = NodeClient(SiteSecret("secret"))
        try:
            yield client, Node("v", "ams", Role.MAIN, f"http://127.0.0.1:{port}", "vllm", "m"), asked
        finally:
            await client.close()


async def read(client, node, kv_params=None):
    stream = client.stream(node, Prompt((1, 2)), "m", 8, sampling={"temperature": 0}, kv_params=kv_params)
    chunks = []
    async with stream:
        assert await stream.run(lambda chunk: chunks.append(chunk) is None)
    return chunks


async def test_a_lease_is_read_and_passed_on_as_it_is():
    async with saying(reply(kv_transfer_params=LEASE)) as (client, node, asked):
        lease = await client.prefill(node, Prompt(tuple(range(96))), "m")
    assert (lease.lease_id, lease.params, lease.cached_tokens) == (LEASE["remote_request_id"], LEASE, 64)
    body = json.loads(asked[0][2])
    assert body["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert (body["max_tokens"], body["return_token_ids"], body["prompt"]) == (1, True, list(range(96)))


async def test_a_lease_that_cannot_be_released_is_left_to_expire():
    async with saying({"detail": "Not Found"}, 404) as (client, node, asked):
        await client.release(node, LEASE["remote_request_id"])
    assert asked[0][:2] == ("DELETE", f"/pdd/v1/leases/{LEASE['remote_request_id']}")


async def test_a_catch_up_batch_names_the_next_token_and_what_was_computed():
    async with saying(reply(token=7)) as (client, node, asked):
        answer = await client.extend(node, Prompt(tuple(range(96))), "m")
    assert answer.token_id == 7
    assert (answer.work.computed_tokens, answer.work.resident_tokens) == (32, 64)
    assert "kv_transfer_params" not in json.loads(asked[0][2])


async def test_a_failed_pull_is_a_refused_transfer():
    async with saying(error(500, "InternalServerError"), 500) as (client, node, _):
        with pytest.raises(TransferRefusedError):
            await client.pull(node, Prompt((1, 2)), "m", PULL_PARAMS)
        with pytest.raises(TransferRefusedError):
            await read(client, node, PULL_PARAMS)


async def test_a_failed_pull_in_a_stream_is_a_refused_transfer():
    async with saying([error(500, "InternalServerError")]) as (client, node, _):
        with pytest.raises(TransferRefusedError):
            await read(client, node, PULL_PARAMS)


async def test_a_failure_without_a_pull_or_after_the_first_token_is_the_nodes():
    async with saying([error(500, "InternalServerError")]) as (client, node, _):
        with pytest.raises(NodeRefusedError):
            await read(client, node)
    async with saying([chunk([1], "a"), error(500, "InternalServerError")]) as (client, node, _):
        with pytest.raises(NodeRefusedError):
            await read(client, node, PULL_PARAMS)


@pytest.mark.parametrize("finish", ["abort", "error"])
async def test_an_aborted_generation_is_no_answer(finish):
    async with saying([chunk([1], "a"), chunk([], "", finish)]) as (client, node, _):
        with pytest.raises(NodeRefusedError):
            await read(client, node)
    async with saying(reply(finish=finish)) as (client, node, _):
        with pytest.raises(NodeRefusedError):
            await client.extend(node, Prompt((1, 2)), "m")


async def test_bad_input_keeps_its_status_and_message():
    refusal = error(400, "BadRequestError", "Token id 5000 is out of vocabulary")
    async with saying(refusal, 400) as (client, node, _):
        with pytest.raises(NodeRefusedError) as caught:
            await client.pull(node, Prompt((5000,)), "m", PULL_PARAMS)
    assert (caught.value.status, caught.value.message) == (400, "Token id 5000 is out of vocabulary")


async def test_an_overloaded_server_is_busy():
    async with saying(error(503, "ServiceUnavailableError"), 503) as (client, node, _):
        with pytest.raises(NodeBusyError):
            await client.extend(node, Prompt((1, 2)), "m")


async def test_a_stream_ends_with_eos_and_a_usage_chunk():
    async with saying([chunk([5], "zo"), chunk([6, 7], " la"), chunk([0], "", "stop"), USAGE_CHUNK]) as (
        client,
        node,
        asked,
    ):
        chunks = await read(client, node)
    assert [part.choices[0].token_ids for part in chunks[:-1]] == [(5,), (6, 7), (0,)]
    assert [part.choices[0].finish_reason for part in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1].choices == ()
    body = json.loads(asked[0][2])
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


async def test_ids_are_decoded_with_the_model_named():
    async with saying({"prompt": "zo"}) as (client, node, asked):
        assert await client.detokenize(node, "m", (5, 6)) == "zo"
    assert json.loads(asked[0][2]) == {"model": "m", "tokens": [5, 6]}
