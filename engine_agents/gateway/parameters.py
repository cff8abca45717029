"""What the gateway does with every OpenAI parameter: one row each, from which requests are checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from engine_agents.gateway.errors import invalid

CHAT = "chat"
COMPLETIONS = "completions"
_BOTH = (CHAT, COMPLETIONS)


class Handling(StrEnum):
    """Who takes care of a parameter."""

    GATEWAY = "gateway"
    """Obeyed by the gateway itself, across the cut between relay and main decode."""
    PASSED = "passed"
    """Given to the engine as it is; it has no state that a cut would lose."""
    DIRECT = "direct"
    """Given to the engine, and the request never changes decoders, because state would restart at the cut."""
    IGNORED = "ignored"
    """Says nothing about the tokens."""
    REFUSED = "refused"
    """A value other than a neutral one is answered with 400."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row. `neutral` are the values that ask for nothing; null always is one."""

    name: str
    handling: Handling
    why: str
    endpoints: tuple[str, ...] = _BOTH
    neutral: tuple[Any, ...] = ()


def _refused(name: str, why: str, *neutral: Any, endpoints: tuple[str, ...] = _BOTH) -> Parameter:
    return Parameter(name, Handling.REFUSED, why, endpoints, neutral)


_OFF = False
_PENALTY = "penalties count the tokens already made, and that count would restart at the cut"
_ONE_ANSWER = "each request has one answer; send several requests instead"
_LOGPROBS = "log probabilities are not joined across the cut"
_GRAMMAR = "a grammar's state would restart at the cut"
_TOOLS = "the model profile names no tool-call parser"

PARAMETERS: tuple[Parameter, ...] = (
    Parameter("model", Handling.GATEWAY, "must name the fleet's model"),
    Parameter("messages", Handling.GATEWAY, "rendered and tokenized once, by a node", (CHAT,)),
    Parameter("prompt", Handling.GATEWAY, "a text, or its token ids", (COMPLETIONS,)),
    Parameter("stream", Handling.GATEWAY, "server-sent events or one body"),
    Parameter("stream_options", Handling.GATEWAY, "include_usage adds a last chunk"),
    Parameter("max_tokens", Handling.GATEWAY, "counted across the cut"),
    Parameter("max_completion_tokens", Handling.GATEWAY, "the newer name of max_tokens", (CHAT,)),
    Parameter("stop", Handling.GATEWAY, "text that may begin a stop string is held back, also across the cut"),
    Parameter("return_token_ids", Handling.GATEWAY, "adds token_ids to chunks and choices"),
    Parameter("add_generation_prompt", Handling.GATEWAY, "given to the chat template", (CHAT,)),
    Parameter("add_special_tokens", Handling.GATEWAY, "given to the tokenizer", (COMPLETIONS,)),
    Parameter("cache_salt", Handling.GATEWAY, "separates prefix caches"),
    Parameter("temperature", Handling.PASSED, "stateless"),
    Parameter("top_p", Handling.PASSED, "stateless"),
    Parameter("top_k", Handling.PASSED, "stateless"),
    Parameter("ignore_eos", Handling.PASSED, "stateless"),
    Parameter("seed", Handling.DIRECT, "the random stream would restart at the cut; at temperature 0 it says nothing"),
    Parameter("user", Handling.IGNORED, "names an end user"),
    Parameter("metadata", Handling.IGNORED, "the client's own notes"),
    Parameter("store", Handling.IGNORED, "nothing is stored"),
    Parameter("service_tier", Handling.IGNORED, "not offered"),
    Parameter("skip_special_tokens", Handling.IGNORED, "special tokens have no text"),
    Parameter("parallel_tool_calls", Handling.IGNORED, "means nothing without tools", (CHAT,)),
    _refused("presence_penalty", _PENALTY, 0),
    _refused("frequency_penalty", _PENALTY, 0),
    _refused("repetition_penalty", _PENALTY, 1),
    _refused("logit_bias", "the engines of this fleet do not take it", {}),
    _refused("min_p", "the engines of this fleet do not take it", 0),
    _refused("min_tokens", "the engines of this fleet do not take it", 0),
    _refused("stop_token_ids", "the engines of this fleet do not take it", []),
    _refused("include_stop_str_in_output", "stop strings are not part of the answer", _OFF),
    _refused("n", _ONE_ANSWER, 1),
    _refused("best_of", _ONE_ANSWER, 1, endpoints=(COMPLETIONS,)),
    _refused("logprobs", _LOGPROBS, _OFF, endpoints=(CHAT,)),
    _refused("logprobs", _LOGPROBS, endpoints=(COMPLETIONS,)),
    _refused("top_logprobs", _LOGPROBS, 0, endpoints=(CHAT,)),
    _refused("echo", "the prompt is not repeated", _OFF, endpoints=(COMPLETIONS,)),
    _refused("suffix", "the model does not fill in", "", endpoints=(COMPLETIONS,)),
    _refused("response_format", _GRAMMAR, {"type": "text"}, endpoints=(CHAT,)),
    _refused("structured_outputs", _GRAMMAR),
    _refused("guided_json", _GRAMMAR),
    _refused("guided_regex", _GRAMMAR),
    _refused("tools", _TOOLS, [], endpoints=(CHAT,)),
    _refused("tool_choice", _TOOLS, "none", "auto", endpoints=(CHAT,)),
    _refused("functions", _TOOLS, [], endpoints=(CHAT,)),
    _refused("function_call", _TOOLS, "none", "auto", endpoints=(CHAT,)),
    _refused("modalities", "the model makes text only", ["text"], endpoints=(CHAT,)),
    _refused("audio", "the model makes text only", endpoints=(CHAT,)),
)

_ROWS = {(endpoint, row.name): row for row in PARAMETERS for endpoint in row.endpoints}


def forced_direct_by(endpoint: str, fields: Mapping[str, msgspec.Raw]) -> str:
    """Name of the parameter that keeps the request on one decoder; empty if there is none.

    Unknown parameters are tolerated, as OpenAI's clients expect of a server of another age.

    Raises:
        RefusalError: a parameter asks for what this gateway cannot do; the message says which and why.
    """
    forced_by = ""
    for name, raw in fields.items():
        row = _ROWS.get((endpoint, name))
        if row is None or row.handling not in {Handling.REFUSED, Handling.DIRECT}:
            continue
        value = msgspec.json.decode(raw)
        if value is None or any(_is_same(value, neutral) for neutral in row.neutral):
            continue
        if row.handling is Handling.REFUSED:
            raise invalid(f"`{name}` is not supported with this value: {row.why}.", name, "unsupported_parameter")
        forced_by = name
    if forced_by == "seed" and "temperature" in fields and msgspec.json.decode(fields["temperature"]) == 0:
        return ""
    return forced_by


def _is_same(value: Any, neutral: Any) -> bool:
    """Equality that keeps True apart from 1, and lets 0 and 0.0 be one."""
    return isinstance(value, bool) is isinstance(neutral, bool) and bool(value == neutral)
