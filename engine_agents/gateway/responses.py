"""The two shapes of an answer: a stream of events, and one body. The status line leaves with the first text."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from control.domain.answer_parser import Content, Part, Reasoning, ToolCall
from control.domain.commit import Flush
from engine_agents.gateway.errors import RefusalError
from engine_agents.gateway.http_messages import Header, Reply
from engine_agents.gateway.logprobs import Document, joined
from engine_agents.gateway.sse import DONE_EVENT, ChunkWriter, event, json_bytes

_EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object, with the prefix-cache hit that P reported."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None


class Response(Protocol):
    """An answer on its way to a client. Nothing here waits; `is_clogged` tells whether the client keeps up."""

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""

    async def drained(self) -> None:
        """Return once the client has caught up."""

    def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Take the next part of the answer; False if the client has not been sent anything of it yet."""

    def put_parts(
        self, parts: Sequence[Part], token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None
    ) -> bool:
        """Take the next part of a chat answer whose kinds of text are told apart."""

    def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
        """End the answer."""

    def fail(self, refusal: RefusalError) -> None:
        """End it with an error."""


def send_json(reply: Reply, status: int, body: bytes, headers: tuple[Header, ...] = ()) -> None:
    """Send a whole JSON response."""
    send_body(reply, status, body, b"application/json", headers)


def send_body(reply: Reply, status: int, body: bytes, content_type: bytes, headers: tuple[Header, ...] = ()) -> None:
    """Send a whole response."""
    reply.send(status, ((b"content-type", content_type), *headers), body)


def send_refusal(reply: Reply, refusal: RefusalError, headers: tuple[Header, ...] = ()) -> None:
    """Send an error in OpenAI's shape."""
    if refusal.retry_after_s is not None:
        headers = (*headers, (b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.allow:
        headers = (*headers, (b"allow", refusal.allow.encode()))
    send_json(reply, refusal.status, refusal.body(), headers)


def call_document(call: ToolCall) -> dict[str, Any]:
    """A tool call as part of a message, with an id that no other call has."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def deltas_of(part: Part) -> list[dict[str, Any]]:
    """A part as changes of a streamed message: a call is announced by its name, then come its arguments."""
    match part:
        case Content(text):
            return [{"content": text}]
        case Reasoning(text):
            return [{"reasoning_content": text}]
        case ToolCall(index, name, arguments):
            announced = {"index": index, **call_document(ToolCall(index, name, ""))}
            following = {"index": index, "function": {"arguments": arguments}}
            return [{"tool_calls": [announced]}, {"tool_calls": [following]}]


class StreamResponse:
    """Server-sent events."""

    def __init__(
        self,
        reply: Reply,
        response_id: str,
        model: str,
        headers: tuple[Header, ...],
        *,
        is_chat: bool,
        with_ids: bool,
        with_usage: bool,
    ) -> None:
        self._reply = reply
        self._headers = headers
        self._writer = ChunkWriter(response_id, int(time.time()), model, is_chat=is_chat)
        self._with_ids = with_ids
        self._with_usage = with_usage

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""
        return self._reply.is_clogged

    async def drained(self) -> None:
        """Return once the client has caught up."""
        await self._reply.drained()

    def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Send a chunk; one that would say nothing is left out, as while a stop string may be beginning."""
        if not flush.text and not flush.finish and not self._with_ids and logprobs is None:
            return False
        ids = flush.token_ids if self._with_ids else None
        self._send_chunks(self._writer.chunk(flush.text, flush.finish, ids, logprobs))
        return True

    def put_parts(
        self, parts: Sequence[Part], token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None
    ) -> bool:
        """Send a chunk for each delta; ids and log-probabilities stand on the first, the finish on one of its own."""
        deltas = [delta for part in parts for delta in deltas_of(part)]
        if finish or (not deltas and (self._with_ids or logprobs is not None)):
            deltas.append({})
        if not deltas:
            return False
        ids = token_ids if self._with_ids else None
        chunks = b""
        for number, delta in enumerate(deltas, start=1):
            chunks += self._writer.delta(delta, finish if number == len(deltas) else None, ids, logprobs)
            ids, logprobs = None, None
        self._send_chunks(chunks)
        return True

    def _send_chunks(self, chunks: bytes) -> None:
        if not self._reply.is_started:
            self._start()
            chunks = self._writer.opening() + chunks
        self._reply.write(chunks)

    def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
        """Send usage, where it was asked for, and the end mark. An explanation travels on a usage chunk."""
        if not self._reply.is_started:
            self._start()
        last = b""
        if self._with_usage or explanation is not None:
            explained = None if explanation is None else msgspec.json.encode(explanation)
            last = self._writer.usage(msgspec.json.encode(usage), explained)
        self._end(last)

    def fail(self, refusal: RefusalError) -> None:
        """A status while there is one to choose, an error event after that."""
        if self._reply.is_started:
            self._end(event(refusal.body()))
        else:
            send_refusal(self._reply, refusal, self._headers)

    def _start(self) -> None:
        self._reply.start(200, (*_EVENT_STREAM, *self._headers))

    def _end(self, last: bytes) -> None:
        self._reply.write(last + DONE_EVENT)
        self._reply.end()


class WholeResponse:
    """One JSON body, sent at the end."""

    def __init__(
        self,
        reply: Reply,
        response_id: str,
        model: str,
        headers: tuple[Header, ...],
        *,
        is_chat: bool,
        with_ids: bool,
    ) -> None:
        self._reply = reply
        self._id = response_id
        self._model = model
        self._headers = headers
        self._is_chat = is_chat
        self._with_ids = with_ids
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[Document] = []
        self._ids: list[int] = []
        self._finish_reason: str | None = None

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""
        return self._reply.is_clogged

    async def drained(self) -> None:
        """Return once the client has caught up."""
        await self._reply.drained()

    def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Keep a part; the client of one body has its tokens, as times go, when the gateway has them."""
        self._texts.append(flush.text)
        self._keep(flush.token_ids, flush.finish, logprobs)
        return True

    def put_parts(
        self, parts: Sequence[Part], token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None
    ) -> bool:
        """Keep parts by their kind."""
        for part in parts:
            match part:
                case Content(text):
                    self._texts.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case ToolCall():
                    self._calls.append(call_document(part))
        self._keep(token_ids, finish, logprobs)
        return True

    def _keep(self, token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None) -> None:
        self._ids.extend(token_ids)
        self._finish_reason = finish
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def _message(self) -> dict[str, Any]:
        text = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not self._calls else None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
        """Send it all."""
        content = {"message": self._message()} if self._is_chat else {"text": "".join(self._texts)}
        likely = joined(self._logprobs)
        choice: dict[str, Any] = {"index": 0, **content, "logprobs": likely, "finish_reason": self._finish_reason}
        if self._with_ids:
            choice["token_ids"] = self._ids
        body: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": usage,
        }
        if explanation is not None:
            body["pdd"] = explanation
        send_json(self._reply, 200, json_bytes(body), self._headers)

    def fail(self, refusal: RefusalError) -> None:
        """Send the error alone."""
        send_refusal(self._reply, refusal, self._headers)
