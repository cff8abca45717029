"""How a token sequence is cut into blocks, and how much of it a store already holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from control.domain.prefix import BLOCK_TOKENS, block_hashes, child_hash
from engine_agents.nodes.kv_blocks import Block, BlockStore


@dataclass(frozen=True, slots=True)
class Cut:
    """One block's place in a token sequence: tokens[start:end]; only the last one may be partial."""

    hash: bytes
    start: int
    end: int

    @property
    def token_count(self) -> int:
        """Tokens in the block."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ResidentPrefix:
    """Blocks that together are the KV of the first `token_count` tokens; the last one may be partial."""

    blocks: tuple[Block, ...]
    token_count: int


def cut_blocks(tokens: Sequence[int], salt: bytes = b"", block_tokens: int = BLOCK_TOKENS) -> list[Cut]:
    """All blocks of a sequence in order, the partial tail included."""
    cuts = [
        Cut(block_hash, index * block_tokens, (index + 1) * block_tokens)
        for index, block_hash in enumerate(block_hashes(tokens, block_tokens, salt))
    ]
    full = len(cuts) * block_tokens
    if full < len(tokens):
        parent = cuts[-1].hash if cuts else None
        cuts.append(Cut(child_hash(parent, tokens[full:], salt), full, len(tokens)))
    return cuts


def longest_resident(
    store: BlockStore, tokens: Sequence[int], salt: bytes = b"", block_tokens: int = BLOCK_TOKENS
) -> ResidentPrefix:
    """The longest prefix of the tokens whose KV is resident; its blocks become the most recently used.

    Behind the last full block a partial one of any length counts too: it is the tail of an earlier, shorter
    sequence, and with it only the tokens after that have to be computed.
    """
    blocks = store.match(block_hashes(tokens, block_tokens, salt))
    full = len(blocks) * block_tokens
    parent = blocks[-1].hash if blocks else None
    for length in range(min(block_tokens - 1, len(tokens) - full), 0, -1):
        tail = store.get(child_hash(parent, tokens[full : full + length], salt))
        if tail is not None:
            blocks.append(tail)
            store.touch([block.hash for block in blocks])
            return ResidentPrefix(tuple(blocks), full + length)
    return ResidentPrefix(tuple(blocks), full)
