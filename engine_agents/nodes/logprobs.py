"""Log-probabilities in the shape of OpenAI's completions, chunk by chunk."""

from collections.abc import Sequence
from typing import Any

from engine_agents.nodes.engine import Step

_FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class LogprobWriter:
    """Knows where in the answer each token's text begins."""

    def __init__(self) -> None:
        self._offset = 0

    def document(self, step: Step) -> dict[str, list[Any]]:
        """The `logprobs` of one step's chunk; a part of a character reads U+FFFD, as vLLM writes it."""
        document: dict[str, list[Any]] = {field: [] for field in _FIELDS}
        for piece, likely in zip(step.token_bytes, step.logprobs, strict=True):
            token = piece.decode(errors="replace")
            top = {other.decode(errors="replace"): logprob for other, logprob in likely.top}
            if likely.logprob is not None:
                top.setdefault(token, likely.logprob)
            for field, value in zip(_FIELDS, (token, likely.logprob, top or None, self._offset), strict=True):
                document[field].append(value)
            self._offset += len(token)
        return document


def joined_logprobs(documents: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]] | None:
    """The `logprobs` of a whole reply; None where there are none."""
    if not documents:
        return None
    return {field: [value for document in documents for value in document[field]] for field in _FIELDS}
