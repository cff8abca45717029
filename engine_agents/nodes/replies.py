"""The dialect's replies as plain JSON data: completions, stream chunks, usage, and who serves."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

SYSTEM_FINGERPRINT = "pdd-node"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class KvFigures:
    """Where a prompt's KV came from, as the engine and the puller counted it.

    `resident_tokens` were here before the request, `pulled_tokens` came on its own connection, and
    `waited_bytes_tokens` on another request's; `computed_tokens` is what the engine computed itself. `queued_s` is the
    wait for a slot, seconds.
    """

    computed_tokens: int = 0
    resident_tokens: int = 0
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    pull_s: float = 0.0
    waited_bytes_tokens: int = 0
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens went in and came out; `cached_tokens` of them came from the store."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None

    def to_document(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        details = None if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice: the text that can be sent, and the ids behind the text so far."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    logprobs: dict[str, list[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of one reply have in common."""

    id: str
    model: str
    created_s: int
    with_ids: bool

    @classmethod
    def of(cls, request_id: str, model: str, *, with_ids: bool) -> "Envelope":
        """The envelope of a reply that begins now."""
        return cls(f"cmpl-{request_id}", model, int(time.time()), with_ids)

    def chunk(self, pieces: list[Piece], usage: Usage | None = None) -> dict[str, Any]:
        """A stream chunk, or with all in one piece a whole reply."""
        document: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
            "choices": [self._choice(piece) for piece in pieces],
        }
        if usage is not None:
            document["usage"] = usage.to_document()
        return document

    def final(self, pieces: list[Piece], usage: Usage, figures: KvFigures) -> dict[str, Any]:
        """The usage chunk (no pieces) or the whole reply, with the KV figures."""
        return {**self.chunk(pieces, usage), "system_fingerprint": SYSTEM_FINGERPRINT, "pdd": asdict(figures)}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": 0,
            "text": piece.text,
            "logprobs": piece.logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "prompt_token_ids": None,
            "token_ids": list(piece.token_ids) if self.with_ids else None,
        }


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
