"""The two shapes of an answer: a stream of events, and one body. The status line leaves with the first text."""

import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

import msgspec

from control.domain.answer_parser import Content, Part, Reasoning, ToolCall
from control.domain.commit import Flush
from engine_agents.gateway.errors import RefusalError
from engine_agents.gateway.logprobs import Document, joined
from engine_agents.gateway.sse import DONE_EVENT, ChunkWriter, event, json_bytes

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object, with the prefix-cache hit that P reported."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None


class Response(Protocol):
    """An answer on its way to a client."""

    @property
    def is_started(self) -> bool:
        """Whether the status line has gone out, so that an error cannot be a status any more."""

    async def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Take the next part of the answer; False if the client has not been sent anything of it yet."""

    async def put_parts(
        self, parts: Sequence[Part], token_ids: tuple[int, ...], finish: str | None, logprobs: Document | None
    ) -> bool:
        """Take the next part of a chat answer whose kinds of text are told apart."""

    async def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
        """End the answer."""

    async def fail(self, refusal: RefusalError) -> None:
        """End it with an error."""


async def send_json(send: Send, status: int, body: bytes, headers: tuple[Header, ...] = ()) -> None:
    """Send a whole JSON response."""
    await send_body(send, status, body, b"application/json", headers)


async def send_body(
    send: Send, status: int, body: bytes, content_type: bytes, headers: tuple[Header, ...] = ()
) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", content_type), length, *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refusal: RefusalError, headers: tuple[Header, ...] = ()) -> None:
    """Send an error in OpenAI's shape."""
    if refusal.retry_after_s is not None:
        headers = (*headers, (b"retry-after", str(refusal.retry_after_s).encode()))
    await send_json(send, refusal.status, refusal.body(), headers)


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
        send: Send,
        response_id: str,
        model: str,
        headers: tuple[Header, ...],
        *,
        is_chat: bool,
        with_ids: bool,
        with_usage: bool,
    ) -> None:
        self._send = send
        self._headers = headers
        self._writer = ChunkWriter(response_id, int(time.time()), model, is_chat=is_chat)
        self._with_ids = with_ids
        self._with_usage = with_usage
        self.is_started = False

    async def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Send a chunk; one that would say nothing is left out, as while a stop string may be beginning."""
        if not flush.text and not flush.finish and not self._with_ids and logprobs is None:
            return False
        ids = flush.token_ids if self._with_ids else None
        await self._send_chunks(self._writer.chunk(flush.text, flush.finish, ids, logprobs))
        return True

    async def put_parts(
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
        await self._send_chunks(chunks)
        return True

    async def _send_chunks(self, chunks: bytes) -> None:
        if not self.is_started:
            await self._start()
            chunks = self._writer.opening() + chunks
        await self._send({"type": "http.response.body", "body": chunks, "more_body": True})

    async def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
        """Send usage, where it was asked for, and the end mark. An explanation travels on a usage chunk."""
        if not self.is_started:
            await self._start()
        last = b""
        if self._with_usage or explanation is not None:
            explained = None if explanation is None else msgspec.json.encode(explanation)
            last = self._writer.usage(msgspec.json.encode(usage), explained)
        await self._send({"type": "http.response.body", "body": last + DONE_EVENT})

    async def fail(self, refusal: RefusalError) -> None:
        """A status while there is one to choose, an error event after that."""
        if not self.is_started:
            await send_refusal(self._send, refusal, self._headers)
            return
        await self._send({"type": "http.response.body", "body": event(refusal.body()) + DONE_EVENT})

    async def _start(self) -> None:
        self.is_started = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*headers, *self._headers]})


class WholeResponse:
    """One JSON body, sent at the end."""

    def __init__(
        self,
        send: Send,
        response_id: str,
        model: str,
        headers: tuple[Header, ...],
        *,
        is_chat: bool,
        with_ids: bool,
    ) -> None:
        self._send = send
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
        self.is_started = False

    async def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Keep a part; the client of one body has its tokens, as times go, when the gateway has them."""
        self._texts.append(flush.text)
        self._keep(flush.token_ids, flush.finish, logprobs)
        return True

    async def put_parts(
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

    async def finish(self, usage: Usage, explanation: dict[str, Any] | None) -> None:
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
        self.is_started = True
        await send_json(self._send, 200, json_bytes(body), self._headers)

    async def fail(self, refusal: RefusalError) -> None:
        """Send the error alone."""
        await send_refusal(self._send, refusal, self._headers)
