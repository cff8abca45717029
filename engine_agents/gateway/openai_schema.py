"""OpenAI's request bodies, read into one form that both endpoints share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from engine_agents.gateway.errors import RefusalError, invalid
from engine_agents.gateway.parameters import CHAT, COMPLETIONS, forced_direct_by
from engine_agents.gateway.prompt import Prompt

COMPLETION_DEFAULT_MAX_TOKENS = 16
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class StreamOptions(msgspec.Struct):
    """What a stream ends with."""

    include_usage: bool | None = None


class _CommonFields(msgspec.Struct, kw_only=True):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None


class ChatFields(_CommonFields, kw_only=True):
    """Body of POST /v1/chat/completions, as far as the gateway reads it."""

    messages: list[dict[str, Any]]
    max_completion_tokens: _Positive | None = None
    add_generation_prompt: bool | None = None


class CompletionFields(_CommonFields, kw_only=True):
    """Body of POST /v1/completions, as far as the gateway reads it."""

    prompt: str | list[_TokenId | str | list[_TokenId]]
    add_special_tokens: bool | None = None


class _WithoutPrompt(_CommonFields, kw_only=True):
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked for. One of `text`, `prompt` and `messages` is set.

    `max_tokens` is None where the client set no limit; `forced_direct_by` names the parameter that does not survive
    a change of decoder; `sampling` goes to engines as it is.
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

    @property
    def is_chat(self) -> bool:
        """Whether the answer is a message."""
        return self.endpoint == CHAT


_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
_chat = msgspec.json.Decoder(ChatFields)
_completion = msgspec.json.Decoder(CompletionFields)
_without_prompt = msgspec.json.Decoder(_WithoutPrompt)


def parse_request(endpoint: str, body: bytes) -> GenerationRequest:
    """Read a body.

    Raises:
        RefusalError: 400, with what is wrong and where; the message never quotes the prompt.
    """
    try:
        fields = _keys.decode(body)
        forced_by = forced_direct_by(endpoint, fields)
        if endpoint == CHAT:
            return _from_chat(_chat.decode(body), forced_by)
        prompt = Prompt.from_json(fields["prompt"]) if "prompt" in fields else None
        if prompt is None:
            return _from_completion(_completion.decode(body), forced_by)
        del fields["prompt"]
        return _completion_request(_without_prompt.decode(msgspec.json.encode(fields)), forced_by, prompt=prompt)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("The body is not valid JSON.") from None


def _from_chat(fields: ChatFields, forced_by: str) -> GenerationRequest:
    if not fields.messages:
        raise invalid("`messages` must hold at least one message.", "messages")
    for position, message in enumerate(fields.messages):
        if not isinstance(message.get("role"), str):
            raise invalid(f"`messages[{position}]` has no `role`.", "messages")
    options = {"add_generation_prompt": fields.add_generation_prompt is not False}
    return _request(
        CHAT,
        fields,
        forced_by,
        messages=[_flat(message, position) for position, message in enumerate(fields.messages)],
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        template_options=options,
    )


def _flat(message: dict[str, Any], position: int) -> dict[str, Any]:
    """The message with its content as one text: clients may send a list of parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise invalid(f"`messages[{position}].content` may hold text only.", "messages", "unsupported_content")
    return {**message, "content": "".join(str(part.get("text", "")) for part in parts)}


def _from_completion(fields: CompletionFields, forced_by: str) -> GenerationRequest:
    prompt: str | Sequence[object] = fields.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch of one
    text = prompt if isinstance(prompt, str) else None
    token_ids = None if isinstance(prompt, str) else tuple(token for token in prompt if isinstance(token, int))
    if token_ids is not None and len(token_ids) != len(prompt):
        raise invalid("`prompt` must be one prompt; send several requests instead of a batch.", "prompt")
    if not prompt:
        raise invalid("`prompt` is empty.", "prompt", "empty_prompt")
    return _completion_request(fields, forced_by, text=text, prompt=Prompt(token_ids) if token_ids else None)


def _completion_request(
    fields: CompletionFields | _WithoutPrompt, forced_by: str, *, text: str | None = None, prompt: Prompt | None = None
) -> GenerationRequest:
    return _request(
        COMPLETIONS,
        fields,
        forced_by,
        text=text,
        prompt=prompt,
        max_tokens=fields.max_tokens or COMPLETION_DEFAULT_MAX_TOKENS,
        template_options={"add_special_tokens": fields.add_special_tokens is not False},
    )


def _request(
    endpoint: str,
    fields: _CommonFields,
    forced_by: str,
    *,
    max_tokens: int | None,
    template_options: dict[str, Any],
    text: str | None = None,
    prompt: Prompt | None = None,
    messages: list[dict[str, Any]] | None = None,
) -> GenerationRequest:
    sampling = {"temperature": fields.temperature, "top_p": fields.top_p, "top_k": fields.top_k, "seed": fields.seed}
    given = {name: value for name, value in sampling.items() if value is not None}
    given.setdefault("temperature", 1.0)
    if fields.ignore_eos:
        given["ignore_eos"] = True
    return GenerationRequest(
        endpoint=endpoint,
        model=fields.model,
        text=text,
        prompt=prompt,
        messages=messages,
        template_options=template_options,
        max_tokens=max_tokens,
        stop=_stop_strings(fields.stop),
        sampling=given,
        cache_salt=fields.cache_salt or "",
        forced_direct_by=forced_by,
        is_stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        return_token_ids=bool(fields.return_token_ids),
    )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(words) > MAX_STOP_STRINGS:
        raise invalid(f"`stop` may hold at most {MAX_STOP_STRINGS} strings.", "stop")
    if any(not word or len(word) > MAX_STOP_CHARS for word in words):
        raise invalid(f"Each `stop` string must have 1 to {MAX_STOP_CHARS} characters.", "stop")
    return words


def _invalid_field(message: str) -> RefusalError:
    """Turn "Expected `int`, got `str` - at `$.max_tokens`" into a sentence that names the field."""
    problem, _, place = message.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    param = path.split(".")[0].split("[")[0] or None
    if problem.startswith("Object missing required field"):
        name = problem.rpartition("field ")[2].strip("`")
        return invalid(f"`{name}` is missing.", name)
    where = f"`{path}`: " if path and not path.startswith("[") else ""
    return invalid(f"{where}{problem}.", param)
