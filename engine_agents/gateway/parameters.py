"""What the gateway does with every OpenAI parameter: one row each, from which requests are read and docs are made.

`python -m engine_agents.gateway.parameters` writes PARAMETERS.md beside this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from engine_agents.gateway.errors import RefusalError, invalid
from engine_agents.gateway.parameter_values import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedFunction,
    StreamOptions,
    TextFormat,
)

CHAT = "chat"
COMPLETIONS = "completions"
_BOTH = (CHAT, COMPLETIONS)
_CHAT = (CHAT,)
_COMPLETIONS = (COMPLETIONS,)

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
COMPLETION_DEFAULT_MAX_TOKENS = 16
DOCUMENT = Path(__file__).with_name("PARAMETERS.md")


class Handling(StrEnum):
    """Who takes care of a parameter."""

    GATEWAY = "gateway"
    """Obeyed by the gateway itself, across the cut between relay and main decode."""
    PASSED = "passed"
    """Given to the engine as it is; what it depends on is the same on both sides of a cut."""
    DIRECT = "direct"
    """Given to the engine, and the request never changes decoders, because state would restart at the cut."""
    GRAMMAR = "grammar"
    """A grammar for the engine: as DIRECT, and on nodes that have grammars only."""
    IGNORED = "ignored"
    """A hint or a note; any answer fulfils it."""
    REFUSED = "refused"
    """A value other than a neutral one is answered with 400."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row.

    `kind` is the type with its bounds, null is always allowed unless the parameter is required. `neutral` are the
    values that ask for nothing; one that the gateway obeys and that has neutral values accepts no others.
    """

    name: str
    handling: Handling
    why: str
    kind: Any = Any
    default: str = ""
    endpoints: tuple[str, ...] = _BOTH
    neutral: tuple[Any, ...] = ()
    is_required: bool = False
    decoder: "msgspec.json.Decoder[Any]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind = self.kind if self.is_required or self.kind is Any else self.kind | None
        object.__setattr__(self, "decoder", msgspec.json.Decoder(kind))

    @property
    def has_exceptions(self) -> bool:
        """Whether it depends on the value what becomes of it."""
        return bool(self.neutral) or self.handling in {Handling.REFUSED, *_ON_ONE_DECODER}


_ON_ONE_DECODER = frozenset({Handling.DIRECT, Handling.GRAMMAR})

_Bool = bool
_Unit = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Logprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
_Biases = dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]]
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARS)]
_Stop = _StopString | Annotated[list[_StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)]
_Objects = list[dict[str, Any]]
_Format = TextFormat | JsonObjectFormat | JsonSchemaFormat
_ToolChoice = Literal["auto", "none", "required"] | NamedFunction

_G, _P, _D, _I, _R = Handling.GATEWAY, Handling.PASSED, Handling.DIRECT, Handling.IGNORED, Handling.REFUSED
_OUTPUT_PENALTY = "counts the tokens made so far; those before a cut would count as prompt behind it"
_ONE_ANSWER = "each request has one answer; send several requests instead"
_OFF = False
_OWN_GRAMMAR = "an engine's own way to name a grammar; use `response_format`"
_NOT_HERE = "the engines of this fleet do not take it"
_OLD_TOOLS = "the older form of tools; use `tools`"


def _refused(name: str, why: str, *neutral: Any, endpoints: tuple[str, ...] = _BOTH) -> Parameter:
    return Parameter(name, _R, why, endpoints=endpoints, neutral=neutral)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("model", _G, "must name the fleet's model", _Name, is_required=True),
    Parameter("messages", _G, "rendered and tokenized once, by a node", _Objects, "", _CHAT, is_required=True),
    Parameter(
        "prompt",
        _G,
        "a text, or its token ids; one per request",
        str | list[_TokenId | str | list[_TokenId]],
        endpoints=_COMPLETIONS,
        is_required=True,
    ),
    Parameter("stream", _G, "server-sent events or one body", _Bool, "false"),
    Parameter("stream_options", _G, "include_usage adds a last chunk", StreamOptions),
    Parameter("max_tokens", _G, "counted across the cut; by default what the model can hold", _Positive, "", _CHAT),
    Parameter("max_completion_tokens", _G, "the newer name of max_tokens, which it outranks", _Positive, "", _CHAT),
    Parameter("max_tokens", _G, "counted across the cut", _Positive, str(COMPLETION_DEFAULT_MAX_TOKENS), _COMPLETIONS),
    Parameter("stop", _G, "text that may begin a stop string is held back, also across the cut", _Stop),
    Parameter(
        "logprobs",
        _G,
        "joined across the cut; null for a token that the engine does not tell about, as llama.cpp inside a character",
        _Bool,
        "false",
        _CHAT,
    ),
    Parameter("top_logprobs", _G, "needs logprobs; joined across the cut", _Logprobs, "0", _CHAT),
    Parameter("logprobs", _G, "the number of alternatives; joined across the cut", _Logprobs, "", _COMPLETIONS),
    Parameter(
        "tools",
        _G,
        "rendered by the chat template; calls are read by the model profile's tool parser, without one it is refused",
        _Objects,
        "",
        _CHAT,
    ),
    Parameter("parallel_tool_calls", _G, "where false, calls after the first are dropped", _Bool, "true", _CHAT),
    Parameter("return_token_ids", _G, "adds token_ids to chunks and choices", _Bool, "false"),
    Parameter("add_generation_prompt", _G, "given to the chat template", _Bool, "true", _CHAT),
    Parameter("add_special_tokens", _G, "given to the tokenizer", _Bool, "true", _COMPLETIONS),
    Parameter("cache_salt", _G, "separates prefix caches", str),
    Parameter("temperature", _P, "stateless", Annotated[float, msgspec.Meta(ge=0, le=2)], "1"),
    Parameter("top_p", _P, "stateless", Annotated[float, msgspec.Meta(gt=0, le=1)], "1"),
    Parameter("top_k", _P, "stateless", Annotated[int, msgspec.Meta(ge=-1)], "-1"),
    Parameter("min_p", _P, "stateless", _Unit, "0"),
    Parameter("ignore_eos", _P, "stateless", _Bool, "false"),
    Parameter("logit_bias", _P, "stateless", _Biases, "{}"),
    Parameter(
        "repetition_penalty",
        _P,
        "counts prompt and output alike, so a cut does not show",
        Annotated[float, msgspec.Meta(gt=0, le=10)],
        "1",
    ),
    Parameter("presence_penalty", _D, _OUTPUT_PENALTY, _Penalty, "0", neutral=(0,)),
    Parameter("frequency_penalty", _D, _OUTPUT_PENALTY, _Penalty, "0", neutral=(0,)),
    Parameter(
        "seed", _D, "a stock engine's random stream would restart at the cut; at temperature 0 it says nothing", int
    ),
    Parameter(
        "response_format",
        Handling.GRAMMAR,
        "json_object or json_schema; not together with tools that may be called, which the grammar would forbid",
        _Format,
        neutral=(TextFormat(),),
    ),
    Parameter(
        "tool_choice",
        Handling.GRAMMAR,
        "required or a named function becomes a JSON schema of the calls, which come whole at the answer's end",
        _ToolChoice,
        "auto",
        _CHAT,
        neutral=("auto", "none"),
    ),
    Parameter("user", _I, "names an end user"),
    Parameter("safety_identifier", _I, "names an end user", endpoints=_CHAT),
    Parameter("metadata", _I, "the client's own notes"),
    Parameter("store", _I, "nothing is stored"),
    Parameter("service_tier", _I, "a key decides the service class"),
    Parameter("prediction", _I, "a hint about speed", endpoints=_CHAT),
    Parameter("prompt_cache_key", _I, "prefixes are found by their tokens"),
    Parameter("prompt_cache_options", _I, "prefixes are found by their tokens", endpoints=_CHAT),
    Parameter("prompt_cache_retention", _I, "caches keep what was used last", endpoints=_CHAT),
    Parameter("reasoning_effort", _I, "a hint that chat templates here do not take", endpoints=_CHAT),
    Parameter("verbosity", _I, "a hint that chat templates here do not take", endpoints=_CHAT),
    Parameter("skip_special_tokens", _I, "special tokens have no text"),
    Parameter("spaces_between_special_tokens", _I, "special tokens have no text"),
    _refused("n", _ONE_ANSWER, 1),
    _refused("best_of", _ONE_ANSWER, 1, endpoints=_COMPLETIONS),
    _refused("use_beam_search", _ONE_ANSWER, _OFF),
    _refused("echo", "the prompt is not repeated", _OFF),
    _refused("suffix", "the model does not fill in", "", endpoints=_COMPLETIONS),
    _refused("prompt_logprobs", "a prompt whose KV is cached is not computed"),
    _refused("structured_outputs", _OWN_GRAMMAR),
    _refused("guided_json", _OWN_GRAMMAR),
    _refused("guided_regex", _OWN_GRAMMAR),
    _refused("guided_choice", _OWN_GRAMMAR),
    _refused("guided_grammar", _OWN_GRAMMAR),
    _refused("functions", _OLD_TOOLS, [], endpoints=_CHAT),
    _refused("function_call", _OLD_TOOLS, "none", "auto", endpoints=_CHAT),
    _refused("min_tokens", _NOT_HERE, 0),
    _refused("stop_token_ids", _NOT_HERE, []),
    _refused("allowed_token_ids", _NOT_HERE),
    _refused("bad_words", _NOT_HERE, []),
    _refused("include_stop_str_in_output", "stop strings are not part of the answer", _OFF),
    _refused("truncate_prompt_tokens", "an over-long prompt is refused, not shortened"),
    _refused("chat_template", "the model's own template is used", endpoints=_CHAT),
    _refused("chat_template_kwargs", "the model's own template is used as it is", {}, endpoints=_CHAT),
    _refused("continue_final_message", "an answer is a message of its own", _OFF, endpoints=_CHAT),
    _refused("kv_transfer_params", "the gateway decides where KV goes"),
    _refused("modalities", "the model makes text only", ["text"], endpoints=_CHAT),
    _refused("audio", "the model makes text only", endpoints=_CHAT),
    _refused("moderation", "nothing here moderates", endpoints=_CHAT),
    _refused("web_search_options", "nothing here searches the web", endpoints=_CHAT),
)

_ROWS = {endpoint: {row.name: row for row in PARAMETERS if endpoint in row.endpoints} for endpoint in _BOTH}
PASSED_TO_ENGINES = frozenset(row.name for row in PARAMETERS if row.handling in {Handling.PASSED, Handling.DIRECT})
"""Their values go to engines under the same names."""
_REQUIRED = {endpoint: [name for name, row in rows.items() if row.is_required] for endpoint, rows in _ROWS.items()}
_READERS = {
    endpoint: {name: (row.decoder.decode, row if row.has_exceptions else None) for name, row in rows.items()}
    for endpoint, rows in _ROWS.items()
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """A request's parameters that have a row and are not null.

    `forced_direct_by` keeps it on one decoder, `grammar_by` on nodes that have grammars; empty names for none.
    """

    values: dict[str, Any]
    forced_direct_by: str
    grammar_by: str


def read_parameters(endpoint: str, fields: Mapping[str, msgspec.Raw]) -> Parameters:
    """Check what a request asks for. `fields` lacks what the caller has read itself.

    Unknown parameters are tolerated, as OpenAI's clients expect of a server of another age.

    Raises:
        RefusalError: 400, a parameter is wrong or asks for what this gateway cannot do; the message says which and why.
    """
    readers = _READERS[endpoint]
    values: dict[str, Any] = {}
    forcing: list[str] = []
    grammars: list[str] = []
    for name, raw in fields.items():
        if name not in readers:
            continue
        decode, row = readers[name]
        try:
            value = decode(raw)
        except msgspec.ValidationError as error:
            raise _invalid_value(name, str(error)) from None
        if value is None:
            continue
        values[name] = value
        if row is not None and not any(_is_same(value, neutral) for neutral in row.neutral):
            if row.handling not in _ON_ONE_DECODER:
                raise invalid(f"`{name}` is not supported with this value: {row.why}.", name, "unsupported_parameter")
            forcing.append(name)
            if row.handling is Handling.GRAMMAR:
                grammars.append(name)
    if "seed" in forcing and values.get("temperature") == 0:
        forcing.remove("seed")
    return Parameters(values, forcing[0] if forcing else "", grammars[0] if grammars else "")


def require_parameters(endpoint: str, fields: Mapping[str, Any]) -> None:
    """Make sure that nothing is missing.

    Raises:
        RefusalError: 400, a required parameter is.
    """
    for name in _REQUIRED[endpoint]:
        if name not in fields:
            raise invalid(f"`{name}` is missing.", name)


def _invalid_value(name: str, message: str) -> RefusalError:
    """Turn "Expected `int`, got `str` - at `$[0]`" into a sentence that names the field."""
    problem, _, place = message.partition(" - at `$")
    return invalid(f"`{name}{place.rstrip('`')}`: {problem}.", name)


def _is_same(value: Any, neutral: Any) -> bool:
    """Equality that keeps True apart from 1, and lets 0 and 0.0 be one."""
    return isinstance(value, bool) is isinstance(neutral, bool) and bool(value == neutral)


# The document


def parameters_document() -> str:
    """The table as a Markdown page."""
    lines = [
        "# Parameters",
        "",
        "Made from `parameters.py` by `python -m engine_agents.gateway.parameters`; not edited by hand.",
        "",
        *(f"- **{handling.value}**: {_meaning(handling)}" for handling in Handling),
        "",
        "`null` and unknown parameters ask for nothing. A refusal is a 400 in OpenAI's shape that names the parameter.",
        "",
        "| parameter | endpoint | handling | type and bounds | default | note |",
        "|---|---|---|---|---|---|",
        *(_row_text(row) for row in PARAMETERS),
        "",
    ]
    return "\n".join(lines)


def _meaning(handling: Handling) -> str:
    return {
        Handling.GATEWAY: "obeyed by the gateway, across the cut between relay and main decode",
        Handling.PASSED: "given to the engine; what it depends on is the same on both sides of a cut",
        Handling.DIRECT: "given to the engine, and the request takes the DIRECT pipeline, with reason `parameter`",
        Handling.GRAMMAR: "a grammar for a stock vLLM node, on the DIRECT pipeline; refused where no main decode node "
        "of the model is one, because our own nodes decode token by token and have no grammars",
        Handling.IGNORED: "a hint or a note that any answer fulfils",
        Handling.REFUSED: "refused, with the reason given here, unless its value asks for nothing",
    }[handling]


def _row_text(row: Parameter) -> str:
    handling = row.handling.value
    if row.neutral:
        allowed = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in row.neutral)
        handling += f", but for {allowed}" if row.handling is not Handling.GATEWAY else f"; only {allowed}"
    where = "both" if len(row.endpoints) == len(_BOTH) else row.endpoints[0]
    default = "required" if row.is_required else row.default and f"`{row.default}`"
    return f"| `{row.name}` | {where} | {handling} | {_kind_text(row.kind)} | {default} | {row.why} |"


def _kind_text(kind: Any) -> str:
    if kind is Any:
        return ""
    return _schema_text(msgspec.json.schema(kind))


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "maxItems": "length ≤",
}


def _schema_text(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_schema_text(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    text = str(schema.get("type", "any"))
    told = [f"{words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
    if text == "array":
        told.append(f"of {_schema_text(schema.get('items', {}))}")
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values:
        told.append(f"of {_schema_text(values)}")
    return " ".join([text, *told])


if __name__ == "__main__":
    DOCUMENT.write_text(parameters_document(), encoding="utf-8")
