"""The block store against a simple model of what it must guarantee."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine_agents.nodes.kv_blocks import Block, BlockStore

CAPACITY_TOKENS = 640
KEYS = [bytes([value]) * 16 for value in range(24)]
HOLDERS = ["lease-a", "lease-b", "request-c"]


def block(index: int, tokens: int = 64) -> Block:
    return Block(bytes([index]) * 16, tokens, bytes([index]) * tokens)


def sized_block(index: int) -> Block:
    """Full blocks and tails, always the same for the same index."""
    return block(index, 64 if index % 3 else 1 + index)


def store_of(capacity_tokens: int, *blocks: Block) -> BlockStore:
    store = BlockStore(capacity_tokens)
    for each in blocks:
        assert store.put(each)
    return store


class StoreMachine(RuleBasedStateMachine):
    """Any order of operations keeps the bounds, the gauges, and every pinned block."""

    def __init__(self):
        super().__init__()
        self.store = BlockStore(CAPACITY_TOKENS)
        self.pins: dict[str, set[bytes]] = {}

    @rule(index=st.integers(0, 23))
    def put(self, index):
        assert self.store.put(sized_block(index)) == (KEYS[index] in self.store)

    @rule(indexes=st.lists(st.integers(0, 23), unique=True, max_size=12))
    def put_chain(self, indexes):
        fits = self.store.put_chain([sized_block(index) for index in indexes])
        assert fits == all(KEYS[index] in self.store for index in indexes)

    @rule(holder=st.sampled_from(HOLDERS), indexes=st.lists(st.integers(0, 23), max_size=6))
    def pin(self, holder, indexes):
        wanted = [KEYS[index] for index in indexes]
        missing = self.store.pin(holder, wanted)
        assert missing == [key for key in wanted if key not in self.store]
        self.pins.setdefault(holder, set()).update(set(wanted) - set(missing))

    @rule(holder=st.sampled_from(HOLDERS))
    def unpin(self, holder):
        self.store.unpin(holder)
        self.pins.pop(holder, None)

    @rule(index=st.integers(0, 23))
    def discard(self, index):
        pinned = any(KEYS[index] in held for held in self.pins.values())
        was_resident = KEYS[index] in self.store
        assert self.store.discard(KEYS[index]) == (was_resident and not pinned)

    @rule()
    def clear(self):
        self.store.clear()
        assert {key for key in KEYS if key in self.store} == set().union(*self.pins.values(), set())

    @rule(indexes=st.lists(st.integers(0, 23), unique=True, max_size=8))
    def match(self, indexes):
        hashes = [KEYS[index] for index in indexes]
        found = [each.hash for each in self.store.match(hashes)]
        assert found == hashes[: len(found)]
        assert len(found) == len(hashes) or hashes[len(found)] not in self.store

    @invariant()
    def holds_its_bounds(self):
        resident = [self.store.get(key) for key in KEYS if key in self.store]
        pinned = set().union(*self.pins.values(), set())
        assert all(key in self.store for key in pinned)
        assert self.store.resident_tokens == sum(each.token_count for each in resident) <= CAPACITY_TOKENS
        assert self.store.resident_bytes == sum(each.size_bytes for each in resident)
        assert self.store.pinned_bytes == self.store.bytes_of(pinned)
        assert len(self.store) == len(resident)
        assert all(each == sized_block(each.hash[0]) for each in resident)


StoreMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestStoreMachine = StoreMachine.TestCase


def test_evicts_the_least_recently_used_block_first():
    store = store_of(192, block(1), block(2), block(3))
    store.match([block(1).hash])
    store.put(block(4))
    assert block(2).hash not in store
    assert block(1).hash in store


def test_eats_a_chain_from_its_end():
    store = BlockStore(256)
    store.put_chain([block(1), block(2), block(3), block(4)])
    store.put(block(9))
    assert [each.hash for each in store.match([block(index).hash for index in (1, 2, 3, 4)])] == [
        block(index).hash for index in (1, 2, 3)
    ]


def test_keeps_the_start_of_a_chain_that_is_longer_than_the_store():
    store = BlockStore(128)
    assert not store.put_chain([block(1), block(2), block(3)])
    assert len(store.match([block(1).hash, block(2).hash, block(3).hash])) == 2


def test_refuses_a_block_rather_than_evict_a_pinned_one():
    store = store_of(128, block(1), block(2))
    store.pin("lease", [block(1).hash, block(2).hash])
    assert not store.put(block(3))
    assert store.counters.refused_blocks == 1
    store.unpin("lease")
    assert store.put(block(3))


def test_evicts_nothing_for_a_block_that_cannot_fit():
    store = store_of(128, block(1), block(2))
    store.pin("lease", [block(1).hash])
    assert not store.put(block(3, 100))
    assert len(store) == 2


def test_keeps_a_block_until_its_last_holder_lets_go():
    store = store_of(64, block(1))
    store.pin("a", [block(1).hash])
    store.pin("b", [block(1).hash])
    store.unpin("a")
    assert not store.put(block(2))
    store.unpin("b")
    assert store.put(block(2))


def test_holds_tails_beside_full_blocks():
    store = store_of(100, block(1), block(2, 36))
    assert store.resident_tokens == 100
