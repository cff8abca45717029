"""Grammars: on stock vLLM nodes through the DIRECT pipeline, refused on ours, and never continued elsewhere."""

import json

import openai
import pytest

from tests.fleet import MODEL
from tests.gateways import ONE_SHOT, gateway_rig
from tests.integration.test_gateway_stock import stock_rig

WORDS = "tell me about the quick brown animal house over and over again " * 8
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "weather"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
ANSWER = '{"city": "Zürich 😀"}'


def said(text):
    return [{"role": "user", "content": f"{WORDS} <script>{text}</script>"}]


def client_of(rig):
    return openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any", max_retries=0)


@pytest.mark.parametrize("wanted", [{"type": "json_object"}, JSON_SCHEMA])
async def test_a_grammar_goes_direct_to_a_stock_node(tmp_path, wanted):
    async with stock_rig(tmp_path, ONE_SHOT, 3) as (rig, fronts), client_of(rig) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=said(ANSWER), temperature=0, response_format=wanted
        )
        assert answer.choices[0].message.content == ANSWER
        assert fronts["fra-md-01"].formats == [wanted]
        assert fronts["ams-p-01"].formats == fronts["ams-rld-01"].formats == []
        assert await rig.settled() == {}
        assert [(record.pipeline, record.reason) for record in rig.records] == [("direct", "parameter")]


@pytest.mark.parametrize(
    ("choice", "text"),
    [(NAMED, ANSWER), ("required", json.dumps([{"name": "weather", "arguments": json.loads(ANSWER)}]))],
)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_demanded_call_is_made(tmp_path, choice, text, is_stream):
    async with stock_rig(tmp_path, ONE_SHOT, 3) as (rig, fronts), client_of(rig) as client:
        fields = {"model": MODEL, "messages": said(text), "tools": [TOOL], "tool_choice": choice, "temperature": 0}
        if is_stream:
            async with client.chat.completions.stream(**fields) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(**fields)
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", json.loads(ANSWER))
        assert answer.choices[0].finish_reason == "tool_calls"
        assert not answer.choices[0].message.content
        (wanted,) = fronts["fra-md-01"].formats
        assert wanted["type"] == "json_schema"
        assert await rig.settled() == {}
        assert rig.records[0].reason == "parameter"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": JSON_SCHEMA}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice"),
    ],
)
async def test_our_nodes_have_no_grammars_and_say_so(tmp_path, fields, param):
    async with gateway_rig(tmp_path) as rig, client_of(rig) as client:
        await rig.configure(ONE_SHOT)
        with pytest.raises(openai.BadRequestError, match="have no grammars") as caught:
            await client.chat.completions.create(model=MODEL, messages=said(ANSWER), **fields)
        assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


FIELDS = {"model": MODEL, "messages": said(ANSWER), "temperature": 0, "response_format": JSON_SCHEMA}


async def test_a_grammar_begins_anew_elsewhere_before_its_first_token(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 1) as (rig, fronts), client_of(rig) as client:
        fronts["fra-md-01"].breaks_after_tokens = 0
        answer = await client.chat.completions.create(**FIELDS)
        assert answer.choices[0].message.content == ANSWER
        assert [len(fronts[name].formats) for name in ("fra-md-01", "ams-rld-01")] == [1, 1]
        assert await rig.settled() == {}


async def test_a_grammar_that_has_begun_is_not_continued_elsewhere(tmp_path):
    async with stock_rig(tmp_path, ONE_SHOT, 1) as (rig, fronts), client_of(rig) as client:
        fronts["fra-md-01"].breaks_after_tokens = 2
        with pytest.raises(openai.InternalServerError, match="under `response_format`") as caught:
            await client.chat.completions.create(**FIELDS)
        assert caught.value.status_code == 502
        assert [len(fronts[name].formats) for name in ("fra-md-01", "ams-rld-01")] == [1, 0]
        assert await rig.settled() == {}
