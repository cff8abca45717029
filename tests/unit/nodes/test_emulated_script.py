"""Scripted answers of the emulated engine: said to the letter by true KV, and only by true KV."""

from dataclasses import replace

import pytest

from engine_agents.nodes.emulated.engine import EmulatedChip, EmulatedEngine
from engine_agents.nodes.emulated.script import remaining_script
from engine_agents.nodes.emulated.vocabulary import END, Vocabulary
from engine_agents.nodes.engine import Generation, Sampling
from engine_agents.nodes.kv_prefix import cut_blocks

VOCABULARY = Vocabulary()
TEXT = '<tool_call>\n{"name": "f", "arguments": {"a": "né 😀"}}\n</tool_call>'
SCRIPT = f"<script>{TEXT}</script>"


def chat(*contents: str) -> list[int]:
    turns = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    return VOCABULARY.encode(turns + "<|im_start|>assistant\n")


async def generated(engine, prompt, count=400, **sampling) -> list[int]:
    generation = Generation(tuple(prompt), count, Sampling(**sampling))
    return [token async for step in engine.generate(generation) for token in step.token_ids]


def engine() -> EmulatedEngine:
    return EmulatedEngine("m", EmulatedChip(eos_period=0))


@pytest.mark.parametrize("prompt", [chat("hello", f"say {SCRIPT} please"), VOCABULARY.encode(f"say {SCRIPT}")])
async def test_a_script_is_said_to_the_letter_then_the_text_ends(prompt):
    *said, end = await generated(engine(), prompt)
    assert (VOCABULARY.decode(said).decode(), end) == (TEXT, END)


async def test_a_script_is_continued_from_wherever_another_engine_stopped():
    prompt = chat(SCRIPT)
    whole = await generated(engine(), prompt)
    for cut in (1, 17, len(whole) - 1):
        assert await generated(engine(), prompt + whole[:cut]) == whole[cut:]


async def test_wrong_kv_forgets_the_script():
    prompt = chat("a long beginning " * 20, SCRIPT)
    source, target = engine(), engine()
    await generated(source, prompt, 1)
    blocks = [source.store.get(cut.hash) for cut in cut_blocks(prompt)]
    blocks[1] = replace(blocks[1], payload=bytes(len(blocks[1].payload)))
    target.store.put_chain(blocks)
    assert await generated(target, prompt, 50) != (await generated(source, prompt, 50))


def test_a_script_of_an_earlier_message_is_over():
    assert remaining_script(chat(SCRIPT, "and now?"), VOCABULARY) is None
    assert remaining_script(chat("no script < here"), VOCABULARY) is None
    assert remaining_script([*chat(SCRIPT)[:-1], 5], VOCABULARY) is None
    assert remaining_script(VOCABULARY.encode(f"{SCRIPT} other words"), VOCABULARY) is None


async def test_ignoring_the_end_goes_on_behind_the_script():
    prompt = chat("<script>ok</script>")
    made = await generated(engine(), prompt, 30, ignore_eos=True)
    assert len(made) == 30
    assert END not in made
    assert VOCABULARY.decode(made).startswith(b"ok")
