"""OpenAI's request bodies, read into one form that both endpoints share."""

from collections.abc import Sequence
from typing import Any

import msgspec

from control.domain.forced_calls import schema_of_arguments, schema_of_calls
from engine_agents.gateway.errors import invalid
from engine_agents.gateway.parameter_values import JsonSchema, JsonSchemaFormat, NamedFunction, TextFormat
from engine_agents.gateway.parameters import (
    CHAT,
    COMPLETION_DEFAULT_MAX_TOKENS,
    COMPLETIONS,
    PASSED_TO_ENGINES,
    Parameters,
    read_parameters,
    require_parameters,
)
from engine_agents.gateway.prompt import Prompt


class GenerationRequest(msgspec.Struct, frozen=True):
    """What a client asked for. One of `text`, `prompt` and `messages` is set.

    `max_tokens` is None where the client set no limit; `forced_direct_by` names the parameter that does not survive
    a change of decoder; `sampling` goes to engines as it is. `tools` are those that the answer may call;
    `logprobs` is how many alternatives are wanted beside each token's log-probability, None for neither.
    `grammar_by` names the parameter that only an engine with grammars can obey, empty for none; `forced_call` is the
    function that must be called, empty for any of them, None where no call is demanded.
    """

    endpoint: str
    model: str
    text: str | None
    prompt: Prompt | None
    messages: list[dict[str, Any]] | None
    template_options: dict[str, Any]
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: dict[str, Any]
    cache_salt: str
    forced_direct_by: str
    is_stream: bool
    include_usage: bool
    return_token_ids: bool
    tools: tuple[dict[str, Any], ...]
    max_tool_calls: int | None
    logprobs: int | None
    grammar_by: str
    forced_call: str | None

    @property
    def is_chat(self) -> bool:
        """Whether the answer is a message."""
        return self.endpoint == CHAT


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_request(endpoint: str, body: bytes) -> GenerationRequest:
    """Read a body.

    Raises:
        RefusalError: 400, with what is wrong and where; the message never quotes the prompt.
    """
    try:
        fields = _fields.decode(body)
        require_parameters(endpoint, fields)
        if endpoint == CHAT:
            return _from_chat(read_parameters(endpoint, fields))
        prompt = Prompt.from_json(fields["prompt"])
        if prompt is not None:
            del fields["prompt"]
        return _from_completion(read_parameters(endpoint, fields), prompt)
    except msgspec.ValidationError as error:
        raise invalid(f"{error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("The body is not valid JSON.") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None


def _from_chat(parameters: Parameters) -> GenerationRequest:
    values = parameters.values
    if not values["messages"]:
        raise invalid("`messages` must hold at least one message.", "messages")
    messages = [_checked_message(message, position) for position, message in enumerate(values["messages"])]
    tools = _checked_tools(values.get("tools", ()))
    options: dict[str, Any] = {"add_generation_prompt": values.get("add_generation_prompt", True)}
    choice = values.get("tool_choice", "auto")
    if choice == "none":
        tools = ()
    if tools:
        options["tools"] = tools
    if "top_logprobs" in values and not values.get("logprobs"):
        raise invalid("`top_logprobs` needs `logprobs`.", "top_logprobs")
    max_calls = None if values.get("parallel_tool_calls", True) else 1
    forced_call, answer_format = None, values.get("response_format")
    if choice not in ("auto", "none"):
        forced_call = choice.function.name if isinstance(choice, NamedFunction) else ""
        answer_format = _format_of_calls(tools, forced_call, max_calls)
    elif tools and not isinstance(answer_format, TextFormat | None):
        raise invalid(
            '`response_format` would forbid calls of the `tools`; set `tool_choice` to "none" or to "required".',
            "response_format",
            "unsupported_parameter",
        )
    return _request(
        CHAT,
        parameters,
        messages=messages,
        answer_format=answer_format,
        forced_call=forced_call,
        max_tokens=values.get("max_completion_tokens") or values.get("max_tokens"),
        template_options=options,
        tools=tools,
        max_tool_calls=max_calls,
        logprobs=values.get("top_logprobs", 0) if values.get("logprobs") else None,
    )


def _checked_message(message: dict[str, Any], position: int) -> dict[str, Any]:
    """The message with its content as one text: clients may send a list of parts."""
    if not isinstance(message.get("role"), str):
        raise invalid(f"`messages[{position}]` has no `role`.", "messages")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise invalid(f"`messages[{position}].tool_calls` must be a list.", "messages")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"`messages[{position}].tool_calls` must hold calls of named functions.", "messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise invalid(f"`messages[{position}].content` may hold text only.", "messages", "unsupported_content")
    return {**message, "content": "".join(str(part.get("text", "")) for part in parts)}


def _checked_tools(tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    for position, tool in enumerate(tools):
        function = tool.get("function")
        is_named = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
        if tool.get("type") != "function" or not is_named:
            raise invalid(f"`tools[{position}]` must be a function with a name.", "tools", "unsupported_tool")
    return tuple(tools)


def _format_of_calls(tools: Sequence[dict[str, Any]], name: str, max_calls: int | None) -> JsonSchemaFormat:
    """The form of an answer that calls the named function, or at least one where `name` is empty."""
    if not tools:
        raise invalid("`tool_choice` needs `tools`.", "tool_choice")
    for position, tool in enumerate(tools):
        arguments = tool["function"].get("parameters") or {}
        if not isinstance(arguments, dict) or not isinstance(arguments.get("$defs", {}), dict):
            raise invalid(f"`tools[{position}].function.parameters` must be a JSON schema.", "tools")
    try:
        schema = schema_of_arguments(tools, name) if name else schema_of_calls(tools, max_calls)
    except KeyError:
        raise invalid("`tool_choice` names a function that is not among the `tools`.", "tool_choice") from None
    except ValueError as error:
        raise invalid(f"`tool_choice`: {error}; name one function instead.", "tool_choice") from error
    return JsonSchemaFormat(JsonSchema("tool_calls", schema))


def _from_completion(parameters: Parameters, prompt: Prompt | None) -> GenerationRequest:
    values = parameters.values
    text = None
    if prompt is None:
        text, prompt = _text_or_ids(values["prompt"])
    return _request(
        COMPLETIONS,
        parameters,
        text=text,
        prompt=prompt,
        max_tokens=values.get("max_tokens", COMPLETION_DEFAULT_MAX_TOKENS),
        template_options={"add_special_tokens": values.get("add_special_tokens", True)},
        logprobs=values.get("logprobs"),
        answer_format=values.get("response_format"),
    )


def _text_or_ids(prompt: str | list[Any]) -> tuple[str | None, Prompt | None]:
    """A prompt that is a text, or one of token ids that was not plain enough to be read at once."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch of one
    if not prompt:
        raise invalid("`prompt` is empty.", "prompt", "empty_prompt")
    if isinstance(prompt, str):
        return prompt, None
    if not all(isinstance(token, int) for token in prompt):
        raise invalid("`prompt` must be one prompt; send several requests instead of a batch.", "prompt")
    return None, Prompt(prompt)


def _request(
    endpoint: str,
    parameters: Parameters,
    *,
    max_tokens: int | None,
    template_options: dict[str, Any],
    text: str | None = None,
    prompt: Prompt | None = None,
    messages: list[dict[str, Any]] | None = None,
    tools: tuple[dict[str, Any], ...] = (),
    max_tool_calls: int | None = None,
    logprobs: int | None = None,
    answer_format: Any = None,
    forced_call: str | None = None,
) -> GenerationRequest:
    values = parameters.values
    sampling = {name: value for name, value in values.items() if name in PASSED_TO_ENGINES}
    sampling.setdefault("temperature", 1.0)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    if parameters.grammar_by:
        sampling["response_format"] = msgspec.to_builtins(answer_format)
    stop = values.get("stop", ())
    options = values.get("stream_options")
    return GenerationRequest(
        endpoint=endpoint,
        model=values["model"],
        text=text,
        prompt=prompt,
        messages=messages,
        template_options=template_options,
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        sampling=sampling,
        cache_salt=values.get("cache_salt", ""),
        forced_direct_by=parameters.forced_direct_by,
        is_stream=values.get("stream", False),
        include_usage=bool(options and options.include_usage),
        return_token_ids=values.get("return_token_ids", False),
        tools=tools,
        max_tool_calls=max_tool_calls,
        logprobs=logprobs,
        grammar_by=parameters.grammar_by,
        forced_call=forced_call,
    )
