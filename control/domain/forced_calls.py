"""Calls that a client demands: the JSON schema that makes an engine write them, and what reads them back. Pure.

Under such a schema an answer is JSON from its first character (behind reasoning, if any): the arguments of the one
function that was named, or a list of `{"name": …, "arguments": {…}}`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from control.domain.answer_parser import AnswerFormat, AnswerParser, Content, Part, ToolCall

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_DEFINITIONS = "$defs"


def schema_of_arguments(tools: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What the arguments of a named function must be.

    Raises:
        KeyError: no tool has that name.
    """
    for tool in tools:
        if tool["function"]["name"] == name:
            return dict(tool["function"].get("parameters") or _NO_ARGUMENTS)
    raise KeyError(name)


def schema_of_calls(tools: Sequence[Mapping[str, Any]], max_calls: int | None) -> dict[str, Any]:
    """What a list of at least one call must be.

    Raises:
        ValueError: two tools define one name differently, which cannot be said in one schema.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for name in dict.fromkeys(tool["function"]["name"] for tool in tools):
        arguments = schema_of_arguments(tools, name)
        for key, definition in arguments.pop(_DEFINITIONS, {}).items():
            # References name their definition from the root, which the list is now.
            if definitions.setdefault(key, definition) != definition:
                raise ValueError(f"two tools define {key!r} differently")
        properties = {"name": {"type": "string", "enum": [name]}, "arguments": arguments}
        calls.append({"type": "object", "properties": properties, "required": list(properties)})
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    if definitions:
        schema[_DEFINITIONS] = definitions
    return schema


class ForcedCallsParser:
    """One answer under such a schema being read; `name` is the named function's, empty where any may be called.

    Calls come out at the answer's end. What is no whole JSON, as where the limit of tokens cut it off, stays text.
    """

    def __init__(self, answer_format: AnswerFormat, name: str, max_calls: int | None = None) -> None:
        self.calls = 0
        self._inner = AnswerParser(answer_format, wants_tools=False)
        self._name = name
        self._max_calls = max_calls
        self._text = ""

    def feed(self, text: str, *, is_final: bool = False) -> list[Part]:
        """What these further characters complete; with `is_final`, all that is left."""
        parts: list[Part] = []
        for part in self._inner.feed(text, is_final=is_final):
            if isinstance(part, Content):
                self._text += part.text
            else:
                parts.append(part)
        if is_final and self._text:
            calls = self._read()
            self.calls = len(calls)
            parts.extend(calls or [Content(self._text)])
        return parts

    def _read(self) -> list[ToolCall]:
        try:
            document = json.loads(self._text)
        except (ValueError, RecursionError):
            return []
        if self._name:
            return [ToolCall(0, self._name, self._text.strip())] if isinstance(document, dict) else []
        found = document if isinstance(document, list) else []
        if not all(_is_call(call) for call in found):
            return []
        return [
            ToolCall(index, call["name"], json.dumps(call["arguments"], ensure_ascii=False))
            for index, call in enumerate(found[: self._max_calls])
        ]


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
