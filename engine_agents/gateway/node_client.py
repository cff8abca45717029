"""The engine dialect as the gateway speaks it: prefill leases, pulls, extends and streams, over HTTP.

NodeError                    an engine did not do what it was asked
├── NodeUnreachableError     no connection, a broken one, or silence past the deadline
├── NodeBusyError            it takes no more work now; may carry a Retry-After
├── TransferRefusedError     a lease is gone, or a pull failed: new leases may help
└── NodeRefusedError         any other error; the same request will fail again there
"""

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from control.domain.topology import Node
from engine_agents.gateway.http_client import HttpClient, HttpReply
from engine_agents.gateway.logprobs import EngineLogprobs
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.sse import DONE, EventParser

_OK, _NOT_FOUND, _SERVER_ERROR = 200, 404, 500
_JSON_HEADER = b"Content-Type: application/json\r\n"
_GIVEN_UP = frozenset({"abort", "error"})
_T = TypeVar("_T")


class NodeError(Exception):
    """An engine did not do what it was asked."""

    def __init__(self, node: str, message: str, status: int = 0, retry_after_s: int | None = None) -> None:
        super().__init__(f"{node}: {message}")
        self.node = node
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class NodeUnreachableError(NodeError):
    """No connection, a broken one, or silence past the deadline."""


class NodeBusyError(NodeError):
    """The node takes no more work now."""


class TransferRefusedError(NodeError):
    """A lease is gone or a pull failed."""


class NodeRefusedError(NodeError):
    """The node will not serve this request."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest silences that are believed, seconds."""

    connect_s: float = 2.0
    reply_s: float = 300.0
    """Until a whole reply, or a stream's first bytes: it may wait for a slot, for prefill or for a pull."""
    gap_s: float = 30.0
    """Between two chunks of a stream."""
    look_s: float = 5.0
    """For a question about health: any event loop that runs answers it."""


class WorkDone(msgspec.Struct, frozen=True):
    """What our nodes say they did for a request; stock engines do not say."""

    computed_tokens: int | None = None
    resident_tokens: int | None = None
    pulled_tokens: int | None = None
    pulled_bytes: int | None = None
    pull_s: float | None = None


