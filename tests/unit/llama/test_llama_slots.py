import pytest

from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_prefix import cut_blocks
from engine_agents.nodes.llama.slots import Slot, choose_slot, reusable_tokens, shared_prefix

STORY = list(range(200))


def store_with(tokens: list[int], salt: bytes = b"") -> BlockStore:
    store = BlockStore(10_000)
    store.put_chain([Block(cut.hash, cut.token_count, b"") for cut in cut_blocks(tokens, salt)])
    return store


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 4, 3], 1), ([2], [1], 0)],
)
def test_shared_prefix_ends_at_the_first_difference(left: list[int], right: list[int], shared: int) -> None:
    assert shared_prefix(left, right) == shared


def test_a_slot_gives_what_it_shares_with_the_prompt() -> None:
    assert reusable_tokens(Slot(0, STORY), [*STORY[:90], 9], b"", store_with(STORY)) == 90


def test_a_slot_of_another_salt_gives_nothing() -> None:
    assert reusable_tokens(Slot(0, STORY, b"a"), STORY, b"b", store_with(STORY, b"a")) == 0


def test_a_slot_whose_blocks_were_dropped_gives_nothing() -> None:
    store = store_with(STORY)
    store.clear()
    assert reusable_tokens(Slot(0, STORY), STORY, b"", store) == 0


def test_a_slot_whose_chain_lost_its_end_still_counts() -> None:
    store = store_with(STORY)
    store.discard(cut_blocks(STORY)[-1].hash)
    assert reusable_tokens(Slot(0, STORY), STORY, b"", store) == 200


def test_a_slot_of_unknown_contents_gives_nothing() -> None:
    assert reusable_tokens(Slot(0, STORY, is_known=False), STORY, b"", store_with(STORY)) == 0


def test_the_slot_that_shares_most_is_chosen() -> None:
    free = [Slot(0, STORY[:70]), Slot(1, STORY[:150]), Slot(2, [1, *STORY])]
    store = store_with(STORY)
    for slot in free:
        store.put_chain([Block(cut.hash, cut.token_count, b"") for cut in cut_blocks(slot.tokens)])
    assert choose_slot(free, STORY, b"", store).index == 1


def test_of_equal_slots_the_first_is_chosen() -> None:
    assert choose_slot([Slot(3), Slot(0)], STORY, b"", BlockStore(0)).index == 3
