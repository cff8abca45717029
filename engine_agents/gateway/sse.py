"""Server-sent events: cutting an engine's bytes into events, and writing OpenAI chunks."""

import json

import msgspec

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"


class EventParser:
    """Cuts a byte stream into the data of its events, wherever the network cut it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events completed by these bytes; comments and other fields are skipped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        # Every engine writes one data line per event, so a line is an event.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def event(payload: bytes) -> bytes:
    """One event with these bytes as its data."""
    return b"data: " + payload + b"\n\n"


def json_text(value: str) -> bytes:
    """A text as JSON; `json` escapes lone surrogates, which the faster encoder refuses."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


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

    def opening(self) -> bytes:
        """What stands before the first text: the role of a chat message."""
        if not self._is_chat:
            return b""
        return (
            self._head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def chunk(self, text: str, finish_reason: str | None, token_ids: tuple[int, ...] | None) -> bytes:
        """One piece of the answer; `token_ids` only where the client asked for them."""
        content = b'"delta":{"content":%b}' if self._is_chat else b'"text":%b'
        ids = b"" if token_ids is None else b',"token_ids":' + msgspec.json.encode(token_ids)
        finish = b"null" if finish_reason is None else json_text(finish_reason)
        return (
            self._head
            + b'"choices":[{"index":0,'
            + content % json_text(text)
            + b',"logprobs":null,"finish_reason":'
            + finish
            + ids
            + b"}]}\n\n"
        )

    def usage(self, usage: bytes, explanation: bytes | None) -> bytes:
        """The last chunk, with no choices; both arguments are JSON objects."""
        explained = b"" if explanation is None else b',"pdd":' + explanation
        return self._head + b'"choices":[],"usage":' + usage + explained + b"}\n\n"