class _TokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: _TokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: EngineLogprobs | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole reply. `is_whole`: its ids end where its text ends."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    pdd: WorkDone | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: dict[str, Any] | str | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Lease:
    """KV of one prompt, held on a prefill node for one consumer. `params` is what the consumer needs to pull it."""

    node: Node
    lease_id: str
    params: dict[str, Any]
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a generation of one token brought: the token, if the engine names it, and the work done."""

    token_id: int | None
    work: WorkDone


class Tokenized(msgspec.Struct, frozen=True):
    """A tokenized prompt; `max_model_len` counts prompt and output tokens."""

    tokens: msgspec.Raw
    max_model_len: int


class _Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class _ModelCard(msgspec.Struct, frozen=True):
    max_model_len: int


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_ModelCard, ...]


class _Store(msgspec.Struct, frozen=True):
    capacity_tokens: int = 0
    stranded_bytes: int = 0
    stranded_age_s: float = 0.0


class NodeInfo(msgspec.Struct, frozen=True):
    """What one of our nodes says of itself; `engine_id` is another one after each start."""

    engine_id: str = ""
    store: _Store = _Store()


class NodeLease(msgspec.Struct, frozen=True):
    """A lease as its node lists it; `attached` while its consumer reads it."""

    id: str
    tokens: int = 0
    size_bytes: int = msgspec.field(default=0, name="bytes")
    age_s: float = 0.0
    attached: bool = False


class _LeaseList(msgspec.Struct, frozen=True):
    leases: tuple[NodeLease, ...]


_chunk = msgspec.json.Decoder(Chunk)
_tokenized = msgspec.json.Decoder(Tokenized)
_detokenized = msgspec.json.Decoder(_Detokenized)
_models = msgspec.json.Decoder(_ModelList)
_info = msgspec.json.Decoder(NodeInfo)
_leases = msgspec.json.Decoder(_LeaseList)


class NodeClient:
    """Calls to engines over kept connections. Every call raises `NodeError` and nothing else."""

    def __init__(self, site_secret: str, deadlines: Deadlines | None = None) -> None:
        self._deadlines = deadlines or Deadlines()
        self._secret = site_secret
        self._releases: set[asyncio.Task[None]] = set()
        self._http = HttpClient()

    async def close(self) -> None:
        """Close all connections."""
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._http.close()

    async def prefill(self, node: Node, prompt: Prompt, model: str, salt: str = "") -> Lease:
        """Have the prompt's KV computed and held for one consumer.

        Cancelled, it closes the connection, and releases the lease that may have been granted just before.
        """
        wanted_id = f"lease-{uuid.uuid4().hex}"
        fields = _one_token(model, salt)
        fields["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        fields["request_id"] = wanted_id
        try:
            reply = await self._complete(node, _body(fields, prompt))
        except asyncio.CancelledError:
            self._release_unseen(node, wanted_id)
            raise
        if not reply.kv_transfer_params:
            raise NodeRefusedError(node.name, "a prefill came back without kv_transfer_params")
        lease_id = str(reply.kv_transfer_params.get("remote_request_id", ""))
        return Lease(node, lease_id, reply.kv_transfer_params, reply.usage.cached_tokens if reply.usage else None)

    async def release(self, node: Node, lease_id: str) -> None:
        """Give back a lease that nobody will use; stock engines do not know the call and let it expire."""
        path = f"/pdd/v1/leases/{quote(lease_id, safe='')}"
        headers = f"Authorization: Bearer {self._secret}\r\n".encode()
        limit_s = self._deadlines.connect_s
        try:
            reply = await self._http.send(
                node.url, path, method=b"DELETE", headers=headers, connect_s=limit_s, silence_s=limit_s
            )
            async with reply:
                await reply.read(limit_s)
        except OSError as error:
            raise NodeUnreachableError(node.name, f"cannot release a lease: {type(error).__name__}") from error

    async def list_leases(self, node: Node) -> tuple[NodeLease, ...]:
        """The leases that one of our nodes holds; none from a stock engine, which does not know the question."""
        data = await self._look(node, "/pdd/v1/leases")
        try:
            return () if data is None else _leases.decode(data).leases
        except msgspec.DecodeError as error:
            raise NodeRefusedError(node.name, f"lists leases in another dialect: {error}") from error

    def _release_unseen(self, node: Node, lease_id: str) -> None:
        async def release() -> None:
            with contextlib.suppress(NodeError):
                await self.release(node, lease_id)

        task = asyncio.create_task(release(), name="release an unseen lease")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def pull(self, node: Node, prompt: Prompt, model: str, kv_params: Mapping[str, Any], salt: str = "") -> Reply:
        """Bring the prompt's KV to a node; returns when it is there."""
        fields = _one_token(model, salt)
        fields["kv_transfer_params"] = kv_params
        try:
            return _reply(await self._complete(node, _body(fields, prompt)))
        except NodeRefusedError as error:
            raise _pull_failure(node, error) from error

    async def extend(
        self, node: Node, prompt: Prompt, model: str, salt: str = "", max_computed_tokens: int | None = None
    ) -> Reply:
        """Have a node compute what it lacks of prompt and eager ids, and name the token it would go on with.

        Our nodes refuse where that is more than `max_computed_tokens`, as a transfer that was for nothing.
        """
        fields = _one_token(model, salt)
        if max_computed_tokens is not None:
            fields["max_computed_tokens"] = max_computed_tokens
        return _reply(await self._complete(node, _body(fields, prompt)))

    def stream(
        self,
        node: Node,
        prompt: Prompt,
        model: str,
        max_tokens: int,
        *,
        sampling: Mapping[str, Any],
        kv_params: Mapping[str, Any] | None = None,
        salt: str = "",
        max_computed_tokens: int | None = None,
    ) -> "NodeStream":
        """A generation, chunk by chunk; leaving the context closes its connection, and so the engine's work.

        A prompt that holds eager ids must come without `kv_params`: a warm stock vLLM answers such a request with
        wrong tokens, a cold one exits.
        """
        fields = _fields(model, max_tokens, sampling, salt)
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True}
        if kv_params is not None:
            fields["kv_transfer_params"] = kv_params
        if max_computed_tokens is not None:
            fields["max_computed_tokens"] = max_computed_tokens
        return NodeStream(self, node, _body(fields, prompt), self._deadlines, is_pull=kv_params is not None)

    async def tokenize(self, node: Node, body: Mapping[str, Any]) -> tuple[Prompt | None, int]:
        """Token ids of a text or of messages, None for no ids; and how many tokens prompt and output may have."""
        tokenized = await self._fetch(node, "/tokenize", (msgspec.json.encode(body),), _tokenized)
        prompt = Prompt.from_json(tokenized.tokens)
        if prompt is None and bytes(tokenized.tokens) != b"[]":
            raise NodeRefusedError(node.name, "names tokens that are no ids")
        return prompt, tokenized.max_model_len

    async def detokenize(self, node: Node, model: str, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        body = msgspec.json.encode({"model": model, "tokens": token_ids})
        return (await self._fetch(node, "/detokenize", (body,), _detokenized)).prompt

    async def max_model_len(self, node: Node) -> int:
        """How many tokens of prompt and output the node's model can hold."""
        models = await self._fetch(node, "/v1/models", None, _models)
        if not models.data:
            raise NodeRefusedError(node.name, "lists no model")
        return models.data[0].max_model_len

    async def check_health(self, node: Node) -> None:
        """Raise unless the node says that its work makes progress."""
        await self._look(node, "/health")

    async def fetch_info(self, node: Node) -> NodeInfo | None:
        """What one of our nodes says of itself; None from a stock engine, which does not know the question."""
        data = await self._look(node, "/pdd/v1/node")
        try:
            return None if data is None else _info.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(node.name, f"describes itself in another dialect: {error}") from error

    async def _look(self, node: Node, path: str) -> bytes | None:
        """Body of a small GET; None for 404."""
        limit_s = self._deadlines.look_s
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._http.send(node.url, path, method=b"GET", connect_s=limit_s, silence_s=limit_s)
                async with reply:
                    data = await reply.read(limit_s)
        except OSError as error:
            raise NodeUnreachableError(node.name, f"does not answer {path}: {type(error).__name__}") from error
        if reply.status == _NOT_FOUND:
            return None
        if reply.status != _OK:
            raise NodeUnreachableError(node.name, f"{path} says {reply.status}", reply.status)
        return data

    async def _complete(self, node: Node, body: Sequence[bytes]) -> Chunk:
        return _checked(node, await self._fetch(node, "/v1/completions", body, _chunk))

    async def _fetch(
        self, node: Node, path: str, body: Sequence[bytes] | None, decoder: "msgspec.json.Decoder[_T]"
    ) -> _T:
        reply = await self.open(node, path, body)
        async with reply:
            try:
                data = await reply.read(self._deadlines.reply_s)
            except OSError as error:
                raise NodeUnreachableError(node.name, f"broke off: {type(error).__name__}") from error
        try:
            return decoder.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(node.name, f"{path} answered in another dialect: {error}") from error

    async def open(self, node: Node, path: str, body: Sequence[bytes] | None) -> HttpReply:
        """Send a request and read the head of its reply; an error status becomes the exception that fits."""
        limits = self._deadlines
        try:
            reply = await self._http.send(
                node.url,
                path,
                body or (),
                method=b"GET" if body is None else b"POST",
                headers=_JSON_HEADER,
                connect_s=limits.connect_s,
                silence_s=limits.reply_s,
            )
        except OSError as error:
            raise NodeUnreachableError(node.name, f"does not answer: {type(error).__name__}") from error
        if reply.status != _OK:
            raise await _failure(node, reply, limits.gap_s)
        return reply


class NodeStream:
    """One streamed generation: an asynchronous context, and in it an iterator of chunks up to [DONE]."""

    def __init__(
        self, client: NodeClient, node: Node, body: Sequence[bytes], deadlines: Deadlines, *, is_pull: bool
    ) -> None:
        self._client = client
        self._node = node
        self._body = body
        self._deadlines = deadlines
        self._is_pull = is_pull
        self._is_started = False
        self._has_output = False
        self._reply: HttpReply | None = None
        self._parser = EventParser()
        self._events: list[bytes] = []
        self._is_finished = False
        self._is_done = False

    async def __aenter__(self) -> Self:
        try:
            self._reply = await self._client.open(self._node, "/v1/completions", self._body)
        except NodeRefusedError as error:
            raise self._failure(error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reply is not None:
            self._reply.close(is_ending=self._is_done)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._events:
            self._events = (await self._read())[::-1]
        data = self._events.pop()
        if data == DONE:
            self._is_done = True
            raise StopAsyncIteration
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(self._node.name, f"streams in another dialect: {error}") from error
        if chunk.error is not None:
            raise self._failure(_stream_failure(self._node, chunk.error))
        _checked(self._node, chunk)
        self._has_output = True
        if chunk.choices and chunk.choices[0].finish_reason:
            self._is_finished = True
        return chunk

    def _failure(self, error: NodeError) -> NodeError:
        """What an error means here: before the first token, a consumer may have failed to pull."""
        return _pull_failure(self._node, error) if self._is_pull and not self._has_output else error

    async def _read(self) -> list[bytes]:
        assert self._reply is not None, "a stream is read inside its context"  # noqa: S101
        try:
            data = await self._reply.read_some(self._deadlines.gap_s if self._is_started else self._deadlines.reply_s)
        except OSError as error:
            raise NodeUnreachableError(self._node.name, f"broke off: {type(error).__name__}") from error
        if data:
            self._is_started = True
            return self._parser.feed(data)
        if self._is_finished:
            return [DONE]
        raise NodeUnreachableError(self._node.name, "the stream ended early")


def _fields(model: str, max_tokens: int, sampling: Mapping[str, Any], salt: str) -> dict[str, Any]:
    """A completion request but for its prompt."""
    fields = {"model": model, "max_tokens": max_tokens, "return_token_ids": True, **sampling}
    if salt:
        fields["cache_salt"] = salt
    return fields


def _one_token(model: str, salt: str) -> dict[str, Any]:
    return _fields(model, 1, {"temperature": 0.0}, salt)


def _body(fields: dict[str, Any], prompt: Prompt) -> Sequence[bytes]:
    """The request's JSON, in parts so that a long prompt is never copied."""
    return msgspec.json.encode(fields)[:-1], b',"prompt":', *prompt.json_parts, b"}"


def _reply(chunk: Chunk) -> Reply:
    ids = chunk.choices[0].token_ids if chunk.choices else None
    return Reply(ids[0] if ids else None, chunk.pdd or WorkDone())


def _checked(node: Node, chunk: Chunk) -> Chunk:
    """The chunk, unless the engine gave the generation up: its tokens are no answer."""
    if chunk.choices and chunk.choices[0].finish_reason in _GIVEN_UP:
        raise NodeRefusedError(node.name, "gave the generation up")
    return chunk


def _pull_failure(node: Node, error: NodeError) -> NodeError:
    """A stock vLLM that cannot pull says no more than that it failed; new leases may help."""
    if node.is_stock and isinstance(error, NodeRefusedError) and error.status == _SERVER_ERROR:
        return TransferRefusedError(error.node, error.message, error.status)
    return error


async def _failure(node: Node, reply: HttpReply, silence_s: float) -> NodeError:
    retry_after = reply.headers.get(b"retry-after", b"")
    async with reply:
        try:
            message = _error_message(await reply.read(silence_s))
        except OSError:
            message = ""
    seconds = int(retry_after) if retry_after.isdigit() else None
    return _error(node, reply.status, message or f"answered {reply.status}", seconds)


def _stream_failure(node: Node, error: dict[str, Any] | str) -> NodeError:
    if isinstance(error, str):
        return NodeRefusedError(node.name, error)
    code = error.get("code")
    return _error(node, code if isinstance(code, int) else 500, str(error.get("message", "failed")), None)


def _error(node: Node, status: int, message: str, retry_after_s: int | None) -> NodeError:
    kind: type[NodeError] = NodeRefusedError
    if status in {429, 503}:
        kind = NodeBusyError
    elif status in {410, 502}:
        kind = TransferRefusedError
    return kind(node.name, message, status, retry_after_s)


def _error_message(data: bytes) -> str:
    try:
        error = msgspec.json.decode(data)["error"]
        return str(error["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
