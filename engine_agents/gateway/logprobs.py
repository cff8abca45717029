"""Log-probabilities joined across decoders, in the shape of the endpoint that asked for them."""

from typing import Any

import msgspec

Document = dict[str, list[Any]]

_INCOMPLETE = "\ufffd"


class EngineLogprobs(msgspec.Struct, frozen=True):
    """What an engine says in one chunk, per token; offsets are its own, counted from where it began."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


_UNKNOWN = ("", None, None)


class JoinedLogprobs:
    """One answer's log-probabilities. They follow the ids: what a cut drops is dropped here too."""

    def __init__(self, alternatives: int, *, is_chat: bool) -> None:
        """Keep that many alternatives beside each token."""
        self._alternatives = alternatives
        self._is_chat = is_chat
        self._entries: list[tuple[str, float | None, dict[str, float] | None]] = []
        self._taken = 0
        self._offset = 0

    def add(self, start: int, count: int, said: EngineLogprobs | None) -> None:
        """Take over an engine's chunk of `count` tokens, of which the first is token `start` of the answer."""
        del self._entries[start:]
        self._entries += [_UNKNOWN] * (start - len(self._entries))
        if said is not None:
            top = said.top_logprobs or [None] * count
            self._entries += list(zip(said.tokens, said.token_logprobs, top, strict=False))[:count]
        self._entries += [_UNKNOWN] * (start + count - len(self._entries))

    def take(self, count: int) -> Document:
        """The next tokens that go to the client, as OpenAI's `logprobs` object."""
        entries = self._entries[self._taken : self._taken + count]
        self._taken += len(entries)
        return {"content": [self._chat_entry(*entry) for entry in entries]} if self._is_chat else self._columns(entries)

    def _chat_entry(self, token: str, logprob: float | None, top: dict[str, float] | None) -> dict[str, Any]:
        likeliest = sorted((top or {}).items(), key=lambda item: -item[1])[: self._alternatives]
        told = [{"token": other, "logprob": value, "bytes": _bytes_of(other)} for other, value in likeliest]
        return {"token": token, "logprob": logprob, "bytes": _bytes_of(token), "top_logprobs": told}

    def _columns(self, entries: list[tuple[str, float | None, dict[str, float] | None]]) -> Document:
        offsets = []
        for token, _, _ in entries:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": [entry[0] for entry in entries],
            "token_logprobs": [entry[1] for entry in entries],
            "top_logprobs": [entry[2] for entry in entries],
            "text_offset": offsets,
        }


def joined(documents: list[Document]) -> Document | None:
    """The object of a whole answer; None where none was wanted."""
    if not documents:
        return None
    return {key: [value for document in documents for value in document[key]] for key in documents[0]}


def _bytes_of(token: str) -> list[int] | None:
    """UTF-8 of a token; None for a part of a character, whose bytes engines do not tell."""
    return None if _INCOMPLETE in token else list(token.encode(errors="replace"))
