"""The emulated engine has teeth: KV that is not what it should be changes the answer."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine_agents.nodes.emulated.engine import EmulatedChip, EmulatedEngine
from engine_agents.nodes.emulated.timing import decode_step_s, prefill_s
from engine_agents.nodes.emulated.vocabulary import END, Vocabulary
from engine_agents.nodes.engine import FinishReason, Generation, PromptRefusedError, Sampling
from engine_agents.nodes.kv_blocks import Block
from engine_agents.nodes.kv_prefix import cut_blocks
from tests.fleet import prompt_of

INSTANT = EmulatedChip(eos_period=0)
VOCABULARY = Vocabulary()


async def generated(engine, prompt, count=20, **sampling) -> list[int]:
    generation = Generation(tuple(prompt), count, Sampling(**sampling))
    return [token async for step in engine.generate(generation) for token in step.token_ids]


async def first_step(engine, prompt):
    async with aclosing(engine.generate(Generation(tuple(prompt), 5, Sampling()))) as steps:
        return await anext(steps)


async def filled(prompt, engine=None) -> EmulatedEngine:
    engine = engine or EmulatedEngine("m", INSTANT)
    await first_step(engine, prompt)
    return engine


def moved(source: EmulatedEngine, prompt, change=lambda blocks: blocks) -> EmulatedEngine:
    """Another engine whose store has the prompt's blocks, after a change."""
    blocks = [source.store.get(cut.hash) for cut in cut_blocks(prompt)]
    target = EmulatedEngine("m", INSTANT)
    target.store.put_chain(change(blocks))
    return target


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
async def test_moved_kv_continues_as_computed_kv_does(length):
    prompt = prompt_of(length)
    alone = await generated(EmulatedEngine("m", INSTANT), prompt)
    assert await generated(moved(await filled(prompt), prompt), prompt) == alone


@pytest.mark.parametrize("cut", [1, 7, 19])
async def test_a_handoff_by_token_ids_continues_as_one_engine_does(cut):
    prompt = prompt_of(100)
    alone = await generated(EmulatedEngine("m", INSTANT), prompt)
    target = moved(await filled(prompt), prompt)
    step = await first_step(target, prompt + alone[:cut])
    assert (step.resident_tokens, step.computed_tokens) == (100, cut)
    assert await generated(target, prompt + alone[:cut], 20 - cut) == alone[cut:]


