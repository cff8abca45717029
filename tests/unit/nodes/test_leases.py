"""Leases keep blocks, for one reader, for a time."""

import pytest

from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_errors import BlockGoneError, LeaseBusyError, LeaseUnknownError
from engine_agents.nodes.leases import LeaseTable

HASHES = [b"a" * 16, b"b" * 16]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    store = BlockStore(128)
    store.put_chain([Block(each, 64, b"x" * 10) for each in HASHES])
    return store


@pytest.fixture
def leases(store, clock):
    return LeaseTable(store, ttl_s=30.0, clock=clock)


def test_a_leased_block_is_not_evicted(store, leases):
    leases.grant(HASHES, 128)
    assert not store.put(Block(b"c" * 16, 64, b""))


def test_an_unread_lease_expires_and_frees_its_blocks(store, leases, clock):
    leases.grant(HASHES, 128)
    clock.now_s += 29.9
    assert leases.expire() == 0
    clock.now_s += 0.1
    assert leases.expire() == 1
    assert leases.expired_total == 1
    assert store.pinned_bytes == 0
    assert store.put(Block(b"c" * 16, 64, b""))


def test_a_lease_that_is_read_does_not_expire_and_then_has_a_full_term(leases, clock):
    lease = leases.grant(HASHES, 128)
    leases.attach(lease.id)
    clock.now_s += 1000
    assert leases.expire() == 0
    assert leases.remaining_s(lease) is None
    leases.detach(lease)
    assert leases.remaining_s(lease) == 30.0
    clock.now_s += 30
    assert leases.expire() == 1


def test_only_one_reader_at_a_time(leases):
    lease = leases.grant(HASHES, 128)
    leases.attach(lease.id)
    with pytest.raises(LeaseBusyError):
        leases.attach(lease.id)
    leases.detach(lease)
    leases.attach(lease.id)


def test_a_reader_that_names_itself_reads_over_several_connections(leases, clock):
    lease = leases.grant(HASHES, 128)
    leases.attach(lease.id, "one")
    leases.attach(lease.id, "one")
    for other in ("two", ""):
        with pytest.raises(LeaseBusyError):
            leases.attach(lease.id, other)
    leases.detach(lease)
    clock.now_s += 60
    assert leases.expire() == 0
    leases.detach(lease)
    assert leases.remaining_s(lease) == 30.0
    leases.attach(lease.id, "two")


def test_an_expired_lease_cannot_be_read_even_before_the_sweep(leases, clock):
    lease = leases.grant(HASHES, 128)
    clock.now_s += 31
    with pytest.raises(LeaseUnknownError):
        leases.attach(lease.id)


def test_a_released_lease_is_gone(store, leases):
    lease = leases.grant(HASHES, 128)
    assert leases.release(lease.id)
    assert not leases.release(lease.id)
    with pytest.raises(LeaseUnknownError):
        leases.attach(lease.id)
    assert store.pinned_bytes == 0


def test_nothing_is_promised_that_is_not_there(store, leases):
    with pytest.raises(BlockGoneError):
        leases.grant([*HASHES, b"c" * 16], 130)
    assert len(leases) == 0
    assert store.pinned_bytes == 0


def test_two_leases_over_the_same_blocks_count_their_bytes_once(leases):
    leases.grant(HASHES, 128)
    leases.grant(HASHES, 128)
    assert leases.leased_bytes() == 20


def test_stranded_is_what_nobody_reads(leases, clock):
    first = leases.grant(HASHES, 128)
    clock.now_s += 5
    second = leases.grant(HASHES[:1], 64)
    clock.now_s += 2
    assert leases.stranded().oldest_age_s == 7.0
    leases.attach(first.id)
    stranded = leases.stranded()
    assert (stranded.leases, stranded.size_bytes, stranded.oldest_age_s) == (1, 10, 2.0)
    leases.attach(second.id)
    assert leases.stranded().size_bytes == 0


def test_an_asker_may_name_its_lease_but_never_take_over_another(leases):
    named = leases.grant(HASHES, 128, "mine")
    other = leases.grant(HASHES, 128, "mine")
    assert named.id == "mine"
    assert other.id != "mine"
    assert leases.release("mine")
