"""Cutting token sequences into blocks and finding what is resident of them."""

from hypothesis import given
from hypothesis import strategies as st

from control.domain.prefix import block_hashes, tail_hash
from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_prefix import cut_blocks, longest_resident

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60)
BLOCK_TOKENS = 8


def keep(store: BlockStore, tokens: list[int], salt: bytes = b"") -> None:
    store.put_chain([Block(cut.hash, cut.token_count, b"kv") for cut in cut_blocks(tokens, salt, BLOCK_TOKENS)])


@given(TOKENS, st.binary(max_size=8))
def test_cuts_are_the_hashes_that_the_gateway_knows(tokens, salt):
    cuts = cut_blocks(tokens, salt, BLOCK_TOKENS)
    tail = tail_hash(tokens, BLOCK_TOKENS, salt)
    assert [cut.hash for cut in cuts] == block_hashes(tokens, BLOCK_TOKENS, salt) + ([tail] if tail else [])
    assert [tokens[cut.start : cut.end] for cut in cuts] == [
        tokens[start : start + BLOCK_TOKENS] for start in range(0, len(tokens), BLOCK_TOKENS)
    ]


@given(TOKENS, st.integers(0, 60), TOKENS)
def test_finds_all_of_an_earlier_sequence_that_this_one_continues(tokens, length, others):
    earlier = tokens[:length]
    store = BlockStore(10_000)
    if earlier:
        keep(store, earlier)
    found = longest_resident(store, tokens, b"", BLOCK_TOKENS)
    assert found.token_count == len(earlier) == sum(block.token_count for block in found.blocks)
    other = longest_resident(store, [-1, *others], b"", BLOCK_TOKENS)
    assert other.token_count == 0


def test_a_salt_separates_tenants():
    store = BlockStore(1000)
    keep(store, [1] * 20, b"tenant-a")
    assert longest_resident(store, [1] * 20, b"tenant-a", BLOCK_TOKENS).token_count == 20
    assert longest_resident(store, [1] * 20, b"tenant-b", BLOCK_TOKENS).token_count == 0


def test_takes_the_longest_of_several_tails():
    store = BlockStore(1000)
    for length in (9, 13, 11):
        keep(store, list(range(length)))
    assert longest_resident(store, list(range(40)), b"", BLOCK_TOKENS).token_count == 13


def test_stops_at_a_hole():
    store = BlockStore(1000)
    keep(store, list(range(24)))
    store.discard(block_hashes(list(range(24)), BLOCK_TOKENS)[1])
    assert longest_resident(store, list(range(24)), b"", BLOCK_TOKENS).token_count == 8
