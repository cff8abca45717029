"""Calls that a client demands: what schema they are written under, and how they are read back."""

import json

import pytest

from control.domain.answer_parser import AnswerFormat, Content, Reasoning, ToolCall
from control.domain.forced_calls import ForcedCallsParser, schema_of_arguments, schema_of_calls

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"type": "string"}}}


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def read(text, *, name="", max_calls=None, reasoning="", step=3):
    parser = ForcedCallsParser(AnswerFormat("", reasoning), name, max_calls)
    parts = [part for at in range(0, len(text), step) for part in parser.feed(text[at : at + step])]
    return [*parts, *parser.feed("", is_final=True)], parser.calls


def test_definitions_move_to_the_root_that_references_name():
    tools = [tool("weather", CITY), tool("now")]
    schema = schema_of_calls(tools, 1)
    assert schema["$defs"] == CITY["$defs"]
    weather, now = schema["items"]["anyOf"]
    assert weather["properties"]["arguments"] == {key: CITY[key] for key in ("type", "properties")}
    assert now["properties"]["name"]["enum"] == ["now"]
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert tools[0]["function"]["parameters"]["$defs"], "the client's tools stay as they are"
    assert schema_of_arguments(tools, "weather") == CITY


def test_two_meanings_of_one_definition_are_refused():
    other = {**CITY, "$defs": {"City": {"type": "integer"}}}
    with pytest.raises(ValueError, match="'City'"):
        schema_of_calls([tool("a", CITY), tool("b", other)], None)
    with pytest.raises(KeyError):
        schema_of_arguments([tool("a")], "b")


def test_calls_are_read_whole_at_the_end():
    calls = [{"name": "a", "arguments": {"x": "Zürich"}}, {"name": "b", "arguments": {}}]
    parts, count = read(json.dumps(calls))
    assert parts == [ToolCall(0, "a", '{"x": "Zürich"}'), ToolCall(1, "b", "{}")]
    assert count == 2
    assert read(json.dumps(calls), max_calls=1)[0] == parts[:1]


def test_a_named_functions_arguments_are_its_call_behind_reasoning():
    assert read('<think>so</think>\n{"x": 1}', name="f", reasoning="think", step=1000)[0] == [
        Reasoning("so"),
        ToolCall(0, "f", '{"x": 1}'),
    ]


@pytest.mark.parametrize("text", ['[{"name": "a", "argum', '{"x": 1', "3", '[{"name": "a"}]', "[]"])
def test_what_is_no_whole_call_stays_text(text):
    for name in ("", "f"):
        parts, count = read(text, name=name)
        assert (parts, count) == ([Content(text)], 0)
