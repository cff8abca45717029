import asyncio

import pytest

from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_prefix import cut_blocks, longest_resident
from engine_agents.nodes.llama.api import LlamaError
from engine_agents.nodes.llama.slot_io import SlotIo
from engine_agents.nodes.llama.slot_memory import SlotMemory
from engine_agents.nodes.llama.slot_session import SlotSession
from engine_agents.nodes.llama.slots import Slot
from tests.unit.llama.llama_fake import LAYOUT, STREAMS, FakeLlama, open_files, rows_of

PROMPT = list(range(150))


class Bench:
    """A fake server, its slots, and a store."""

    def __init__(self, store: BlockStore | None = None) -> None:
        self.api = FakeLlama()
        self.memory = SlotMemory(2)
        self.store = BlockStore(10_000) if store is None else store
        self.slots = [Slot(0), Slot(1)]

    def session(self, slot: int = 0, salt: bytes = b"") -> SlotSession:
        slot_io = SlotIo(self.api, self.memory)
        return SlotSession(
            self.slots[slot],
            salt,
            api=self.api,
            slot_io=slot_io,
            store=self.store,
            layout=LAYOUT,
            streams=STREAMS,
        )

    async def run(self, prompt: list[int], slot: int = 0, salt: bytes = b"") -> tuple[int, int]:
        """How many tokens were resident, and the token chosen; KV is kept."""
        session = self.session(slot, salt)
        resident = await session.position(prompt)
        token = await session.evaluate(prompt, {})
        await session.settle()
        return resident, token.token_id


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.memory.close()


async def test_keeps_the_kv_of_whole_blocks_and_of_the_tail(bench: Bench) -> None:
    assert (await bench.run(PROMPT))[0] == 0
    resident = longest_resident(bench.store, PROMPT)
    assert [block.token_count for block in resident.blocks] == [64, 64, 22]
    rows = rows_of(PROMPT)[128:]
    assert resident.blocks[2].payload == b"".join(row[:4] for row in rows) + b"".join(row[4:] for row in rows)


async def test_kv_of_one_server_continues_on_another(bench: Bench) -> None:
    _, expected = await bench.run([*PROMPT, 7])
    store = BlockStore(10_000)
    await bench.run(PROMPT, slot=1)
    store.put_chain(longest_resident(bench.store, PROMPT).blocks)
    other = Bench(store)
    assert await other.run([*PROMPT, 7]) == (150, expected)
    assert other.api.calls == ["restore", "evaluate", "save"]
    other.memory.close()


async def test_a_swapped_block_changes_the_answer(bench: Bench) -> None:
    """Shows that the fake has teeth."""
    _, expected = await bench.run(PROMPT)
    cuts = cut_blocks(PROMPT)
    first, second = (bench.store.get(cut.hash) for cut in cuts[:2])
    store = BlockStore(10_000)
    store.put_chain([Block(cuts[0].hash, 64, second.payload), Block(cuts[1].hash, 64, first.payload)])
    other = Bench(store)
    resident, token = await other.run(PROMPT)
    assert resident == 128
    assert token != expected
    other.memory.close()


async def test_does_not_restore_what_the_slot_holds_itself(bench: Bench) -> None:
    await bench.run(PROMPT)
    resident, _ = await bench.run([*PROMPT, 7])
    assert resident == 150
    assert bench.api.calls == ["evaluate", "save", "evaluate", "save"]


async def test_does_not_save_what_the_store_holds(bench: Bench) -> None:
    await bench.run(PROMPT)
    await bench.run(PROMPT)
    assert bench.api.calls.count("save") == 1


async def test_restores_where_the_store_holds_more_than_the_slot(bench: Bench) -> None:
    await bench.run(PROMPT, slot=1)
    await bench.run(PROMPT[:70], slot=0)
    assert (await bench.run(PROMPT, slot=0))[0] == 150
    assert "restore" in bench.api.calls


async def test_another_salt_finds_nothing_and_erases_the_slot(bench: Bench) -> None:
    _, expected = await bench.run(PROMPT, salt=b"one")
    assert await bench.run(PROMPT, salt=b"two") == (0, expected)
    assert "erase" in bench.api.calls
    assert longest_resident(bench.store, PROMPT, b"two").token_count == 150


async def test_a_dropped_store_makes_the_slot_cold(bench: Bench) -> None:
    await bench.run(PROMPT)
    bench.store.clear()
    assert (await bench.run(PROMPT))[0] == 0


async def test_a_failed_restore_is_computed_instead(bench: Bench) -> None:
    _, expected = await bench.run(PROMPT, slot=1)
    bench.api.failing = {"restore"}
    assert await bench.run(PROMPT, slot=0) == (0, expected)
    assert "erase" in bench.api.calls


async def test_after_a_failed_evaluation_the_slot_is_erased(bench: Bench) -> None:
    await bench.run(PROMPT)
    session = bench.session()
    await session.position(PROMPT)
    bench.api.failing = {"evaluate"}
    with pytest.raises(LlamaError):
        await session.evaluate([*PROMPT, 7], {})
    await session.settle()
    assert not bench.slots[0].is_known
    bench.api.failing = set()
    resident, _ = await bench.run([1, 2, 3])
    assert resident == 0
    assert bench.api.calls[-3:] == ["erase", "evaluate", "save"]


async def test_a_cancelled_evaluation_is_waited_for_and_its_kv_kept(bench: Bench) -> None:
    session = bench.session()
    await session.position(PROMPT)
    bench.api.gate.clear()
    waiting = asyncio.create_task(session.evaluate(PROMPT, {}))
    await bench.api.started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    settling = asyncio.create_task(session.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    bench.api.gate.set()
    await settling
    assert longest_resident(bench.store, PROMPT).token_count == 150


async def test_a_save_that_fails_leaves_the_slot_unknown(bench: Bench) -> None:
    bench.api.failing = {"save"}
    await bench.run(PROMPT)
    assert not bench.slots[0].is_known
    assert len(bench.store) == 0


async def test_a_slot_that_holds_other_tokens_than_sent_is_not_kept(bench: Bench) -> None:
    session = bench.session()
    await session.evaluate(PROMPT, {})
    bench.api.slots[0] = PROMPT[:-1], rows_of(PROMPT[:-1])
    with pytest.raises(LlamaError):
        await session.keep()
    assert len(bench.store) == 0


async def test_a_full_store_keeps_the_beginning_of_a_prompt() -> None:
    bench = Bench(BlockStore(130))
    await bench.run(PROMPT)
    assert longest_resident(bench.store, PROMPT).token_count == 128
    bench.memory.close()


async def test_slot_memory_is_given_back() -> None:
    before = open_files()
    bench = Bench()
    await bench.run(PROMPT)
    await bench.run(PROMPT[:70], slot=1)
    with bench.memory.reading(0) as view:
        assert len(view) == 0
    bench.memory.close()
    bench.memory.close()
    assert open_files() == before
