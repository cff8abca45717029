"""Reads an answer's text as content, reasoning and tool calls, however it was cut into chunks. Pure.

The formats are the models' own: Hermes and Qwen write `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, reasoning
models `<think>…</think>` before everything else. What a parser makes of an answer depends on the whole text only, so a
tag may be split over tokens, over chunks, and over a change of decoders.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

TOOL_PARSER_LABEL = "tool_parser"
REASONING_PARSER_LABEL = "reasoning_parser"
TOOL_PARSERS = ("hermes",)
REASONING_PARSERS = ("think", "think_open")
"""`think_open`: the chat template has opened the reasoning already, so the answer begins inside it."""
PARSERS = {TOOL_PARSER_LABEL: TOOL_PARSERS, REASONING_PARSER_LABEL: REASONING_PARSERS}
"""The parsers that there are, by the label of a model profile that names one."""

_THINK, _THINK_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model thought with."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON text."""

    index: int
    name: str
    arguments: str


Part = Content | Reasoning | ToolCall


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Which parsers a model's answers need; empty names for none."""

    tool_parser: str = ""
    reasoning_parser: str = ""

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> "AnswerFormat":
        """The parsers that a model profile names.

        Raises:
            ValueError: it names one that does not exist.
        """
        for label, known in PARSERS.items():
            if labels.get(label) and labels[label] not in known:
                raise ValueError(f"no {label} {labels[label]!r}; there is {', '.join(known)}")
        return cls(labels.get(TOOL_PARSER_LABEL, ""), labels.get(REASONING_PARSER_LABEL, ""))


class _State(Enum):
    START = auto()
    REASONING = auto()
    AFTER_REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class AnswerParser:
    """One answer being read. White space around tool calls and behind reasoning belongs to neither side."""

    def __init__(self, answer_format: AnswerFormat, *, wants_tools: bool, max_calls: int | None = None) -> None:
        """Read calls only where the client offered tools; calls beyond `max_calls` are dropped."""
        self.calls = 0
        self._reads_calls = wants_tools and bool(answer_format.tool_parser)
        self._max_calls = max_calls
        self._state = {"": _State.CONTENT, "think": _State.START, "think_open": _State.REASONING}[
            answer_format.reasoning_parser
        ]
        self._pending = ""
        self._lead = ""
        self._searched = 0
        self._has_text_since_call = True

    def feed(self, text: str, *, is_final: bool = False) -> list[Part]:
        """What these further characters complete; with `is_final`, all that is left."""
        self._pending += text
        parts: list[Part] = []
        steps = {
            _State.START: self._start,
            _State.REASONING: self._reason,
            _State.AFTER_REASONING: self._after_reasoning,
            _State.CONTENT: self._content,
            _State.CALL: self._call,
        }
        while steps[self._state](parts, is_final=is_final):
            pass
        return parts

    # Each step says whether another one may follow at once.

    def _start(self, _: list[Part], *, is_final: bool) -> bool:
        begun = self._pending.lstrip()
        if begun.startswith(_THINK):
            self._pending, self._state = begun[len(_THINK) :], _State.REASONING
            return True
        if _THINK.startswith(begun) and not is_final:
            return False
        self._state = _State.CONTENT
        return True

    def _reason(self, parts: list[Part], *, is_final: bool) -> bool:
        end = self._pending.find(_THINK_END)
        keep = 0 if is_final else _begun_chars(self._pending, _THINK_END)
        thought = self._pending[:end] if end >= 0 else self._pending[: len(self._pending) - keep]
        if thought:
            parts.append(Reasoning(thought))
        self._pending = self._pending[len(thought) :]
        if end < 0:
            return False
        self._pending, self._state = self._pending[len(_THINK_END) :], _State.AFTER_REASONING
        return True

    def _after_reasoning(self, _: list[Part], *, is_final: bool) -> bool:  # noqa: ARG002 - all steps are called alike
        self._pending = self._pending.lstrip()
        if self._pending:
            self._state = _State.CONTENT
        return bool(self._pending)

    def _content(self, parts: list[Part], *, is_final: bool) -> bool:
        if not self._reads_calls:
            self._say(parts, self._pending)
            self._pending = ""
            return False
        at = self._pending.find(_CALL)
        if at >= 0:
            text = self._pending[:at].rstrip()
            self._say(parts, text)
            self._lead, self._pending = self._pending[len(text) : at], self._pending[at:]
            self._state, self._searched = _State.CALL, len(_CALL)
            return True
        if is_final:
            is_rest_of_call = not self._has_text_since_call and not self._pending.strip()
            self._say(parts, "" if is_rest_of_call else self._pending)
            self._pending = ""
            return False
        whole = self._pending[: len(self._pending) - _begun_chars(self._pending, _CALL)].rstrip()
        self._say(parts, whole)
        self._pending = self._pending[len(whole) :]
        return False

    def _call(self, parts: list[Part], *, is_final: bool) -> bool:
        end = self._end_of_call()
        if end < 0 and not is_final:
            return False
        body = self._pending[len(_CALL) : end if end >= 0 else None]
        call = _call_of(body)
        if call is None:
            # What is no call stays text: up to its end, or to what looks like one.
            close = end if end >= 0 else self._pending.find(_CALL_END)
            after = close + len(_CALL_END) if close >= 0 else len(self._pending)
            self._say(parts, self._lead + self._pending[:after])
        else:
            after = end + len(_CALL_END) if end >= 0 else len(self._pending)
            if self._max_calls is None or self.calls < self._max_calls:
                parts.append(ToolCall(self.calls, *call))
                self.calls += 1
            self._has_text_since_call = False
        self._pending, self._lead, self._state = self._pending[after:], "", _State.CONTENT
        return True

    def _end_of_call(self) -> int:
        """Where the closing tag stands; one inside a JSON string is part of an argument."""
        while True:
            at = self._pending.find(_CALL_END, self._searched)
            if at < 0:
                self._searched = max(self._searched, len(self._pending) - len(_CALL_END) + 1)
                return -1
            if '"' not in _JSON_STRING.sub("", self._pending[len(_CALL) : at]):
                return at
            self._searched = at + 1

    def _say(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(Content(text))
            self._has_text_since_call = True


def _call_of(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call; None if this is none."""
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        return call["name"], arguments  # some models write the JSON as a text
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _begun_chars(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins a tag."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)
