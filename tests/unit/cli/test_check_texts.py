"""What `pdd check handoff` takes for a right answer, and what it does not."""

from collections import Counter
from random import Random

import pytest

from control.cli.check_plan import Aim
from control.cli.check_texts import (
    Alone,
    Text,
    difference,
    filled,
    next_text,
    proves,
    scripted_call,
    stop_string,
    tool_messages,
)
from control.cli.stream_client import TimedAnswer

ALONE = Alone([1, 2, 3, 4], "one two three four", "length")
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def answer(**fields):
    return TimedAnswer(**{"token_ids": [1, 2, 3, 4], "text": ALONE.text, "finish_reason": "length", **fields})


def test_the_same_answer_has_no_difference():
    for text in (Text.PLAIN, Text.MULTI_BYTE):
        assert difference(text, "", answer(), ALONE) == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"token_ids": [1, 2, 9, 4]}, "token 2 of 4"),
        ({"token_ids": [1, 2, 3]}, "token 3 of 4"),
        ({"text": "one two three fou"}, "another text"),
        ({"finish_reason": "stop"}, "ended with stop"),
        ({"finish_reason": None, "error": "broken"}, "broken"),
    ],
)
def test_any_other_answer_differs(fields, told):
    assert told in difference(Text.PLAIN, "", answer(**fields), ALONE)


def test_a_stop_string_ends_the_text_before_it_and_the_tokens_behind_it():
    stop = stop_string(ALONE)
    assert stop in ALONE.text
    right = {"token_ids": [1, 2, 3], "text": ALONE.text[: ALONE.text.index(stop)], "finish_reason": "stop"}
    assert difference(Text.STOP, stop, answer(**right), ALONE) == ""
    for wrong in ({"text": "one"}, {"finish_reason": "length"}, {"token_ids": [1, 3]}):
        assert difference(Text.STOP, stop, answer(**{**right, **wrong}), ALONE)


def test_tool_calls_are_compared_as_calls():
    alone = Alone([1, 2, 3, 4], f"Well. {CALL}", "stop")
    right = {"text": "Well.", "tool_calls": [("f", '{"a": 1}')], "finish_reason": "tool_calls"}
    assert difference(Text.TOOLS, "", answer(**right), alone) == ""
    for wrong in ({"tool_calls": []}, {"text": ""}, {"finish_reason": "stop"}):
        assert difference(Text.TOOLS, "", answer(**{**right, **wrong}), alone)


def test_kinds_of_text_take_turns_within_what_an_aim_has_room_for():
    sent: Counter[Text] = Counter()
    for _ in range(8):
        sent[next_text(Aim.CATCH_UP, sent)] += 1
    assert sent == dict.fromkeys(Text, 2)
    assert Text.TOOLS not in {next_text(aim, {**sent, Text.TOOLS: 0}) for aim in (Aim.DIRECT, Aim.OUTLIER)}


def test_an_answer_proves_what_its_text_was_for():
    assert proves(Text.MULTI_BYTE, answer(text="é"), "")
    assert not proves(Text.MULTI_BYTE, answer(), "")
    assert not proves(Text.STOP, answer(), "")


def test_chats_with_tools_share_their_beginning():
    script = scripted_call(Random(1))
    first, second = (tool_messages(script, filler)[0]["content"] for filler in ("one", "two"))
    assert first.removesuffix("one") == second.removesuffix("two")
    assert script in first


def test_a_tail_ends_a_prompt_of_the_wanted_length():
    assert filled([1, 2, 3, 4], [8, 9], 4) == [1, 2, 8, 9]
    assert filled([1, 2], [7, 8, 9], 2) == [7, 8, 9]
