"""Which prefixes are where: chained block hashes, and an index of them per node with resident and in-flight marks."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK_TOKENS = 64
_DIGEST_BYTES = 16
_SLACK_SHIFT = 8
"""By how little (1/256) a node's blocks may exceed its capacity: finding the oldest is dear, so many leave at once."""


def block_hashes(
    tokens: Sequence[int] | npt.NDArray[np.int32],
    block_tokens: int = BLOCK_TOKENS,
    salt: bytes = b"",
    parent: bytes | None = None,
) -> list[bytes]:
    """Hashes of the full blocks of a prompt, 16 bytes each; hash i stands for the whole prefix up to block i.

    A cryptographic hash, because a collision would serve one tenant's KV to another. `salt` separates tenants.
    Tokens that go on from a known block have it as their `parent`.
    """
    data = np.asarray(tokens, dtype="<i4").tobytes()
    step = 4 * block_tokens
    blake2b, hashes, last = hashlib.blake2b, [], _root(salt) if parent is None else parent
    for start in range(0, len(data) - step + 1, step):
        last = blake2b(last + data[start : start + step], digest_size=_DIGEST_BYTES).digest()  # as `_child`
        hashes.append(last)
    return hashes


def tail_hash(tokens: Sequence[int], block_tokens: int = BLOCK_TOKENS, salt: bytes = b"") -> bytes | None:
    """Hash of the partial block at the end of a prompt; None where the prompt ends on a block."""
    full = len(tokens) // block_tokens * block_tokens
    tail = tail_of(block_hashes(tokens[:full], block_tokens, salt), tokens[full:], salt)
    return tail.hash if tail else None


class Tail(NamedTuple):
    """The partial block at the end of a sequence; `parent` is the hash of the block before it, or of none."""

    parent: bytes
    token_count: int
    hash: bytes


def tail_of(hashes: Sequence[bytes], rest: Sequence[int] | npt.NDArray[np.int32], salt: bytes = b"") -> Tail | None:
    """The tail that the rest of a sequence is behind its full blocks; None where nothing is left."""
    if len(rest) == 0:
        return None
    parent = hashes[-1] if hashes else _root(salt)
    return Tail(parent, len(rest), child_hash(parent, rest))


def child_hash(parent: bytes | None, tokens: Sequence[int] | npt.NDArray[np.int32], salt: bytes = b"") -> bytes:
    """Hash of a block of any length that follows the block `parent` (None: it is the first of the prompt)."""
    return _child(_root(salt) if parent is None else parent, np.asarray(tokens, dtype="<i4").tobytes())


