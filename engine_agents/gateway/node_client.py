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
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from control.domain.topology import Node
from engine_agents.gateway.sse import DONE, EventParser

_OK, _NOT_FOUND = 200, 404
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


class Prompt:
    """Token ids together with their JSON, so that a long prompt is encoded once for all its engine calls."""

    __slots__ = ("ids", "json")

    def __init__(self, ids: tuple[int, ...], encoded: bytes | None = None) -> None:
        self.ids = ids
        self.json = encoded if encoded is not None else msgspec.json.encode(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def extended(self, more: tuple[int, ...]) -> "Prompt":
        """The prompt with ids appended."""
        if not more:
            return self
        return Prompt(self.ids + more, self.json[:-1] + b"," + msgspec.json.encode(more)[1:])


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


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole reply."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    pdd: WorkDone | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: dict[str, Any] | str | None = None


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

    tokens: tuple[int, ...]
    max_model_len: int


class _ModelCard(msgspec.Struct, frozen=True):
    max_model_len: int


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_ModelCard, ...]


class _Store(msgspec.Struct, frozen=True):
    capacity_tokens: int = 0


class NodeInfo(msgspec.Struct, frozen=True):
    """What one of our nodes says of itself; `engine_id` is another one after each start."""

    engine_id: str = ""
    store: _Store = _Store()


_chunk = msgspec.json.Decoder(Chunk)
_tokenized = msgspec.json.Decoder(Tokenized)
_models = msgspec.json.Decoder(_ModelList)
_info = msgspec.json.Decoder(NodeInfo)


