"""Tools, calls and results as plain text in the Hermes format, for chat templates that know messages only."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

_SECTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def needs_hermes(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a plain template would leave something out."""
    return bool(tools) or any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def hermes_messages(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of text only that say the same.

    The system message names the tools, calls stand in the assistant's text, and neighbouring results in one message of
    the user.

    Raises:
        ValueError: a call or its content is not what OpenAI's schema says.
    """
    plain: list[dict[str, Any]] = []
    is_after_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        content = _text(message.get("content"))
        if is_result:
            result = f"<tool_response>\n{content}\n</tool_response>"
            if is_after_result:
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result})
        else:
            calls = [_call_text(call) for call in message.get("tool_calls") or ()]
            plain.append({"role": message.get("role"), "content": "\n".join([*([content] if content else []), *calls])})
        is_after_result = is_result
    return _with_section(plain, tools) if tools else plain


def _with_section(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    section = _SECTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages and messages[0]["role"] in {"system", "developer"}:
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{section}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": section}, *messages]


def _call_text(call: Any) -> str:
    try:
        name, arguments = call["function"]["name"], call["function"].get("arguments") or {}
    except (TypeError, KeyError, AttributeError):
        raise ValueError("a tool call needs a function with a name") from None
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # the model wrote it so; it may see what it wrote
            arguments = json.loads(arguments)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ValueError("a message's content must be text")  # noqa: TRY004 - it is the client's data that is wrong
    return content
