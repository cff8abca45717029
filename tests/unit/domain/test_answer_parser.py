"""Content, reasoning and tool calls: the same for every way an answer can be cut into chunks."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.answer_parser import AnswerFormat, AnswerParser, Content, Part, Reasoning, ToolCall

BOTH = AnswerFormat("hermes", "think")
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 😀"}}\n</tool_call>'
CALL = ToolCall(0, "weather", '{"city": "Zürich 😀"}')

FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"a": "</tool_call>"}}',
        '{"name": "g"}',
        '{"name": 3}',
        '"',
        "\\",
        "\n",
        " ",
        "words",
        "<",
        "<tool",
        "é😀",
        WEATHER,
    ]
)


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind made one, as a client joins the deltas it gets."""
    result: list[Part] = []
    for part in parts:
        if result and not isinstance(part, ToolCall) and type(result[-1]) is type(part):
            result[-1] = type(part)(result[-1].text + part.text)
        else:
            result.append(part)
    return result


def parse(chunks, answer_format=BOTH, *, wants_tools=True, max_calls=None):
    parser = AnswerParser(answer_format, wants_tools=wants_tools, max_calls=max_calls)
    parts = [part for chunk in chunks for part in parser.feed(chunk)]
    return joined(parts + parser.feed("", is_final=True))


@given(
    fragments=st.lists(FRAGMENTS, max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    reasoning=st.sampled_from(["", "think", "think_open"]),
    wants_tools=st.booleans(),
)
def test_any_chunking_gives_the_same_result(fragments, cuts, reasoning, wants_tools):
    text = "".join(fragments)
    answer_format = AnswerFormat("hermes", reasoning)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(edges)]
    whole = parse([text], answer_format, wants_tools=wants_tools)
    assert parse(chunks, answer_format, wants_tools=wants_tools) == whole
    assert parse(text, answer_format, wants_tools=wants_tools) == whole


@given(text=st.text())
def test_text_without_tags_is_content_unchanged(text):
    if "<" not in text:
        assert parse(text) == ([Content(text)] if text else [])


ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.text(max_size=20) | st.lists(st.text(max_size=5)), max_size=3
)


@given(arguments=ARGUMENTS)
def test_arguments_survive_whatever_they_hold(arguments):
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    (call,) = parse(text)
    assert json.loads(call.arguments) == arguments


CASES = [
    (WEATHER, [CALL]),
    (f"Let me look.\n{WEATHER}\n", [Content("Let me look."), CALL]),
    (f"<think>\nhm</think>\n\n{WEATHER}", [Reasoning("\nhm"), CALL]),
    ("<think>hm</think>\n\nYes. ", [Reasoning("hm"), Content("Yes. ")]),
    ("<think>cut short", [Reasoning("cut short")]),
    ("no <think>tag</think> later", [Content("no <think>tag</think> later")]),
    (f"{WEATHER}\n{WEATHER}", [CALL, ToolCall(1, CALL.name, CALL.arguments)]),
    (f"{WEATHER} then more ", [CALL, Content(" then more ")]),
    ('<tool_call>{"name": "now"}', [ToolCall(0, "now", "{}")]),
    ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', [ToolCall(0, "f", "{}")]),
]


@pytest.mark.parametrize(("text", "parts"), CASES)
def test_reads_what_models_write(text, parts):
    assert parse(text) == parts


BROKEN = ["{", "", "[]", '{"name": ""}', '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": {"a": NaN}}']


@pytest.mark.parametrize("body", [*BROKEN, "[" * 100_000])
def test_what_is_no_call_stays_content_to_the_letter(body):
    for text in (f"a \n<tool_call>{body}</tool_call> b", f"<tool_call>{body}"):
        assert parse([text]) == [Content(text)]


def test_an_open_quote_does_not_swallow_the_next_call():
    broken = '<tool_call>{"name": "</tool_call>'
    assert parse(broken + WEATHER) == [Content(broken), CALL]


def test_calls_are_text_where_no_tools_were_offered():
    assert parse(WEATHER, wants_tools=False) == [Content(WEATHER)]


def test_only_the_first_call_counts_where_one_at_a_time_is_wanted():
    assert parse(f"{WEATHER}\n{WEATHER}", max_calls=1) == [CALL]


def test_an_answer_may_begin_inside_its_reasoning():
    assert parse("so</think> Yes", AnswerFormat("", "think_open")) == [Reasoning("so"), Content("Yes")]


def test_text_is_not_held_back_longer_than_it_may_become_a_tag():
    parser = AnswerParser(BOTH, wants_tools=True)
    assert parser.feed("well <too") == [Content("well")]
    assert parser.feed("ls> ") == [Content(" <tools>")]


def test_an_unknown_parser_is_named():
    with pytest.raises(ValueError, match="pythonic"):
        AnswerFormat.of_labels({"tool_parser": "pythonic"})
    with pytest.raises(ValueError, match="deep"):
        AnswerFormat.of_labels({"reasoning_parser": "deep"})
    assert AnswerFormat.of_labels({"tool_parser": "hermes"}) == AnswerFormat("hermes", "")
