"""The engine dialect as the gateway speaks it: prefill leases, pulls, extends and streams, over HTTP."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from control.domain.topology import Node
from control.site_secret import SiteSecret
from engine_agents.gateway.http_client import HttpClient
from engine_agents.gateway.http_reply import HttpReply
from engine_agents.gateway.node_errors import (
    NodeError,
    NodeRefusedError,
    NodeUnreachableError,
    error_of_pull,
    error_of_reply,
)
from engine_agents.gateway.node_replies import (
    Chunk,
    Detokenized,
    Lease,
    LeaseList,
    ModelList,
    NodeInfo,
    NodeLease,
    Reply,
    Tokenized,
    WorkDone,
    checked,
)
from engine_agents.gateway.node_stream import NodeStream
from engine_agents.gateway.prompt import Prompt

_OK, _NOT_FOUND = 200, 404
_JSON_HEADER = b"Content-Type: application/json\r\n"
_T = TypeVar("_T")
# Calls are made in many places and in tasks that outlive their request; all belong to the trace they began under.
_trace_header: ContextVar[bytes] = ContextVar("trace_header", default=b"")


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


_chunk = msgspec.json.Decoder(Chunk)
_tokenized = msgspec.json.Decoder(Tokenized)
_detokenized = msgspec.json.Decoder(Detokenized)
_models = msgspec.json.Decoder(ModelList)
_info = msgspec.json.Decoder(NodeInfo)
_leases = msgspec.json.Decoder(LeaseList)


def name_trace(traceparent: str) -> Token[bytes]:
    """Have all calls from here on, and in tasks begun from here on, name a trace; an empty one names none."""
    return _trace_header.set(f"traceparent: {traceparent}\r\n".encode() if traceparent else b"")


def forget_trace(named: Token[bytes]) -> None:
    """Name what was named before."""
    _trace_header.reset(named)


class NodeClient:
    """Calls to engines over kept connections. Every call raises `NodeError` and nothing else."""

    def __init__(self, site_secret: SiteSecret, deadlines: Deadlines | None = None) -> None:
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
        wanted_id = f"lease-{os.urandom(16).hex()}"
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
        queued_s = reply.pdd.queued_s if reply.pdd else None
        cached_tokens = reply.usage.cached_tokens if reply.usage else None
        return Lease(node, lease_id, reply.kv_transfer_params, cached_tokens, queued_s)

    async def release(self, node: Node, lease_id: str) -> None:
        """Give back a lease that nobody will use; stock engines do not know the call and let it expire."""
        path = f"/pdd/v1/leases/{quote(lease_id, safe='')}"
        headers = f"Authorization: Bearer {self._secret.current}\r\n".encode()
        limit_s = self._deadlines.connect_s
        try:
            await self._http.send(
                node.url, path, method=b"DELETE", headers=headers, connect_s=limit_s, silence_s=limit_s, is_whole=True
            )
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
            return _reply(await self._complete(node, _body(fields, prompt)), had_kv_params=True)
        except NodeRefusedError as error:
            raise error_of_pull(node, error) from error

    async def extend(
        self, node: Node, prompt: Prompt, model: str, salt: str = "", max_computed_tokens: int | None = None
    ) -> Reply:
        """Have a node compute what it lacks of prompt and eager ids, and name the token it would go on with.

        Our nodes refuse where that is more than `max_computed_tokens`, as a transfer that was for nothing.
        """
        fields = _one_token(model, salt)
        if max_computed_tokens is not None:
            fields["max_computed_tokens"] = max_computed_tokens
        return _reply(await self._complete(node, _body(fields, prompt)), had_kv_params=False)

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
        opening = partial(self._send, node, "/v1/completions", _body(fields, prompt))
        limits = self._deadlines
        return NodeStream(node, opening, limits.reply_s, limits.gap_s, is_pull=kv_params is not None)

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
                reply = await self._http.send(
                    node.url, path, method=b"GET", connect_s=limit_s, silence_s=limit_s, is_whole=True
                )
        except OSError as error:
            raise NodeUnreachableError(node.name, f"does not answer {path}: {type(error).__name__}") from error
        if reply.status == _NOT_FOUND:
            return None
        if reply.status != _OK:
            raise NodeUnreachableError(node.name, f"{path} says {reply.status}", reply.status)
        return reply.body

    def give_up(self, node: Node) -> None:
        """End all calls to a node that was found lost."""
        self._http.give_up(node.url)

    async def _complete(self, node: Node, body: Sequence[bytes]) -> Chunk:
        return checked(node, await self._fetch(node, "/v1/completions", body, _chunk))

    async def _fetch(
        self, node: Node, path: str, body: Sequence[bytes] | None, decoder: "msgspec.json.Decoder[_T]"
    ) -> _T:
        reply = await self._send(node, path, body, is_whole=True)
        try:
            return decoder.decode(reply.body)
        except msgspec.DecodeError as error:
            raise NodeRefusedError(node.name, f"{path} answered in another dialect: {error}") from error

    async def _send(self, node: Node, path: str, body: Sequence[bytes] | None, *, is_whole: bool = False) -> HttpReply:
        """Send a request and read its reply's head, or all of it; an error status becomes the exception that fits."""
        limits = self._deadlines
        try:
            reply = await self._http.send(
                node.url,
                path,
                body or (),
                method=b"GET" if body is None else b"POST",
                headers=_JSON_HEADER + _trace_header.get(),
                connect_s=limits.connect_s,
                silence_s=limits.reply_s,
                is_whole=is_whole,
            )
        except OSError as error:
            raise NodeUnreachableError(node.name, f"does not answer: {type(error).__name__}") from error
        if reply.status == _OK:
            return reply
        data = reply.body
        if not is_whole:
            async with reply:
                with contextlib.suppress(OSError):
                    data = await reply.read(limits.gap_s)
        raise error_of_reply(node, reply.status, reply.headers, data)


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


def _reply(chunk: Chunk, *, had_kv_params: bool) -> Reply:
    ids = chunk.choices[0].token_ids if chunk.choices else None
    return Reply(ids[0] if ids else None, chunk.work(had_kv_params=had_kv_params) or WorkDone())
