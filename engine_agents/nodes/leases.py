"""Leases: KV that a node keeps for one consumer, until it has been read, released, or forgotten for too long."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_errors import BlockGoneError, LeaseBusyError, LeaseUnknownError

DEFAULT_LEASE_TTL_S = 30.0


@dataclass(slots=True)
class Lease:
    """One consumer's right to read a prompt's blocks; while a reader is attached it does not expire.

    A reader may read over several connections at once, if it names itself.
    """

    id: str
    hashes: tuple[bytes, ...]
    token_count: int
    granted_at_s: float
    expires_at_s: float
    reader: str = ""
    connections: int = 0

    @property
    def attached(self) -> bool:
        """Whether somebody reads it."""
        return self.connections > 0


@dataclass(frozen=True, slots=True)
class StrandedKv:
    """KV that is leased while nobody reads it, and how long the oldest such lease has stood."""

    leases: int
    size_bytes: int
    oldest_age_s: float


class LeaseTable:
    """All leases of one node; each pins its blocks in the store under its id."""

    def __init__(
        self, store: BlockStore, ttl_s: float = DEFAULT_LEASE_TTL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self.expired_total = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def grant(self, hashes: Sequence[bytes], token_count: int, lease_id: str = "") -> Lease:
        """Pin the blocks for one reader; the id may be the asker's own, who can then release a lease it never saw.

        Raises:
            BlockGoneError: a block is not resident, so there is nothing to promise.
        """
        now_s = self._clock()
        if not lease_id or lease_id in self._leases:
            lease_id = f"lease-{secrets.token_hex(12)}"
        lease = Lease(lease_id, tuple(hashes), token_count, now_s, now_s + self._ttl_s)
        missing = self._store.pin(lease.id, hashes)
        if missing:
            self._store.unpin(lease.id)
            raise BlockGoneError(f"{len(missing)} of {len(hashes)} blocks to lease are not resident")
        self._leases[lease.id] = lease
        return lease

    def attach(self, lease_id: str, reader: str = "") -> Lease:
        """Let one connection of the lease's only reader in; a reader without a name has one connection.

        Raises:
            LeaseUnknownError: it has expired, was released, or never existed.
            LeaseBusyError: it has another reader.
        """
        self.expire()
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseUnknownError(f"no lease {lease_id}")
        if lease.attached and not (reader and reader == lease.reader):
            raise LeaseBusyError(f"{lease_id} is being read")
        lease.reader = reader
        lease.connections += 1
        return lease

    def detach(self, lease: Lease) -> None:
        """A connection has gone without releasing: the last one leaves a full term for another attempt."""
        lease.connections -= 1
        if not lease.attached:
            lease.expires_at_s = self._clock() + self._ttl_s

    def release(self, lease_id: str) -> bool:
        """End a lease, also one being read; False if there is none."""
        if self._leases.pop(lease_id, None) is None:
            return False
        self._store.unpin(lease_id)
        return True

    def is_live(self, lease_id: str) -> bool:
        """Whether the lease still holds."""
        return lease_id in self._leases

    def expire(self) -> int:
        """End the leases whose time is over; gives back how many."""
        now_s = self._clock()
        over = [lease.id for lease in self._leases.values() if not lease.attached and lease.expires_at_s <= now_s]
        for lease_id in over:
            self.release(lease_id)
        self.expired_total += len(over)
        return len(over)

    def remaining_s(self, lease: Lease) -> float | None:
        """Seconds until it expires; None while a reader keeps it alive."""
        return None if lease.attached else max(0.0, lease.expires_at_s - self._clock())

    def age_s(self, lease: Lease) -> float:
        """Seconds since it was granted."""
        return self._clock() - lease.granted_at_s

    def leased_bytes(self) -> int:
        """Bytes that leases keep in the store, shared blocks counted once."""
        return self._store.bytes_of(block_hash for lease in self._leases.values() for block_hash in lease.hashes)

    def stranded(self) -> StrandedKv:
        """What is leased while nobody reads it."""
        idle = [lease for lease in self._leases.values() if not lease.attached]
        return StrandedKv(
            leases=len(idle),
            size_bytes=self._store.bytes_of(block_hash for lease in idle for block_hash in lease.hashes),
            oldest_age_s=max((self.age_s(lease) for lease in idle), default=0.0),
        )