class NodeClient:
    """Calls to engines over kept connections. Every call raises `NodeError` and nothing else."""

    def __init__(self, site_secret: str, deadlines: Deadlines | None = None) -> None:
        self._deadlines = deadlines or Deadlines()
        self._secret = site_secret
        self._releases: set[asyncio.Task[None]] = set()
        self._session = aiohttp.ClientSession(
            # Engines close idle connections after 5 s: leave them first.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._session.close()

    async def prefill(self, node: Node, prompt: Prompt, model: str, salt: str = "") -> Lease:
        """Have the prompt's KV computed and held for one consumer.

        Cancelled, it closes the connection, and releases the lease that may have been granted just before.
        """
        wanted_id = f"lease-{uuid.uuid4().hex}"
        body = _body(model, prompt, 1, {"temperature": 0.0}, salt)
        body["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        body["request_id"] = wanted_id
        try:
            reply = await self._complete(node, body)
        except asyncio.CancelledError:
            self._release_unseen(node, wanted_id)
            raise
        if not reply.kv_transfer_params:
            raise NodeRefusedError(node.name, "a prefill came back without kv_transfer_params")
        lease_id = str(reply.kv_transfer_params.get("remote_request_id", ""))
        return Lease(node, lease_id, reply.kv_transfer_params, reply.usage.cached_tokens if reply.usage else None)

    async def release(self, node: Node, lease_id: str) -> None:
        """Give back a lease that nobody will use; stock engines do not know the call and let it expire."""
        url = f"{node.url}/pdd/v1/leases/{lease_id}"
        headers = {"Authorization": f"Bearer {self._secret}"}
        timeout = aiohttp.ClientTimeout(total=self._deadlines.connect_s * 2, sock_connect=self._deadlines.connect_s)
        try:
            async with self._session.delete(url, headers=headers, timeout=timeout):
                return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NodeUnreachableError(node.name, f"cannot release a lease: {type(error).__name__}") from error

    def _release_unseen(self, node: Node, lease_id: str) -> None:
        async def release() -> None:
            with contextlib.suppress(NodeError):
                await self.release(node, lease_id)

        task = asyncio.create_task(release(), name="release an unseen lease")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def pull(self, node: Node, prompt: Prompt, model: str, kv_params: Mapping[str, Any], salt: str = "") -> Reply:
        """Bring the prompt's KV to a node; returns when it is there."""
        body = _body(model, prompt, 1, {"temperature": 0.0}, salt)
        body["kv_transfer_params"] = kv_params
        return _reply(await self._complete(node, body))

    async def extend(self, node: Node, prompt: Prompt, model: str, salt: str = "") -> Reply:
        """Have a node compute what it lacks of prompt and eager ids, and name the token it would go on with."""
        return _reply(await self._complete(node, _body(model, prompt, 1, {"temperature": 0.0}, salt)))

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
    ) -> "NodeStream":
        """A generation, chunk by chunk; leaving the context closes its connection, and so the engine's work.

        A prompt that holds eager ids must come without `kv_params`: a warm stock vLLM answers such a request with
        wrong tokens, a cold one exits.
        """
        body = _body(model, prompt, max_tokens, sampling, salt)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if kv_params is not None:
            body["kv_transfer_params"] = kv_params
        return NodeStream(self, node, body, self._deadlines)

    async def tokenize(self, node: Node, body: Mapping[str, Any]) -> Tokenized:
        """Token ids of a text or of messages."""
        return await self._fetch(node, "/tokenize", body, _tokenized)

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
        timeout = aiohttp.ClientTimeout(total=self._deadlines.look_s)
        try:
            async with self._session.get(node.url + path, timeout=timeout) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NodeUnreachableError(node.name, f"does not answer {path}: {type(error).__name__}") from error
        if response.status == _NOT_FOUND:
            return None
        if response.status != _OK:
            raise NodeUnreachableError(node.name, f"{path} says {response.status}", response.status)
        return data

    async def _complete(self, node: Node, body: Mapping[str, Any]) -> Chunk:
        return await self._fetch(node, "/v1/completions", body, _chunk)

    async def _fetch(
        self, node: Node, path: str, body: Mapping[str, Any] | None, decoder: "msgspec.json.Decoder[_T]"
    ) -> _T:
        response = await self.open(node, path, body)
        async with response:
            try:
                data = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise NodeUnreachableError(node.name, f"broke off: {type(error).__name__}") from error
        try:
            return decoder.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(node.name, f"{path} answered in another dialect: {error}") from error

    async def open(self, node: Node, path: str, body: Mapping[str, Any] | None) -> aiohttp.ClientResponse:
        """Send a request and read the head of its reply; an error status becomes the exception that fits."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._deadlines.connect_s, sock_read=self._deadlines.reply_s
        )
        method = "GET" if body is None else "POST"
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        for attempt in (1, 2):
            try:
                response = await self._session.request(
                    method, node.url + path, data=data, headers=headers, timeout=timeout
                )
                break
            except aiohttp.ServerDisconnectedError as error:
                # A kept connection may have died unnoticed: once is no sign of a dead node.
                if attempt == 2:
                    raise NodeUnreachableError(node.name, "closed the connection") from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise NodeUnreachableError(node.name, f"does not answer: {type(error).__name__}") from error
        if response.status != _OK:
            raise await _failure(node, response)
        return response


class NodeStream:
    """One streamed generation: an asynchronous context, and in it an iterator of chunks up to [DONE]."""

    def __init__(self, client: NodeClient, node: Node, body: Mapping[str, Any], deadlines: Deadlines) -> None:
        self._client = client
        self._node = node
        self._body = body
        self._deadlines = deadlines
        self._is_started = False
        self._response: aiohttp.ClientResponse | None = None
        self._parser = EventParser()
        self._events: list[bytes] = []
        self._is_finished = False

    async def __aenter__(self) -> Self:
        self._response = await self._client.open(self._node, "/v1/completions", self._body)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._events:
            self._events = (await self._read())[::-1]
        data = self._events.pop()
        if data == DONE:
            raise StopAsyncIteration
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(self._node.name, f"streams in another dialect: {error}") from error
        if chunk.error is not None:
            raise _stream_failure(self._node, chunk.error)
        if chunk.choices and chunk.choices[0].finish_reason:
            self._is_finished = True
        return chunk

    async def _read(self) -> list[bytes]:
        assert self._response is not None, "a stream is read inside its context"  # noqa: S101
        try:
            async with asyncio.timeout(self._deadlines.gap_s if self._is_started else self._deadlines.reply_s):
                data = await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NodeUnreachableError(self._node.name, f"broke off: {type(error).__name__}") from error
        if data:
            self._is_started = True
            return self._parser.feed(data)
        if self._is_finished:
            return [DONE]
        raise NodeUnreachableError(self._node.name, "the stream ended early")


def _body(model: str, prompt: Prompt, max_tokens: int, sampling: Mapping[str, Any], salt: str) -> dict[str, Any]:
    body = {"model": model, "prompt": msgspec.Raw(prompt.json), "max_tokens": max_tokens, "return_token_ids": True}
    if salt:
        body["cache_salt"] = salt
    return body | dict(sampling)


def _reply(chunk: Chunk) -> Reply:
    ids = chunk.choices[0].token_ids if chunk.choices else None
    return Reply(ids[0] if ids else None, chunk.pdd or WorkDone())


async def _failure(node: Node, response: aiohttp.ClientResponse) -> NodeError:
    status = response.status
    retry_after = response.headers.get("Retry-After", "")
    async with response:
        try:
            message = _error_message(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError):
            message = ""
    seconds = int(retry_after) if retry_after.isdigit() else None
    return _error(node, status, message or f"answered {status}", seconds)


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
