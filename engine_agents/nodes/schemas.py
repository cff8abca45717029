"""What the node dialect's requests look like, checked at the door."""

from typing import Any, Literal, TypeVar

import msgspec

from engine_agents.nodes.errors import RequestError
from engine_agents.nodes.kv_connection import PullSource, RelayRoute
from engine_agents.nodes.kv_transfer import MAX_STREAMS

MAX_TOKEN_ID = 2**31 - 1
MAX_BODY_BYTES = 64 << 20
MAX_LOGPROBS = 20

T = TypeVar("T", bound=msgspec.Struct)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "prompt_logprobs": (None, 0),
    "min_tokens": (None, 0),
    "stop_token_ids": (None, []),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "use_beam_search": (None, False),
}
"""Fields of the full dialect that our nodes do not serve, and the values that ask for nothing."""

_Unserved = msgspec.defstruct("_Unserved", [(name, Any, None) for name in _NEUTRAL])


class Via(msgspec.Struct, frozen=True):
    """The WAN relay that a pull goes through, over up to `streams` connections."""

    host: str
    port: int
    link: str
    transfer_id: str
    pipeline: str = "direct"
    service_class: str = "default"
    streams: int = 1


class KvTransferParams(msgspec.Struct, frozen=True):
    """Asks for a lease (`do_remote_decode`) or hands one over (`do_remote_prefill`)."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_block_ids: list[int] | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None
    via: Via | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """A completion; fields that are null or absent take the dialect's defaults."""

    model: str
    prompt: str | list[int]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    ignore_eos: bool | None = False
    stop: str | list[str] | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    kv_transfer_params: KvTransferParams | None = None
    max_computed_tokens: int | None = None

    def stops(self) -> list[str]:
        """Stop strings as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class TokenizeRequest(msgspec.Struct, frozen=True):
    """A text, or messages, with the tools they may call, that the chat template makes a text of."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None


class DutyRequest(msgspec.Struct, frozen=True):
    """What a node is meant for."""

    role: Literal["prefill", "relay", "main"]
    draining: bool = False


class RestartRequest(msgspec.Struct, frozen=True):
    """Which incarnation should end."""

    incarnation: str


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """Token ids whose text is wanted."""

    tokens: list[int]
    model: str | None = None


def decode_body(body: bytes, kind: type[T]) -> T:
    """A request body as the given kind.

    Raises:
        RequestError: it is not one; 400.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error), param=_param_of(str(error))) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def decode_completion(body: bytes) -> CompletionRequest:
    """A completion request, free of anything our nodes would have to ignore.

    Raises:
        RequestError: malformed, or it asks for what our nodes do not serve; 400.
    """
    request = decode_body(body, CompletionRequest)
    unserved = msgspec.json.decode(body, type=_Unserved)
    for name, neutral in _NEUTRAL.items():
        if getattr(unserved, name) not in neutral:
            raise RequestError(f"this node does not serve {name}", param=name, code="unsupported_parameter")
    _check_ranges(request)
    return request


def pull_source(params: KvTransferParams, prompt_tokens: int) -> PullSource:
    """Where the KV that a consumer hands over can be had.

    Raises:
        RequestError: a field is missing, or the lease is for a prompt of another length; 400.
    """
    if params.remote_num_tokens != prompt_tokens:
        raise RequestError(
            f"the lease covers {params.remote_num_tokens} tokens, the prompt has {prompt_tokens}",
            param="kv_transfer_params",
        )
    if not params.remote_host or not params.remote_port or not params.remote_request_id:
        raise RequestError(
            "a consumer needs remote_host, remote_port and remote_request_id", param="kv_transfer_params"
        )
    via = params.via
    route = None
    if via is not None:
        if not 1 <= via.streams <= MAX_STREAMS:
            raise RequestError(f"streams must be from 1 to {MAX_STREAMS}", param="kv_transfer_params")
        route = RelayRoute(via.host, via.port, via.link, via.transfer_id, via.pipeline, via.service_class, via.streams)
    return PullSource(params.remote_host, params.remote_port, params.remote_request_id, route)


def _check_ranges(request: CompletionRequest) -> None:
    checks: tuple[tuple[str, bool, str], ...] = (
        ("max_tokens", request.max_tokens is None or request.max_tokens >= 1, "at least 1"),
        ("temperature", request.temperature is None or request.temperature >= 0, "at least 0"),
        ("top_p", request.top_p is None or 0 < request.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= (request.min_p or 0) <= 1, "in [0, 1]"),
        ("presence_penalty", -2 <= (request.presence_penalty or 0) <= 2, "in [-2, 2]"),
        ("frequency_penalty", -2 <= (request.frequency_penalty or 0) <= 2, "in [-2, 2]"),
        ("repetition_penalty", request.repetition_penalty is None or request.repetition_penalty > 0, "above 0"),
        ("logprobs", 0 <= (request.logprobs or 0) <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
        ("top_k", request.top_k is None or request.top_k >= -1, "at least -1"),
        ("stop", len(request.stops()) <= 16, "at most 16 strings"),
    )
    for name, holds, rule in checks:
        if not holds:
            raise RequestError(f"{name} must be {rule}", param=name)
    if isinstance(request.prompt, list) and any(not 0 <= token <= MAX_TOKEN_ID for token in request.prompt):
        raise RequestError("token ids must be between 0 and 2^31 - 1", param="prompt")


def _param_of(message: str) -> str | None:
    """The field that msgspec's message points at, as in "… - at `$.prompt[3]`"."""
    _, found, path = message.rpartition("`$.")
    return path.rstrip("`").split("[")[0].split(".")[0] if found else None