@lru_cache(maxsize=256)
def _root(salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()


def _child(parent: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(parent + data, digest_size=_DIGEST_BYTES).digest()


class PrefixMatch(NamedTuple):
    """Blocks of a prompt's start that a node has, and those on their way to it; together one unbroken run."""

    resident_blocks: int
    in_flight_blocks: int


@dataclass(slots=True)
class _NodeBlocks:
    capacity: int
    resident: dict[bytes, None] = field(default_factory=dict)
    """In the order of their last use."""
    in_flight: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    """The transfers that carry each block."""
    tails: OrderedDict[bytes, Tail] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class _Transfer:
    node: str
    hashes: tuple[bytes, ...]


class PrefixIndex:
    """A hint, kept by the gateway, of which block each node holds; the engine's own report is the truth.

    Bytes in flight belong to the node they travel to: without that, the next turn of a session would send them
    again. A block may be awaited by several transfers; it stays in flight until one commits or all roll back.
    """

    def __init__(self, capacity_blocks: int) -> None:
        """Give each node room for `capacity_blocks` resident blocks; the least recently used leave first."""
        if capacity_blocks < 1:
            raise ValueError("capacity_blocks must be at least 1")
        self._capacity_blocks = capacity_blocks
        self._nodes: dict[str, _NodeBlocks] = {}
        self._transfers: dict[str, _Transfer] = {}

    def match(self, node: str, hashes: Sequence[bytes]) -> PrefixMatch:
        """Count the unbroken run of known blocks at the start of `hashes`. Marks nothing as used."""
        blocks = self._nodes.get(node)
        if blocks is None:
            return PrefixMatch(0, 0)
        resident = in_flight = 0
        for block in hashes:
            if block in blocks.resident:
                resident += 1
            elif block in blocks.in_flight:
                in_flight += 1
            else:
                break
        return PrefixMatch(resident, in_flight)

    def holds(self, node: str, hashes: Sequence[bytes]) -> bool:
        """Whether the last of these blocks is resident, and so all before it, which outlive it."""
        blocks = self._nodes.get(node)
        return blocks is not None and (not hashes or hashes[-1] in blocks.resident)

    def transfers_covering(self, node: str, hashes: Iterable[bytes]) -> frozenset[str]:
        """The transfers under way that carry any of these blocks to the node."""
        blocks = self._nodes.get(node)
        if blocks is None or not blocks.in_flight:
            return frozenset()
        return frozenset(owner for block in hashes for owner in blocks.in_flight.get(block, ()))

    def begin_transfer(self, node: str, hashes: Sequence[bytes], transfer_id: str) -> None:
        """Mark those of `hashes` that the node lacks as on their way.

        Raises:
            ValueError: a transfer of that id is under way already.
        """
        if transfer_id in self._transfers:
            raise ValueError(f"transfer {transfer_id} is under way already")
        blocks = self._blocks_of(node)
        resident, in_flight = blocks.resident, blocks.in_flight
        missing = tuple([block for block in hashes if block not in resident])
        mine = (transfer_id,)
        shared = {block: in_flight[block] + mine for block in in_flight.keys() & missing} if in_flight else {}
        in_flight |= dict.fromkeys(missing, mine) | shared
        self._transfers[transfer_id] = _Transfer(node, missing)

    def commit_transfer(self, transfer_id: str) -> None:
        """The blocks have arrived. Unknown ids are ignored: the node may have been dropped meanwhile."""
        transfer = self._transfers.pop(transfer_id, None)
        if transfer is None:
            return
        self.add_resident(transfer.node, transfer.hashes)

    def roll_back_transfer(self, transfer_id: str) -> None:
        """The transfer failed or was cut: its blocks are on their way only if another transfer carries them."""
        transfer = self._transfers.pop(transfer_id, None)
        if transfer is None:
            return
        in_flight = self._blocks_of(transfer.node).in_flight
        for block in in_flight.keys() & transfer.hashes:
            if others := tuple(owner for owner in in_flight[block] if owner != transfer_id):
                in_flight[block] = others
            else:
                del in_flight[block]

    def add_resident(self, node: str, hashes: Sequence[bytes]) -> None:
        """The node holds these blocks now, and used them last; a parent outlives its children in the LRU order."""
        blocks = self._blocks_of(node)
        resident, in_flight = blocks.resident, blocks.in_flight
        last_first = hashes[::-1]
        if not resident.keys().isdisjoint(last_first):
            for block in last_first:
                resident.pop(block, None)  # it comes back at its new place
        resident |= dict.fromkeys(last_first)
        if in_flight:
            for block in in_flight.keys() & last_first:
                del in_flight[block]
        excess = len(resident) - blocks.capacity
        if excess > blocks.capacity >> _SLACK_SHIFT:
            for block in list(islice(resident, excess)):
                del resident[block]
                blocks.tails.pop(block, None)

    def add_tail(self, node: str, tail: Tail | None) -> None:
        """The node holds this partial block as well; of several behind one block the last one is remembered."""
        if tail is None:
            return
        blocks = self._blocks_of(node)
        blocks.tails[tail.parent] = tail
        blocks.tails.move_to_end(tail.parent)
        while len(blocks.tails) > blocks.capacity:
            blocks.tails.popitem(last=False)

    def tail_tokens(
        self, node: str, hashes: Sequence[bytes], following: Sequence[int] | npt.NDArray[np.int32], salt: bytes = b""
    ) -> int:
        """How many of the tokens that follow the resident blocks `hashes` the node holds as a partial block."""
        blocks = self._nodes.get(node)
        tail = blocks.tails.get(hashes[-1] if hashes else _root(salt)) if blocks else None
        if tail is None or tail.token_count > len(following):
            return 0
        return tail.token_count if child_hash(tail.parent, following[: tail.token_count]) == tail.hash else 0

    def forget(self, node: str, hashes: Iterable[bytes]) -> None:
        """The node said that it does not hold these blocks."""
        blocks = self._blocks_of(node)
        for block in hashes:
            blocks.resident.pop(block, None)
            blocks.tails.pop(block, None)

    def set_capacity(self, node: str, capacity_blocks: int) -> None:
        """Give one node its own capacity; applied at its next block."""
        self._blocks_of(node).capacity = max(1, capacity_blocks)

    def drop_node(self, node: str) -> None:
        """The node died or was restarted: nothing is known of it."""
        self._nodes.pop(node, None)
        self._transfers = {key: transfer for key, transfer in self._transfers.items() if transfer.node != node}

    def resident_blocks(self, node: str) -> int:
        """How many blocks the node is thought to hold."""
        return len(self._nodes[node].resident) if node in self._nodes else 0

    def in_flight_blocks(self, node: str) -> int:
        """How many blocks are on their way to the node."""
        return len(self._nodes[node].in_flight) if node in self._nodes else 0

    @property
    def transfers(self) -> int:
        """How many transfers are under way."""
        return len(self._transfers)

    def _blocks_of(self, node: str) -> _NodeBlocks:
        blocks = self._nodes.get(node)
        if blocks is None:
            blocks = self._nodes[node] = _NodeBlocks(self._capacity_blocks)
        return blocks