def _flipped(block: Block) -> Block:
    data = bytearray(block.payload)
    data[len(data) // 2] ^= 1
    return replace(block, payload=bytes(data))


CHANGES = {
    "corrupted": lambda blocks: [blocks[0], _flipped(blocks[1]), *blocks[2:]],
    "swapped": lambda blocks: [
        replace(blocks[0], payload=blocks[1].payload),
        replace(blocks[1], payload=blocks[0].payload),
        *blocks[2:],
    ],
    "doubled": lambda blocks: [blocks[0], replace(blocks[1], payload=blocks[0].payload), *blocks[2:]],
    "stale": lambda blocks: [*blocks[:2], replace(blocks[2], payload=bytes(len(blocks[2].payload))), *blocks[3:]],
    "corrupted tail": lambda blocks: [*blocks[:-1], _flipped(blocks[-1])],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_wrong_kv_changes_the_answer(change):
    prompt = prompt_of(230)
    alone = await generated(EmulatedEngine("m", INSTANT), prompt)
    assert await generated(moved(await filled(prompt), prompt, change), prompt) != alone


JOINS = {
    "in the wrong order": lambda layout, head, rest: layout.joined([rest, head]),
    "with a row twice": lambda layout, head, rest: (
        head[1] + head[1][-layout.token_bytes :] + rest[1][layout.token_bytes :]
    ),
    "with another block's beginning": lambda layout, head, rest: bytes(len(head[1])) + rest[1],
}


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
async def test_a_block_joined_wrongly_changes_the_answer(join):
    prompt = prompt_of(230)
    source = await filled(prompt)
    alone = await generated(EmulatedEngine("m", INSTANT), prompt)

    def rejoined(blocks, join):
        layout, block = source.payload_layout, blocks[1]
        head, rest = ((end - start, layout.part(block.payload, 64, start, end)) for start, end in ((0, 30), (30, 64)))
        return [blocks[0], Block(block.hash, 64, join(layout, head, rest)), *blocks[2:]]

    right = moved(source, prompt, lambda blocks: rejoined(blocks, lambda layout, *parts: layout.joined(parts)))
    assert await generated(right, prompt) == alone
    assert await generated(moved(source, prompt, lambda blocks: rejoined(blocks, join)), prompt) != alone


async def test_a_lost_block_is_computed_again_with_all_behind_it():
    prompt = prompt_of(230)
    target = moved(await filled(prompt), prompt, lambda blocks: [blocks[0], *blocks[2:]])
    step = await first_step(target, prompt)
    assert (step.resident_tokens, step.computed_tokens) == (64, 166)
    alone = await generated(EmulatedEngine("m", INSTANT), prompt)
    assert await generated(target, prompt) == alone


async def test_another_model_says_something_else():
    prompt = prompt_of(80)
    assert await generated(EmulatedEngine("a", INSTANT), prompt) != await generated(
        EmulatedEngine("b", INSTANT), prompt
    )


async def test_several_tokens_per_step_are_the_same_tokens():
    prompt = prompt_of(80)
    several = EmulatedEngine("m", structs.replace(INSTANT, tokens_per_step=4))
    sizes = [len(step.token_ids) async for step in several.generate(Generation(tuple(prompt), 10, Sampling()))]
    assert sizes == [1, 4, 4, 1]
    assert await generated(several, prompt, 10) == await generated(EmulatedEngine("m", INSTANT), prompt, 10)


async def test_prompt_kv_is_in_the_store_with_the_first_step_and_the_answers_kv_after_the_last():
    engine, prompt = EmulatedEngine("m", INSTANT), prompt_of(100)
    async with aclosing(engine.generate(Generation(tuple(prompt), 50, Sampling()))) as steps:
        made = list((await anext(steps)).token_ids)
        assert not engine.store.missing(cut.hash for cut in cut_blocks(prompt))
        for _ in range(40):
            made += (await anext(steps)).token_ids
        assert engine.running == 1
    assert engine.running == 0
    assert not engine.store.missing(cut.hash for cut in cut_blocks(prompt + made[:-1]))


async def test_text_ends_by_itself_sometimes_unless_that_is_to_be_ignored():
    engine = EmulatedEngine("m", structs.replace(INSTANT, eos_period=10))
    steps = [step async for step in engine.generate(Generation(tuple(prompt_of(30)), 500, Sampling()))]
    assert steps[-1].finish is FinishReason.STOP
    assert steps[-1].token_ids == (END,)
    assert steps[-1].token_bytes == (b"",)
    ignoring = await generated(engine, prompt_of(30), 500, ignore_eos=True)
    assert len(ignoring) == 500
    assert END not in ignoring


async def test_an_unknown_id_is_refused():
    with pytest.raises(PromptRefusedError):
        await generated(EmulatedEngine("m", INSTANT), [1, 2, 10**6])


async def test_a_generation_that_is_cancelled_while_it_prefills_frees_its_slot():
    engine = EmulatedEngine("m", structs.replace(INSTANT, prefill_tokens_per_s=1.0))
    first = asyncio.create_task(generated(engine, prompt_of(600)))
    second = asyncio.create_task(generated(engine, prompt_of(700)))
    await asyncio.sleep(0.01)
    assert engine.running == 2
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert engine.running == 0
    assert len(engine.store) == 0


async def test_the_second_of_two_equal_prompts_finds_the_first_ones_kv():
    engine = EmulatedEngine("m", structs.replace(INSTANT, prefill_tokens_per_s=20_000.0))
    steps = await asyncio.gather(*(first_step(engine, prompt_of(700)) for _ in range(2)))
    assert [step.computed_tokens for step in steps] == [700, 1]


async def test_kv_of_any_size_per_token():
    for size in (1, 63, 64, 65, 1000):
        engine = await filled(prompt_of(70), EmulatedEngine("m", structs.replace(INSTANT, kv_bytes_per_token=size)))
        assert engine.store.resident_bytes == engine.store.resident_tokens * size


@given(st.text(max_size=80))
def test_every_text_survives_the_vocabulary(text):
    assert VOCABULARY.decode(VOCABULARY.encode(text)).decode() == text


async def test_generated_text_comes_back_as_the_same_tokens():
    tokens = await generated(EmulatedEngine("m", INSTANT), prompt_of(40), 400)
    text = VOCABULARY.decode(tokens)
    whole = len(text.decode(errors="ignore").encode())
    assert VOCABULARY.encode(text[:whole].decode()) == tokens[: len(VOCABULARY.encode(text[:whole].decode()))]


async def test_generated_characters_are_often_split_over_tokens():
    tokens = await generated(EmulatedEngine("m", INSTANT), prompt_of(40), 400)
    broken = [token for token in tokens if not _is_text(VOCABULARY.decode([token]))]
    assert len(broken) > 20
    ascii_letters = sum(byte < 128 for byte in VOCABULARY.decode(tokens))
    assert ascii_letters > 0.85 * len(VOCABULARY.decode(tokens))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_chat_is_rendered_as_chatml():
    engine = EmulatedEngine("m", INSTANT)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    text = asyncio.run(engine.render_chat(messages, add_generation_prompt=False))
    assert text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    with pytest.raises(ValueError, match="role"):
        asyncio.run(engine.render_chat([{"content": "x"}], add_generation_prompt=True))


def test_timing_is_what_the_formulas_say():
    assert prefill_s(1000, 500.0) == 2.0
    assert prefill_s(1000, 0.0) == 0.0
    assert prefill_s(10, 500.0, 0.1) == 0.1
    assert prefill_s(100, 500.0, 0.1) == 0.2
    assert decode_step_s(4, 0.01, 0.002) == pytest.approx(0.018)


@pytest.mark.parametrize("minimum", [0, 40])
async def test_a_joined_tail_changes_how_prefill_is_cut_and_nothing_of_the_answer(minimum):
    plain = EmulatedEngine("m")
    joining = EmulatedEngine("m", EmulatedChip(prefill_chunk_tokens=64, tail_chunk_min_tokens=minimum))
    prompt = tuple(prompt_of(150))
    marks = []
    cut = Generation(prompt, 5, Sampling(), b"", lambda: marks.append(1))
    whole = Generation(prompt, 5, Sampling(), b"", lambda: None)
    ids = [
        [token async for step in engine.generate(asked) for token in step.token_ids]
        for engine, asked in ((joining, cut), (plain, whole))
    ]
    assert ids[0] == ids[1]
    assert len(marks) == (3 if minimum == 0 else 2)
