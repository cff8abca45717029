"""Who owns the client's stream: a pure state machine that no token can pass twice and none can miss.

One stream of an engine owns the answer at a time. Opening the next turn freezes the cut at the last character
boundary; whatever an earlier turn still sends is dropped, and the new turn starts with the token at the cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

_INCOMPLETE = "\ufffd"


class Side(IntEnum):
    """Which pool makes the tokens of a turn."""

    RELAY = 1
    MAIN = 2


class Piece(NamedTuple):
    """What an engine sent in one chunk.

    `finish` is OpenAI's finish reason or None. Text that is not empty ends on a character, and so do the ids, unless
    `is_whole` denies it: then the last of them may belong to a character whose text is still to come.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: str | None = None
    is_whole: bool = True


class Flush(NamedTuple):
    """What may go to the client now. `token_ids` end on a character; a `finish` ends the answer."""

    token_ids: tuple[int, ...]
    text: str
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to append to an answer from token number `start`; void once a later turn is opened."""

    number: int
    side: Side
    start: int


class EngineOverrunError(ValueError):
    """An engine sent more tokens than it was asked for."""


class Commit:
    """The answer so far, and who may append to it."""

    def __init__(self, max_tokens: int, stop: Sequence[str] = ()) -> None:
        """Take the client's limit on output tokens and its stop strings, which are not part of the answer."""
        if max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        self.max_tokens = max_tokens
        self.finish: str | None = None
        self._stop = tuple(text for text in stop if text)
        self._ids: list[int] = []
        self._boundary = 0
        self._flushed = 0
        self._open = ""
        self._held = ""
        self._turn: Turn | None = None
        self._turns = 0
        self._eager = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids up to the last character boundary: what a new turn continues from."""
        return tuple(self._ids[: self._boundary])

    @property
    def output_tokens(self) -> int:
        """How many tokens the answer has, the ones inside an unfinished character included."""
        return len(self._ids)

    @property
    def remaining_tokens(self) -> int:
        """How many tokens a turn opened now may make."""
        return self.max_tokens - self._boundary

    @property
    def eager_tokens(self) -> int:
        """Tokens of the answer that relay nodes made."""
        return self._eager + self._made_by_owner() if self._owner_is(Side.RELAY) else self._eager

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete."""
        return self.finish is not None

    def open(self, side: Side) -> Turn | None:
        """Freeze the cut and give the answer to a new stream; None if the answer is complete, and nothing is to do."""
        if self.is_done:
            return None
        if self._owner_is(Side.RELAY):
            self._eager += max(0, self._boundary - self._start())
        del self._ids[self._boundary :]
        self._open = ""
        self._turns += 1
        self._turn = Turn(self._turns, side, self._boundary)
        return self._turn

    def accept(self, turn: Turn, piece: Piece) -> Flush | None:
        """Append a piece; None if the turn is void or the answer complete.

        Raises:
            EngineOverrunError: the piece goes past the client's limit.
        """
        if self.finish is not None or (turn is not self._turn and turn != self._turn):
            return None
        count = len(self._ids) + len(piece.token_ids)
        if count > self.max_tokens:
            raise EngineOverrunError(f"the engine made more than the {self.max_tokens} tokens asked for")
        self._ids.extend(piece.token_ids)
        at_limit = count == self.max_tokens
        is_capped = piece.finish == "length" and not at_limit
        if is_capped and (piece.text.endswith(_INCOMPLETE) or not piece.is_whole):
            return None  # the engine stopped at its own cap inside a character; the next turn makes it again
        self._open += piece.text
        is_end = at_limit or (piece.finish is not None and not is_capped)
        if is_end or (piece.text and piece.is_whole):
            self._boundary = count
            self._held, self._open = self._held + self._open, ""
        return self._release("length" if at_limit and piece.finish is None else None if is_capped else piece.finish)

    def _release(self, finish: str | None) -> Flush:
        """Let go of all text outside a possible stop string; a stop string found ends the answer before it."""
        found = min((at for at in map(self._held.find, self._stop) if at >= 0), default=-1) if self._stop else -1
        if found >= 0:
            text, self._held, self.finish = self._held[:found], "", "stop"
        elif finish is not None or not self._stop:
            text, self._held, self.finish = self._held, "", finish
        else:
            keep = _possible_stop_chars(self._held, self._stop)
            text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        ids = tuple(self._ids[self._flushed : self._boundary])
        self._flushed = self._boundary
        return Flush(ids, text, self.finish)

    def _owner_is(self, side: Side) -> bool:
        return self._turn is not None and self._turn.side is side

    def _start(self) -> int:
        return self._turn.start if self._turn else 0

    def _made_by_owner(self) -> int:
        return len(self._ids) - self._start()


def _possible_stop_chars(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = min(len(text), max((len(word) - 1 for word in stop), default=0))
    return next(
        (size for size in range(longest, 0, -1) if any(word.startswith(text[-size:]) for word in stop)),
        0,
    )
