import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from control.cli.load import LoadOptions, LoadRun, fetch_model
from control.cli.stream_client import stream_answer
from control.domain.workload import Span, WorkloadShape

SHAPE = WorkloadShape(think_s=Span(0, 0), cold_share=0)


def chunk(**fields):
    return f"data: {json.dumps(fields)}\n\n".encode()


class FakeEndpoint:
    """An OpenAI endpoint that answers each chat with three words."""

    def __init__(self):
        self.bodies = []
        self.open = 0
        self.most_open = 0
        self.status = 200

    async def chat(self, request):
        self.bodies.append(await request.json())
        if self.status != 200:
            return web.Response(status=self.status, text="refused")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in ("one", " two", " three"):
            await response.write(chunk(choices=[{"delta": {"content": word}, "finish_reason": None}]))
            await asyncio.sleep(0)
        await response.write(chunk(choices=[{"delta": {}, "finish_reason": "stop"}]))
        usage = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 30}}
        await response.write(chunk(choices=[], usage=usage))
        await response.write(b"data: [DONE]\n\n")
        self.open -= 1
        return response

    async def models(self, request):
        return web.json_response({"data": [{"id": "small"}]})


@pytest.fixture
async def endpoint():
    return FakeEndpoint()


@pytest.fixture
async def url(endpoint):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.models)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/v1"))
    await server.close()


async def send(url, **options):
    answers = []
    await LoadRun(LoadOptions(url, "small", shape=SHAPE, **options), answers.append).run()
    return answers


async def test_sends_exactly_the_number_of_requests_asked_for(url, endpoint):
    answers = await send(url, sessions=3, requests=10)
    assert len(answers) == len(endpoint.bodies) == 10
    assert all(answer.is_complete and answer.text == "one two three" for answer in answers)
    assert {(answer.input_tokens, answer.output_tokens, answer.cached_tokens) for answer in answers} == {(40, 3, 30)}


async def test_never_has_more_requests_open_than_sessions(url, endpoint):
    await send(url, sessions=2, requests=12)
    assert endpoint.most_open <= 2


async def test_each_turn_brings_back_the_whole_conversation_with_the_answers(url, endpoint):
    await send(url, sessions=1, requests=3)
    first, second, third = (body["messages"] for body in endpoint.bodies)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "one two three"}
    assert third[: len(second)] == second


async def test_the_same_seed_sends_the_same_requests(url, endpoint):
    await send(url, sessions=1, requests=5, seed=3)
    first, endpoint.bodies = endpoint.bodies, []
    await send(url, sessions=1, requests=5, seed=3)
    assert endpoint.bodies == first


async def test_a_closed_gate_holds_requests_back(url, endpoint):
    gate = asyncio.Event()
    run = LoadRun(LoadOptions(url, "small", sessions=2, requests=2, shape=SHAPE), lambda _: None, gate.wait)
    task = asyncio.ensure_future(run.run())
    await asyncio.sleep(0.05)
    assert endpoint.bodies == []
    gate.set()
    await task
    assert len(endpoint.bodies) == 2


async def test_a_refusal_is_an_answer_with_an_error(url, endpoint):
    endpoint.status = 503

    async with aiohttp.ClientSession() as http:
        answer = await stream_answer(http, f"{url}/chat/completions", {}, {})
    assert (answer.is_complete, answer.status) == (False, 503)
    assert answer.error == "HTTP 503: refused"


async def test_nobody_there_is_an_answer_with_an_error():

    async with aiohttp.ClientSession() as http:
        answer = await stream_answer(http, "http://127.0.0.1:9/v1", {}, {})
    assert not answer.is_complete
    assert "Connect" in answer.error


async def test_takes_the_first_model_the_endpoint_lists(url):
    assert await fetch_model(url, {}) == "small"
