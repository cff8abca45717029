"""The parameter table: every parameter of OpenAI's client has a row, and rows, checks and the document agree."""

import json

import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat

from engine_agents.gateway.errors import RefusalError
from engine_agents.gateway.openai_schema import parse_request
from engine_agents.gateway.parameters import (
    CHAT,
    COMPLETIONS,
    DOCUMENT,
    PARAMETERS,
    Handling,
    parameters_document,
)

BODIES = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "secret words"}]},
    COMPLETIONS: {"model": "m", "prompt": "secret words"},
}
TYPED = {CHAT: chat, COMPLETIONS: completion}
VALUES = {
    "stop": "END",
    "logit_bias": {"5": -100},
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 3,
    "min_p": 0.1,
    "top_p": 0.5,
    "top_k": 3,
    "temperature": 0.5,
    "ignore_eos": True,
}


def parse(endpoint, **fields):
    return parse_request(endpoint, json.dumps({**BODIES[endpoint], **fields}).encode())


def rows(*handlings):
    return [
        pytest.param(endpoint, row, id=f"{endpoint}-{row.name}")
        for row in PARAMETERS
        for endpoint in row.endpoints
        if row.handling in handlings
    ]


@pytest.mark.parametrize("endpoint", TYPED)
def test_every_parameter_of_openais_client_has_exactly_one_row(endpoint):
    typed = TYPED[endpoint]
    names = set(typed.CompletionCreateParamsBase.__annotations__)
    names |= set(typed.CompletionCreateParamsStreaming.__annotations__)
    ours = [row.name for row in PARAMETERS if endpoint in row.endpoints]
    assert names - set(ours) == set()
    assert len(ours) == len(set(ours))


def test_the_document_is_up_to_date():
    assert DOCUMENT.read_text(encoding="utf-8") == parameters_document(), (
        "run python -m engine_agents.gateway.parameters"
    )


@pytest.mark.parametrize(("endpoint", "row"), rows(Handling.PASSED, Handling.DIRECT))
def test_what_is_for_the_engine_reaches_it_under_its_name(endpoint, row):
    request = parse(endpoint, **{"temperature": 0.7, row.name: VALUES[row.name]})
    sent = json.loads(json.dumps(request.sampling[row.name]))
    assert sent == VALUES[row.name]
    assert request.forced_direct_by == (row.name if row.handling is Handling.DIRECT else "")


@pytest.mark.parametrize(("endpoint", "row"), rows(Handling.IGNORED))
def test_what_is_ignored_changes_nothing(endpoint, row):
    assert parse(endpoint, **{row.name: "anything"}) == parse(endpoint)


@pytest.mark.parametrize(("endpoint", "row"), rows(*Handling))
def test_null_asks_for_nothing_unless_the_parameter_is_required(endpoint, row):
    if row.is_required:
        with pytest.raises(RefusalError) as caught:
            parse(endpoint, **{row.name: None})
        assert (caught.value.status, caught.value.param) == (400, row.name)
    else:
        assert parse(endpoint, **{row.name: None}) == parse(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "row"), rows(Handling.GATEWAY, Handling.PASSED, Handling.DIRECT, Handling.GRAMMAR)
)
def test_a_value_of_a_wrong_type_is_refused_by_name(endpoint, row):
    with pytest.raises(RefusalError) as caught:
        parse(endpoint, **{row.name: [[{}]]})
    assert (caught.value.status, caught.value.param) == (400, row.name)
    assert row.name in caught.value.message


def test_a_seed_at_temperature_zero_does_not_hide_another_reason():
    assert parse(CHAT, seed=1, temperature=0, presence_penalty=1).forced_direct_by == "presence_penalty"
    assert parse(CHAT, presence_penalty=1, temperature=0, seed=1).forced_direct_by == "presence_penalty"


def test_log_probabilities_are_asked_for_in_each_endpoints_words():
    assert parse(COMPLETIONS, logprobs=3).sampling["logprobs"] == 3
    assert parse(COMPLETIONS, logprobs=0).logprobs == 0
    assert parse(CHAT, logprobs=True).sampling["logprobs"] == 0
    assert parse(CHAT, logprobs=True, top_logprobs=2).sampling["logprobs"] == 2
    assert "logprobs" not in parse(CHAT, logprobs=False).sampling
    with pytest.raises(RefusalError, match="needs `logprobs`"):
        parse(CHAT, top_logprobs=2)


TOOL = {"type": "function", "function": {"name": "f"}}


def test_tools_go_to_the_chat_template_unless_the_client_wants_none_called():
    request = parse(CHAT, tools=[TOOL], parallel_tool_calls=False)
    assert (request.tools, request.template_options["tools"], request.max_tool_calls) == ((TOOL,), (TOOL,), 1)
    assert parse(CHAT, tools=[TOOL], tool_choice="auto").tools == (TOOL,)
    unwanted = parse(CHAT, tools=[TOOL], tool_choice="none")
    assert (unwanted.tools, "tools" in unwanted.template_options) == ((), False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tools": [{"type": "custom"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": {"name": "f"}}, "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages"),
        ({"model": "m" * 257}, "model"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages"),
    ],
)
def test_tools_that_cannot_be_served_are_refused(fields, param):
    with pytest.raises(RefusalError) as caught:
        parse(CHAT, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


SCHEMA = {"name": "s", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("wanted", [{"type": "json_object"}, {"type": "json_schema", "json_schema": SCHEMA}])
def test_a_response_format_goes_to_one_engine_that_has_grammars(endpoint, wanted):
    request = parse(endpoint, response_format=wanted)
    assert request.sampling["response_format"] == wanted
    assert (request.forced_direct_by, request.grammar_by) == ("response_format", "response_format")
    plain = parse(endpoint, response_format={"type": "text"})
    assert plain == parse(endpoint)


def test_a_demanded_call_becomes_a_schema_of_it():
    request = parse(CHAT, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    schema = request.sampling["response_format"]["json_schema"]["schema"]
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert (request.forced_call, request.grammar_by, request.tools) == ("", "tool_choice", (TOOL,))
    named = parse(CHAT, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
    assert named.sampling["response_format"]["json_schema"]["schema"]["type"] == "object"
    assert named.forced_call == "f"
    assert "tool_choice" not in named.sampling
