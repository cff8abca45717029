"""Tool calls, reasoning and log-probabilities through the cut, with the OpenAI client as it is."""

import json
from dataclasses import replace

import openai
import pytest

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from tests.fleet import MODEL, prompt_of
from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT, gateway_rig

LABELS = {"tool_parser": "hermes", "reasoning_parser": "think"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ARGUMENTS = f'{{"city": "Zürich 😀", "note": "a </tool_call> inside {"of a note " * 40}"}}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
THOUGHT = "the user wants 24 degrees 😀 or so"
WORDS = "tell me about the quick brown animal house over and over again " * 8


def script(text: str) -> str:
    """A user's message that an emulated node answers with a text."""
    return f"{WORDS} <script>{text}</script>"


@pytest.fixture
async def rig(tmp_path):
    # Slow enough that a catch-up always overtakes an answer, also on a busy machine.
    async with gateway_rig(tmp_path, decode_step_s=0.005) as rig:
        yield rig


@pytest.fixture
async def client(rig):
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def configure(rig, changes, labels=LABELS):
    fleet = replace(rig.fleet(), labels=labels)
    response = await rig.put_config(apply_changes(DEFAULT_POLICY_DOCUMENT, changes), fleet)
    assert response.status_code == 200, response.text


async def cut_inside(rig, client, after: int, **fields):
    """All chunks of a chat whose KV arrives once the relay has made `after` tokens, inside whatever they say."""
    rig.link.reshape({"paused": True})
    stream = await client.chat.completions.create(
        model=MODEL,
        temperature=0,
        stream=True,
        extra_body={"return_token_ids": True},
        extra_headers={"X-PDD-Explain": "1"},
        **fields,
    )
    chunks, made = [], 0
    async for chunk in stream:
        chunks.append(chunk)
        made += sum(len(choice.model_extra.get("token_ids") or ()) for choice in chunk.choices)
        if made >= after:
            rig.link.reshape({"paused": False})
    return chunks


def message_of(chunks):
    """What a client makes of the deltas."""
    content, reasoning, calls, finish = "", "", {}, None
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        content += choice.delta.content or ""
        reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            known["arguments"] += call.function.arguments or ""
        finish = choice.finish_reason or finish
    return content, reasoning, list(calls.values()), finish


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
@pytest.mark.parametrize("after", [3, 20, 60])
async def test_a_call_that_the_cut_falls_into_is_whole(rig, client, changes, after):
    await configure(rig, changes)
    messages = [{"role": "user", "content": script(f"<think>{THOUGHT}</think>\n\nOne moment.\n{CALL}")}]
    chunks = await cut_inside(rig, client, after, messages=messages, tools=[TOOL])
    content, reasoning, (call,), finish = message_of(chunks)
    assert (content, reasoning, finish) == ("One moment.", THOUGHT, "tool_calls")
    assert (call["name"], json.loads(call["arguments"])) == ("weather", json.loads(ARGUMENTS))
    assert call["id"].startswith("call_")
    explained = chunks[-1].pdd
    assert explained["pipeline"] == "relay"
    assert after <= explained["eager_tokens"] < explained["output_tokens"]
    assert await rig.settled() == {}


@pytest.mark.parametrize(("changes", "pipeline"), [(ONE_SHOT, "relay"), (CATCH_UP, "relay"), (DIRECT_ALWAYS, "direct")])
async def test_an_agent_calls_gets_the_result_and_answers(rig, client, changes, pipeline):
    await configure(rig, changes)
    messages = [{"role": "user", "content": script(CALL)}]
    asked = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], temperature=0)
    message = asked.choices[0].message
    assert (message.content, asked.choices[0].finish_reason) == (None, "tool_calls")
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments)["city"] == "Zürich 😀"
    result = {"role": "tool", "tool_call_id": call.id, "content": "24 degrees <script>It is 24 degrees.</script>"}
    messages += [message.model_dump(exclude_none=True), result]
    answered = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], temperature=0)
    assert answered.choices[0].message.content == "It is 24 degrees."
    assert (answered.choices[0].finish_reason, answered.choices[0].message.tool_calls) == ("stop", None)
    assert answered.usage.prompt_tokens > asked.usage.prompt_tokens
    assert answered.usage.prompt_tokens_details.cached_tokens > 0
    assert await rig.settled() == {}
    assert [record.pipeline for record in rig.records] == [pipeline] * 2


