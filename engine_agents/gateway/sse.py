"""Server-sent events: cutting an engine's bytes into events, and writing OpenAI chunks."""

import json
from typing import Any

import msgspec

DONE = b"[DONE]"
_NEWLINE = 0x0A
DONE_EVENT = b"data: [DONE]\n\n"
_FINISH = b',"finish_reason":'


class EventParser:
    """Cuts a byte stream into the data of its events, wherever the network cut it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events completed by these bytes; comments and other fields are skipped."""
        if not self._rest and data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data[-1] == _NEWLINE:
            return [data[6:-2]]  # one event, as most reads of a paced stream bring
        *lines, self._rest = (self._rest + data).split(b"\n")
        # Every engine writes one data line per event, so a line is an event.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def event(payload: bytes) -> bytes:
    """One event with these bytes as its data."""
    return b"data: " + payload + b"\n\n"


def json_text(value: str) -> bytes:
    """A text as JSON."""
    return json_bytes(value)


def json_bytes(value: Any) -> bytes:
    """A value as JSON; `json` escapes lone surrogates, which the faster encoder refuses."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def _end(finish_reason: str | None, token_ids: tuple[int, ...] | None) -> bytes:
    """The end of a chunk, from its finish reason's value on."""
    ids = b"" if token_ids is None else b',"token_ids":' + msgspec.json.encode(token_ids)
    return (b"null" if finish_reason is None else json_text(finish_reason)) + ids + b"}]}\n\n"


class ChunkWriter:
    """Writes the chunks of one streamed answer; what stays the same in all of them is encoded once."""

    def __init__(self, response_id: str, created_at_s: int, model: str, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        kind = b"chat.completion.chunk" if is_chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % (
            json_text(response_id),
            kind,
            created_at_s,
            json_text(model),
        )
        self._before_text = self._head + b'"choices":[{"index":0,' + (b'"delta":{"content":' if is_chat else b'"text":')
        self._after_content = (b"}" if is_chat else b"") + b',"logprobs":'
        self._after_text = self._after_content + b"null" + _FINISH
        self._plain_end = self._after_text + b"null}]}\n\n"

    def opening(self) -> bytes:
        """What stands before the first text: the role of a chat message."""
        if not self._is_chat:
            return b""
        return (
            self._head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def chunk(
        self,
        text: str,
        finish_reason: str | None,
        token_ids: tuple[int, ...] | None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        """One piece of the answer; `token_ids` and `logprobs` only where the client asked for them."""
        start = self._before_text + json_bytes(text)
        if finish_reason is None and token_ids is None and logprobs is None:
            return start + self._plain_end
        if logprobs is None:
            return start + self._after_text + _end(finish_reason, token_ids)
        return start + self._after_content + json_bytes(logprobs) + _FINISH + _end(finish_reason, token_ids)

    def delta(
        self,
        delta: dict[str, Any],
        finish_reason: str | None,
        token_ids: tuple[int, ...] | None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        """One change of a chat message that may be more than text."""
        likely = b"null" if logprobs is None else json_bytes(logprobs)
        start = self._head + b'"choices":[{"index":0,"delta":' + json_bytes(delta) + b',"logprobs":' + likely
        return start + _FINISH + _end(finish_reason, token_ids)

    def usage(self, usage: bytes, explanation: bytes | None) -> bytes:
        """The last chunk, with no choices; both arguments are JSON objects."""
        explained = b"" if explanation is None else b',"pdd":' + explanation
        return self._head + b'"choices":[],"usage":' + usage + explained + b"}\n\n"
