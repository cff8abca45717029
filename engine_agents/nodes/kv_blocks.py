"""The KV blocks that one node holds: bounded by tokens, evicted least recently used first, never while pinned."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import xxhash

Payload = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """The KV of one block of a prompt. `hash` names the tokens and all before them; a tail holds fewer tokens.

    `checksum` is the payload's xxh3_64. A store computes it where there is none yet, and a block that is passed on
    keeps the one it came with, so that damage in a node's memory is found too.
    """

    hash: bytes
    token_count: int
    payload: Payload
    checksum: int | None = field(default=None, compare=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload."""
        return self.payload.nbytes if isinstance(self.payload, memoryview) else len(self.payload)

    def digest(self) -> int:
        """The payload's checksum, computed where it has come without one."""
        return xxhash.xxh3_64_intdigest(self.payload) if self.checksum is None else self.checksum


@dataclass(frozen=True, slots=True)
class BlockPart:
    """The end of a block, from token `from_token` on; `block_checksum` is that of the whole block's payload."""

    hash: bytes
    token_count: int
    from_token: int
    payload: Payload
    block_checksum: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)


@dataclass(slots=True)
class StoreCounters:
    """What happened to a store since it was made; only ever grows."""

    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0


@dataclass(slots=True)
class BlockStore:
    """Blocks by hash. Single-threaded and without I/O: one event loop owns it.

    A pin is taken by a holder (a lease id or a request id) over a set of hashes and released by the holder as a
    whole; a block pinned by anyone is never evicted.
    """

    capacity_tokens: int
    counters: StoreCounters = field(default_factory=StoreCounters)
    resident_tokens: int = field(default=0, init=False)
    resident_bytes: int = field(default=0, init=False)
    pinned_bytes: int = field(default=0, init=False)
    _blocks: OrderedDict[bytes, Block] = field(default_factory=OrderedDict, init=False)
    _holders: dict[str, set[bytes]] = field(default_factory=dict, init=False)
    _pins: dict[bytes, int] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def get(self, block_hash: bytes) -> Block | None:
        """The block, without making it more recently used."""
        return self._blocks.get(block_hash)

    def missing(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Those of the hashes that are not resident, in their order."""
        return [block_hash for block_hash in hashes if block_hash not in self._blocks]

    def match(self, hashes: Sequence[bytes]) -> list[Block]:
        """The longest resident run from the first hash on; its blocks become the most recently used."""
        found: list[Block] = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            found.append(block)
        self.touch([block.hash for block in found])
        return found

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Make a chain the most recently used, its root last, so that eviction eats a chain from its end."""
        for block_hash in reversed(hashes):
            if block_hash in self._blocks:
                self._blocks.move_to_end(block_hash)

    def put(self, block: Block) -> bool:
        """Keep a block, evicting others to make room.

        False if pinned blocks leave no room for it. A block that is already resident stays as it is.
        """
        if block.hash in self._blocks:
            self._blocks.move_to_end(block.hash)
            return True
        if not self._make_room(block.token_count):
            self.counters.refused_blocks += 1
            return False
        if block.checksum is None:
            block = replace(block, checksum=block.digest())
        self._blocks[block.hash] = block
        self.resident_tokens += block.token_count
        self.resident_bytes += block.size_bytes
        self.counters.stored_blocks += 1
        return True

    def put_chain(self, blocks: Sequence[Block]) -> bool:
        """Keep a chain given from its root on, dropping its end first where room is short; True if all of it fits."""
        outcomes = [self.put(block) for block in reversed(blocks)]
        return all(outcomes) and all(block.hash in self._blocks for block in blocks)

    def pin(self, holder: str, hashes: Iterable[bytes]) -> list[bytes]:
        """Add resident blocks to what the holder pins; gives back the hashes that are not resident."""
        wanted = list(hashes)
        held = self._holders.setdefault(holder, set())
        added = {block_hash for block_hash in wanted if block_hash in self._blocks and block_hash not in held}
        held |= added
        for block_hash in added:
            count = self._pins.get(block_hash, 0)
            self._pins[block_hash] = count + 1
            if count == 0:
                self.pinned_bytes += self._blocks[block_hash].size_bytes
        return self.missing(wanted)

    def unpin(self, holder: str) -> None:
        """Release all that the holder pins; a holder without pins is no error."""
        for block_hash in self._holders.pop(holder, ()):
            count = self._pins.pop(block_hash) - 1
            if count:
                self._pins[block_hash] = count
            else:
                self.pinned_bytes -= self._blocks[block_hash].size_bytes

    def pinned_by(self, holder: str) -> frozenset[bytes]:
        """The hashes that the holder pins."""
        return frozenset(self._holders.get(holder, ()))

    def is_pinned(self, block_hash: bytes) -> bool:
        """Whether anyone pins the block."""
        return block_hash in self._pins

    def bytes_of(self, hashes: Iterable[bytes]) -> int:
        """Payload bytes of the resident ones among the hashes, each counted once."""
        return sum(self._blocks[block_hash].size_bytes for block_hash in set(hashes) if block_hash in self._blocks)

    def discard(self, block_hash: bytes) -> bool:
        """Drop one block; False if it is pinned or not resident."""
        if block_hash not in self._blocks or block_hash in self._pins:
            return False
        self._drop(block_hash)
        return True

    def clear(self) -> int:
        """Drop every block that nobody pins; gives back how many tokens that were."""
        before = self.resident_tokens
        for block_hash in [known for known in self._blocks if known not in self._pins]:
            self._drop(block_hash)
        return before - self.resident_tokens

    def _make_room(self, tokens: int) -> bool:
        """Evict until `tokens` more fit; evicts nothing if that cannot succeed."""
        excess = self.resident_tokens + tokens - self.capacity_tokens
        victims: list[bytes] = []
        for block_hash, block in self._blocks.items():
            if excess <= 0:
                break
            if block_hash not in self._pins:
                victims.append(block_hash)
                excess -= block.token_count
        if excess > 0:
            return False
        for block_hash in victims:
            self._drop(block_hash)
        self.counters.evicted_blocks += len(victims)
        return True

    def _drop(self, block_hash: bytes) -> None:
        block = self._blocks.pop(block_hash)
        self.resident_tokens -= block.token_count
        self.resident_bytes -= block.size_bytes
