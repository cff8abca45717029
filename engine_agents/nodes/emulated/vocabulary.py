"""A byte-level vocabulary with whole words, and with characters that only two tokens together make complete."""

import re
from collections.abc import Sequence
from itertools import pairwise

END = 256
START = 257
PAD = 258
_SPECIALS = {END: b"<|im_end|>", START: b"<|im_start|>", PAD: b"<|endoftext|>"}

_WORDS = """
the of and to in is that it for on with as was at by from this have not are but all an they which one you were
when we there can out other what up time if about her then some these would make like into him has two more go no
way could my than first been call who its now find long down day did get come made may part over new sound take
only little work know place year live back give most very after thing our just name good sentence man think say
great where help through much before line right too mean old any same tell boy follow came want show also around
form three small set put end does another well large must big even such because turn here why ask went men read
need land different home us move try kind hand picture again change off play spell air away animal house point
page letter mother answer found study still learn should world
""".split()  # noqa: SIM905 - two hundred quoted words would be harder to read

_BROKEN_WORDS: tuple[tuple[bytes, ...], ...] = (
    (b" caf\xc3", b"\xa9"),
    (b" na\xc3", b"\xafve"),
    (b" \xc3", b"\xbcber"),
    (b" \xe2\x82", b"\xac"),
    (b" \xe4\xbd", b"\xa0\xe5", b"\xa5\xbd"),
    (b" \xf0\x9f", b"\x98", b"\x80"),
)
_PUNCTUATION = b".,;\n"
_FIRST_WORD = 260
_FIRST_FRAGMENT = _FIRST_WORD + len(_WORDS)
_PIECE = re.compile(rb"<\|[a-z_]+\|>| ?[A-Za-z\x80-\xff]+|.", re.DOTALL)


class Vocabulary:
    """Token ids, their bytes, and which ids may follow one another in readable text."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {value: bytes([value]) for value in range(256)} | _SPECIALS
        self._ids: dict[bytes, tuple[int, ...]] = {data: (token,) for token, data in _SPECIALS.items()}
        self._next: dict[int, int] = {}
        self.words = tuple(range(_FIRST_WORD, _FIRST_FRAGMENT))
        for token, word in zip(self.words, _WORDS, strict=True):
            self._bytes[token] = f" {word}".encode()
            self._ids[self._bytes[token]] = (token,)
        self.broken_words = tuple(self._add_fragments(fragments) for fragments in _BROKEN_WORDS)
        self.punctuation = tuple(_PUNCTUATION)

    def _add_fragments(self, fragments: tuple[bytes, ...]) -> int:
        """Give each fragment an id of its own that leads to the next one; gives back the first."""
        first = max(_FIRST_FRAGMENT, *self._bytes) + 1
        ids = tuple(range(first, first + len(fragments)))
        self._bytes.update(zip(ids, fragments, strict=True))
        self._next.update(pairwise(ids))
        self._ids[b"".join(fragments)] = ids
        return first

    def knows(self, token: int) -> bool:
        """Whether the id is in the vocabulary."""
        return token in self._bytes

    def following(self, token: int) -> int | None:
        """The id that completes a begun character; None where anything may follow."""
        return self._next.get(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written out become themselves."""
        ids: list[int] = []
        for piece in _PIECE.findall(text.encode()):
            ids.extend(self._ids.get(piece, tuple(piece)))
        return ids

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The bytes of token ids.

        Raises:
            ValueError: an id is unknown.
        """
        try:
            return b"".join(self._bytes[token] for token in tokens)
        except KeyError as error:
            raise ValueError(f"no token {error.args[0]} in the vocabulary") from None

    def piece(self, token: int) -> bytes:
        """What a generated token adds to the text; special tokens add nothing."""
        return b"" if token in _SPECIALS else self._bytes[token]
