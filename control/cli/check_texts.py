"""What the requests of `pdd check handoff` say, and what their answers must then be. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from control.cli.check_plan import Aim, first_difference
from control.cli.stream_client import TimedAnswer
from control.domain.answer_parser import AnswerFormat, AnswerParser, Content, ToolCall

MULTI_BYTE_TAIL = " Repeat: 🎉🦊é 🎉🦊é 🎉🦊é 🎉🦊é 🎉🦊é 🎉"
_STOP_CHARS = 5
_CALL_LETTERS = 120
TOOL_OUTPUT_TOKENS = 200
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Keeps a note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


class Text(StrEnum):
    """What is special about a request's text."""

    PLAIN = "plain"
    STOP = "stop"
    MULTI_BYTE = "multi_byte"
    TOOLS = "tools"


_OF_AIM: Mapping[Aim, tuple[Text, ...]] = {
    Aim.DIRECT: (Text.PLAIN, Text.STOP),
    Aim.OUTLIER: (Text.PLAIN, Text.MULTI_BYTE),
}


@dataclass(frozen=True, slots=True)
class Alone:
    """What one node alone answered."""

    token_ids: list[int]
    text: str
    finish_reason: str | None


def next_text(aim: Aim, sent: Mapping[Text, int]) -> Text:
    """The kind of text that was sent least, of those an aim allows: some need more room than it has."""
    return min(_OF_AIM.get(aim, tuple(Text)), key=lambda text: sent[text])


def stop_string(alone: Alone) -> str:
    """A part of the answer, as late in it as may be; empty if the answer has none."""
    start = len(alone.text) * 3 // 4
    return alone.text[start : start + _STOP_CHARS].strip("\ufffd")


def scripted_call(rng: Random) -> str:
    """A tool call that emulated nodes are told to make: long enough to be handed over in either mode."""
    letters = "".join(rng.choices(_LETTERS, k=_CALL_LETTERS))
    call = json.dumps({"name": "note", "arguments": {"text": f"{letters} é😀"}}, ensure_ascii=False)
    return f"<script><tool_call>\n{call}\n</tool_call></script>"


def tool_messages(script: str, filler: str) -> list[dict[str, Any]]:
    """A chat that asks for the call. What all chats share comes first, so that MD has it from the second one on."""
    return [{"role": "user", "content": f"Keep a note with the tool. {script} {filler}"}]


def difference(text: Text, stop: str, answer: TimedAnswer, alone: Alone) -> str:
    """What in an answer is not as it must be; empty if all is."""
    if not answer.is_complete:
        return answer.error
    if stop:
        return _stopped_difference(stop, answer, alone)
    at = first_difference(answer.token_ids, alone.token_ids)
    if at is not None:
        return f"differs at token {at} of {len(alone.token_ids)}"
    if text is Text.TOOLS:
        return _parts_difference(answer, alone)
    if answer.text != alone.text:
        return "has the same tokens and another text"
    return "" if answer.finish_reason == alone.finish_reason else f"ended with {answer.finish_reason}"


def _stopped_difference(stop: str, answer: TimedAnswer, alone: Alone) -> str:
    at = first_difference(answer.token_ids, alone.token_ids[: len(answer.token_ids)])
    if at is not None:
        return f"differs at token {at} before its stop string"
    if answer.text != alone.text[: alone.text.index(stop)]:
        return "does not end before its stop string"
    return "" if answer.finish_reason == "stop" else f"ended with {answer.finish_reason} and not at its stop string"


def _parts_difference(answer: TimedAnswer, alone: Alone) -> str:
    parts = AnswerParser(AnswerFormat("hermes"), wants_tools=True).feed(alone.text, is_final=True)
    content = "".join(part.text for part in parts if isinstance(part, Content))
    calls = [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)]
    if answer.text != content or answer.tool_calls != calls:
        return "has the same tokens and other tool calls"
    finish = "tool_calls" if calls and alone.finish_reason == "stop" else alone.finish_reason
    return "" if answer.finish_reason == finish else f"ended with {answer.finish_reason}"


def proves(text: Text, answer: TimedAnswer, stop: str) -> bool:
    """Whether an answer shows what its kind of text is for."""
    match text:
        case Text.STOP:
            return bool(stop)
        case Text.MULTI_BYTE:
            return not answer.text.isascii()
        case _:
            return True


def filled(tokens: Sequence[int], tail: Sequence[int], count: int) -> list[int]:
    """`count` tokens of which the last ones are the tail."""
    return [*tokens[: max(0, count - len(tail))], *tail]
