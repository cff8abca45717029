"""How a token sequence is cut into blocks, and how much of it a store already holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from control.domain.prefix import BLOCK_TOKENS, block_hashes, child_hash
from engine_agents.nodes.kv_blocks import Block, BlockStore


@dataclass(frozen=True, slots=True)
class Cut:
    """One block's place in a token sequence: tokens[start:end]; only the last one may be partial.

    `parent` is the hash of the block before it, None for the first one.
    """

    hash: bytes
    start: int
    end: int
    parent: bytes | None = None

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
    hashes = block_hashes(tokens, block_tokens, salt)
    full = len(hashes) * block_tokens
    if full < len(tokens):
        hashes.append(child_hash(hashes[-1] if hashes else None, tokens[full:], salt))
    parents = [None, *hashes]
    return [
        Cut(block_hash, index * block_tokens, min((index + 1) * block_tokens, len(tokens)), parents[index])
        for index, block_hash in enumerate(hashes)
    ]


def resident_beginning(
    store: BlockStore, tokens: Sequence[int], parent: bytes | None, salt: bytes = b"", limit: int = BLOCK_TOKENS - 1
) -> Block | None:
    """The longest resident block of at most `limit` tokens that begins as these tokens do, behind the same parent.

    It is the tail of an earlier, shorter sequence.
    """
    for length in range(min(limit, len(tokens)), 0, -1):
        block = store.get(child_hash(parent, tokens[:length], salt))
        if block is not None:
            return block
    return None


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
    tail = resident_beginning(store, tokens[full : full + block_tokens], parent, salt, block_tokens - 1)
    if tail is None:
        return ResidentPrefix(tuple(blocks), full)
    blocks.append(tail)
    store.touch([block.hash for block in blocks])
    return ResidentPrefix(tuple(blocks), full + tail.token_count)
