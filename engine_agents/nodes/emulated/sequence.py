"""What stands for a model here: KV and next token are hashes, so that any wrong byte of KV changes the answer.

The KV of a token follows from the KV of the token before it and its own id. The next token follows from all ids and
all KV bytes of the sequence, those received from elsewhere as they were received. Neither depends on where blocks
are cut, nor on who computed them.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import xxhash

from engine_agents.nodes.emulated.vocabulary import END, Vocabulary
from engine_agents.nodes.engine import TokenLogprob
from engine_agents.nodes.kv_blocks import Block, BlockStore, Payload
from engine_agents.nodes.kv_prefix import cut_blocks

_DIGEST_BYTES = 64
_BROKEN_SHARE, _PUNCTUATION_SHARE, _SHARES = 5, 11, 64


def token_kv(previous: bytes, token: int, size_bytes: int) -> bytes:
    """The KV of one token: a digest of what precedes it, repeated to the wanted size."""
    digest = blake2b(previous[-_DIGEST_BYTES:] + token.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()
    return (digest * (size_bytes // _DIGEST_BYTES + 1))[:size_bytes]


class KvSequence:
    """The tokens evaluated so far in one slot, with their KV."""

    def __init__(self, model: str, kv_bytes_per_token: int) -> None:
        self.tokens: list[int] = []
        self.kv = bytearray()
        self._size_bytes = kv_bytes_per_token
        self._last = model.encode()
        self._ids_hash = xxhash.xxh3_128()
        self._kv_hash = xxhash.xxh3_128()

    def load(self, tokens: Sequence[int], payloads: Iterable[Payload]) -> None:
        """Take over the KV of the first tokens as it is."""
        for payload in payloads:
            self.kv += payload
            self._kv_hash.update(payload)
        self._note(tokens)
        self._last = bytes(self.kv[-_DIGEST_BYTES:]) or self._last

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Compute the KV of the next tokens."""
        start = len(self.kv)
        for token in tokens:
            self._last = token_kv(self._last, token, self._size_bytes)
            self.kv += self._last
        self._kv_hash.update(memoryview(self.kv)[start:].tobytes())
        self._note(tokens)

    def next_token(self, vocabulary: Vocabulary, eos_period: int, *, ignore_eos: bool) -> int:
        """The token that follows; on average every `eos_period`-th is the end of text (0: never)."""
        forced = vocabulary.following(self.tokens[-1])
        if forced is not None:
            return forced
        seed = blake2b(self._ids_hash.digest() + self._kv_hash.digest(), digest_size=16).digest()
        draw, share = int.from_bytes(seed[:8], "little"), seed[8] % _SHARES
        if eos_period and not ignore_eos and int.from_bytes(seed[9:13], "little") % eos_period == 0:
            return END
        if share < _BROKEN_SHARE:
            return vocabulary.broken_words[draw % len(vocabulary.broken_words)]
        if share < _PUNCTUATION_SHARE:
            return vocabulary.punctuation[draw % len(vocabulary.punctuation)]
        return vocabulary.words[draw % len(vocabulary.words)]

    def is_true(self, model: str) -> bool:
        """Whether all KV, the received one included, is what computing these tokens gives."""
        size, last = self._size_bytes, model.encode()
        for position, token in enumerate(self.tokens):
            last = token_kv(last, token, size)
            if self.kv[position * size : (position + 1) * size] != last:
                return False
        return True

    def likely(self, vocabulary: Vocabulary, token: int, count: int) -> TokenLogprob:
        """How likely the next token is made to look, and the `count` likeliest: the token itself, then words."""
        seed = blake2b(self._ids_hash.digest() + self._kv_hash.digest(), digest_size=32, person=b"logprobs").digest()
        logprob = -seed[0] / 256
        first = int.from_bytes(seed[1:5], "little")
        others = (vocabulary.words[(first + step) % len(vocabulary.words)] for step in range(count + 1))
        ids = [token, *(other for other in others if other != token)][:count]
        top = tuple(
            (vocabulary.piece(id_), logprob - rank - seed[rank] / 256 * bool(rank)) for rank, id_ in enumerate(ids)
        )
        return TokenLogprob(logprob, top)

    def blocks(self, store: BlockStore, salt: bytes, block_tokens: int) -> list[Block]:
        """The sequence cut into blocks; those that the store has are not made again."""
        size = self._size_bytes
        return [
            store.get(cut.hash)
            or Block(cut.hash, cut.token_count, bytes(memoryview(self.kv)[cut.start * size : cut.end * size]))
            for cut in cut_blocks(self.tokens, salt, block_tokens)
        ]

    def _note(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self._ids_hash.update(b"".join(token.to_bytes(4, "little") for token in tokens))