@pytest.mark.parametrize("changes", [ONE_SHOT, CATCH_UP])
async def test_an_agents_conversation_is_handed_over_in_each_of_its_turns(rig, client, changes):
    await configure(rig, changes)
    messages = [{"role": "user", "content": script(CALL)}]
    chunks = await cut_inside(rig, client, 20, messages=messages, tools=[TOOL])
    _, _, (call,), finish = message_of(chunks)
    assert finish == "tool_calls"
    function = {"name": call["name"], "arguments": call["arguments"]}
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": f"24 degrees <script>It is {'very ' * 60}warm.</script>",
        },
    ]
    chunks = await cut_inside(rig, client, 20, messages=messages, tools=[TOOL])
    content, _, calls, finish = message_of(chunks)
    assert (content, calls, finish) == (f"It is {'very ' * 60}warm.", [], "stop")
    assert await rig.settled() == {}
    for record in rig.records:
        assert record.pipeline == "relay"
        assert 20 <= record.eager_tokens < record.output_tokens
        assert record.handoff_mode
    assert rig.records[1].cached_tokens > 0


async def test_two_calls_have_their_own_index_and_one_is_dropped_where_one_is_wanted(rig, client):
    await configure(rig, ONE_SHOT)
    messages = [{"role": "user", "content": script(f"{CALL}\n{CALL}")}]
    _, _, calls, _ = message_of(await cut_inside(rig, client, 30, messages=messages, tools=[TOOL]))
    assert len({call["id"] for call in calls}) == 2
    single = await client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], temperature=0, parallel_tool_calls=False
    )
    assert len(single.choices[0].message.tool_calls) == 1


async def test_a_broken_call_is_text(rig, client):
    await configure(rig, ONE_SHOT)
    text = 'Well. <tool_call>{"name": weather}</tool_call>'
    messages = [{"role": "user", "content": script(text)}]
    content, _, calls, finish = message_of(await cut_inside(rig, client, 12, messages=messages, tools=[TOOL]))
    assert (content, calls, finish) == (text, [], "stop")


async def test_without_tools_or_parsers_an_answer_is_left_alone(rig, client):
    messages = [{"role": "user", "content": script(CALL)}]
    await configure(rig, DIRECT_ALWAYS)
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **fields)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALL, "stop")
    await configure(rig, DIRECT_ALWAYS, labels={"tool_parser": "one of another age"})
    with pytest.raises(openai.BadRequestError, match="no tool-call parser"):
        await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])


async def test_a_stop_string_may_stand_inside_a_call(rig, client):
    await configure(rig, ONE_SHOT)
    messages = [{"role": "user", "content": script(CALL)}]
    chunks = await cut_inside(rig, client, 20, messages=messages, tools=[TOOL], stop=["inside"])
    content, _, calls, finish = message_of(chunks)
    assert (content, calls, finish) == (CALL[: CALL.index("inside")], [], "stop")


@pytest.mark.parametrize(("changes", "eager"), [(ONE_SHOT, 25), (CATCH_UP, 25)])
async def test_log_probabilities_are_joined_across_the_cut(rig, changes, eager):
    await configure(rig, changes)
    prompt = prompt_of(300)
    answer = await rig.relayed(prompt, eager, max_tokens=250, logprobs=2)
    alone = (await rig.nodes["alone"].complete(prompt, max_tokens=250, logprobs=2))["choices"][0]
    said = [choice["logprobs"] for chunk in answer.chunks for choice in chunk["choices"]]
    joined = {name: [value for each in said if each for value in each[name]] for name in alone["logprobs"]}
    assert eager <= answer.explained["eager_tokens"] < 250
    assert answer.token_ids == alone["token_ids"]
    assert joined == alone["logprobs"]


async def test_a_chat_has_log_probabilities_in_its_own_shape(rig, client):
    await configure(rig, ONE_SHOT)
    messages = [{"role": "user", "content": script("the café <tool_call>")}]
    for tools in ([], [TOOL]):
        fields = {"tools": tools} if tools else {}
        answer = await client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, logprobs=True, top_logprobs=3, **fields
        )
        tokens = answer.choices[0].logprobs.content
        assert len(tokens) == answer.usage.completion_tokens
        assert tokens[0].token == "the"[: len(tokens[0].token)]
        assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)
        assert any(token.bytes is None for token in tokens), "a part of a character has no bytes to tell"
        chunks = await cut_inside(rig, client, 3, messages=messages, logprobs=True, top_logprobs=3, **fields)
        streamed = [
            token
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs
            for token in choice.logprobs.content
        ]
        assert streamed == tokens


async def test_what_restarts_at_a_cut_goes_direct_with_that_reason(rig, client):
    await configure(rig, ONE_SHOT)
    for fields in ({"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"seed": 1, "temperature": 1}):
        answer = await rig.complete(prompt_of(200), max_tokens=4, **fields)
        assert (answer.status, answer.explained["pipeline"], answer.explained["reason"]) == (200, "direct", "parameter")
    answer = await rig.complete(prompt_of(200), max_tokens=4, repetition_penalty=1.1, logit_bias={"5": 1}, min_p=0.1)
    assert answer.explained["pipeline"] == "relay"
