"""Two engines over real llama.cpp servers: what one computed, the other continues bit by bit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import aiohttp
import pytest
import pytest_asyncio

from engine_agents.nodes.engine import FinishReason, Generation, PromptRefusedError, Sampling, Step
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_prefix import longest_resident
from engine_agents.nodes.llama.api import LlamaError
from engine_agents.nodes.llama.engine import LlamaEngine
from engine_agents.nodes.llama.sampling import GREEDY_OPTIONS
from engine_agents.nodes.llama.server import ServerSettings, default_model_path

pytestmark = [pytest.mark.llama, pytest.mark.asyncio(loop_scope="module")]

MAX_MODEL_LEN = 256
STORY = "The old harbour town had seven bridges, and every bridge had a keeper who knew one story. "


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engines() -> AsyncIterator[tuple[LlamaEngine, LlamaEngine]]:
    """The second one has other slots than the first, which must not matter."""
    made = [
        LlamaEngine(
            ServerSettings(default_model_path(), slots=slots, max_model_len=MAX_MODEL_LEN),
            model="smollm2-135m",
            store=BlockStore(20_000),
        )
        for slots in (3, 2)
    ]
    await asyncio.gather(*(engine.start() for engine in made))
    yield made[0], made[1]
    for engine in made:
        await engine.close()
        await engine.close()


@pytest.fixture
def near(engines: tuple[LlamaEngine, LlamaEngine]) -> LlamaEngine:
    return engines[0]


@pytest.fixture
def far(engines: tuple[LlamaEngine, LlamaEngine]) -> LlamaEngine:
    return engines[1]


async def prompt_of(engine: LlamaEngine, tokens: int, opening: str) -> tuple[int, ...]:
    return tuple((await engine.tokenize(opening + STORY * 30, add_special=False))[:tokens])


async def steps_of(
    engine: LlamaEngine, prompt: Sequence[int], max_tokens: int, sampling: Sampling | None = None, salt: bytes = b""
) -> list[Step]:
    generation = Generation(tuple(prompt), max_tokens, sampling or Sampling(), salt)
    async with aclosing(engine.generate(generation)) as steps:
        return [step async for step in steps]


def ids_of(steps: Sequence[Step]) -> list[int]:
    return [token_id for step in steps for token_id in step.token_ids]


def ship(source: LlamaEngine, target: LlamaEngine, prompt: Sequence[int]) -> int:
    """Carry the KV of a prompt from store to store; gives back how many tokens that were."""
    resident = longest_resident(source.store, prompt)
    assert target.store.put_chain(resident.blocks)
    return resident.token_count


async def test_kv_is_exact_here_and_both_engines_say_it_is_the_same_kind(near: LlamaEngine, far: LlamaEngine) -> None:
    assert near.exact is True
    assert far.exact is True
    assert near.fingerprint == far.fingerprint
    assert near.payload_layout.token_bytes == 23_040
    assert near.max_model_len == MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("tokens", "opening"), [pytest.param(128, "Whole blocks. ", marks=pytest.mark.full), (150, "A partial tail. ")]
)
@pytest.mark.full
async def test_a_prompt_prefilled_there_continues_here_as_if_computed_here(
    near: LlamaEngine, far: LlamaEngine, tokens: int, opening: str
) -> None:
    prompt = await prompt_of(near, tokens, opening)
    straight = await steps_of(far, prompt, 12, salt=b"reference")
    prefilled = await steps_of(near, prompt, 1)
    assert (prefilled[0].resident_tokens, prefilled[0].computed_tokens) == (0, tokens)
    assert ship(near, far, prompt) == tokens
    continued = await steps_of(far, prompt, 12)
    assert ids_of(continued) == ids_of(straight)
    assert (continued[0].resident_tokens, continued[0].computed_tokens) == (tokens - 1, 1)


async def test_a_handoff_by_token_ids_continues_as_one_generation(near: LlamaEngine, far: LlamaEngine) -> None:
    prompt = await prompt_of(near, 140, "On handing over. ")
    straight = ids_of(await steps_of(near, prompt, 24, salt=b"reference"))
    await steps_of(near, prompt, 1)
    ship(near, far, prompt)
    for eager in (17, 5, 1):
        continued = await steps_of(far, [*prompt, *straight[:eager]], 24 - eager)
        assert ids_of(continued) == straight[eager:]
        assert continued[0].computed_tokens <= eager


@pytest.mark.full
async def test_the_kv_of_an_answer_is_kept_for_the_next_turn(near: LlamaEngine, far: LlamaEngine) -> None:
    prompt = await prompt_of(near, 100, "On next turns. ")
    answer = ids_of(await steps_of(near, prompt, 9))
    turn = [*prompt, *answer, *(await near.tokenize(" And then?", add_special=False))]
    assert ship(near, far, turn) == 108  # the last token of an answer has been chosen, not evaluated
    straight = ids_of(await steps_of(near, turn, 6, salt=b"reference"))
    continued = await steps_of(far, turn, 6)
    assert continued[0].resident_tokens == 108
    assert ids_of(continued) == straight


@pytest.mark.full
async def test_kv_that_was_decoded_has_the_bits_of_kv_that_was_prefilled(near: LlamaEngine, far: LlamaEngine) -> None:
    """What joining a block from both relies on: decoded one by one, extended in one batch, and prefilled in chunks."""
    prompt = await prompt_of(near, 70, "On equal bits. ")
    answer = ids_of(await steps_of(near, prompt, 90))
    sequence = [*prompt, *answer[:-1]]
    await steps_of(near, [*prompt, *answer[:33]], 57, salt=b"extended")
    await steps_of(far, sequence, 1)
    decoded = longest_resident(near.store, sequence)
    extended = longest_resident(near.store, sequence, salt=b"extended")
    prefilled = longest_resident(far.store, sequence)
    assert decoded.token_count == extended.token_count == prefilled.token_count == len(sequence)
    payloads = [[bytes(block.payload) for block in each.blocks] for each in (decoded, extended, prefilled)]
    assert payloads[0] == payloads[1] == payloads[2]


@pytest.mark.full
async def test_an_answer_closed_early_leaves_its_kv(near: LlamaEngine) -> None:
    prompt = await prompt_of(near, 30, "On leaving early. ")
    seen: list[int] = []
    async with aclosing(near.generate(Generation(prompt, 100, Sampling()))) as steps:
        async for step in steps:
            seen += step.token_ids
            if len(seen) == 4:
                break
    assert longest_resident(near.store, [*prompt, *seen]).token_count == 33


@pytest.mark.full
async def test_salts_do_not_share_kv(near: LlamaEngine) -> None:
    prompt = await prompt_of(near, 70, "On salt. ")
    first = await steps_of(near, prompt, 3, salt=b"one tenant")
    other = await steps_of(near, prompt, 3, salt=b"another tenant")
    again = await steps_of(near, prompt, 3, salt=b"one tenant")
    assert (first[0].resident_tokens, other[0].resident_tokens, again[0].resident_tokens) == (0, 0, 69)
    assert ids_of(first) == ids_of(other) == ids_of(again)


@pytest.mark.full
async def test_dropped_blocks_are_computed_again(near: LlamaEngine) -> None:
    prompt = await prompt_of(near, 70, "On forgetting. ")
    first = await steps_of(near, prompt, 3)
    near.store.clear()
    again = await steps_of(near, prompt, 3)
    assert again[0].resident_tokens == 0
    assert ids_of(again) == ids_of(first)


@pytest.mark.full
async def test_a_generation_cancelled_in_its_prefill_frees_the_slot_and_keeps_its_kv(far: LlamaEngine) -> None:
    prompt = await prompt_of(far, 250, "On giving up. ")
    advanced = asyncio.Event()
    generation = Generation(prompt, 5, Sampling(), on_progress=advanced.set)

    async def run() -> None:
        async with aclosing(far.generate(generation)) as steps:
            async for _ in steps:
                pytest.fail("the prompt was to be given up before its first token")

    running = asyncio.create_task(run())
    await advanced.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 64 <= longest_resident(far.store, prompt).token_count < 250
    short = [prompt[:10], prompt[:11]]
    answers = await asyncio.gather(*(steps_of(far, each, 2) for each in short))
    assert [len(ids_of(answer)) for answer in answers] == [2, 2]


@pytest.mark.full
async def test_three_at_once_answer_as_each_alone(near: LlamaEngine) -> None:
    prompts = [await prompt_of(near, 65 + index, f"Voice {index}. ") for index in range(3)]
    together = await asyncio.gather(*(steps_of(near, prompt, 8, salt=b"together") for prompt in prompts))
    alone = [await steps_of(near, prompt, 8, salt=b"alone") for prompt in prompts]
    assert [ids_of(steps) for steps in together] == [ids_of(steps) for steps in alone]


@pytest.mark.full
async def test_more_generations_than_slots_wait_their_turn(far: LlamaEngine) -> None:
    prompts = [await prompt_of(far, 10 + index, "Queue. ") for index in range(5)]
    answers = await asyncio.gather(*(steps_of(far, prompt, 3) for prompt in prompts))
    assert [len(ids_of(steps)) for steps in answers] == [3] * 5


async def test_tokens_that_end_inside_a_character_are_all_there(near: LlamaEngine) -> None:
    prompt = await near.tokenize("Repeat: 🎉🦊 🎉🦊 🎉🦊 🎉🦊 🎉🦊 🎉🦊 🎉🦊 🎉", add_special=False)
    steps = await steps_of(near, prompt, 24)
    pieces = [piece for step in steps for piece in step.token_bytes]
    api = near._started().api
    whole = await api._post("/completion", {"prompt": prompt, "n_predict": 24} | dict(GREEDY_OPTIONS))
    assert b"".join(pieces).decode(errors="replace").startswith(whole["content"].rstrip("\ufffd"))
    assert any("\ufffd" in piece.decode(errors="replace") for piece in pieces)
    assert "🦊" in b"".join(pieces).decode(errors="replace")
    assert len(ids_of(steps)) == 24
    assert await near.detokenize(ids_of(steps)) == b"".join(pieces)


@pytest.mark.full
async def test_a_repetition_penalty_does_not_show_a_cut(near: LlamaEngine, far: LlamaEngine) -> None:
    prompt = await near.tokenize("one two three one two three one two three one two", add_special=False)
    sampling = Sampling(repetition_penalty=1.5, ignore_eos=True)
    whole = ids_of(await steps_of(near, prompt, 12, sampling))
    assert whole != ids_of(await steps_of(near, prompt, 12, Sampling(ignore_eos=True)))
    assert ids_of(await steps_of(far, [*prompt, *whole[:5]], 7, sampling)) == whole[5:]


@pytest.mark.full
async def test_penalties_and_biases_change_what_comes_next(near: LlamaEngine) -> None:
    prompt = await near.tokenize("one two three one two three one two three one two", add_special=False)
    plain = ids_of(await steps_of(near, prompt, 12, Sampling(ignore_eos=True)))
    assert len(set(plain)) < len(plain)
    banned = Sampling(ignore_eos=True, logit_bias=((plain[0], -100.0),))
    assert plain[0] not in ids_of(await steps_of(near, prompt, 12, banned))
    once = ids_of(await steps_of(near, prompt, 12, Sampling(ignore_eos=True, presence_penalty=100.0)))
    assert once[0] == plain[0], "a token of the prompt is not one that was made"
    assert len(set(once)) == 12


async def test_the_end_of_text_is_a_token_without_text(near: LlamaEngine) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "Say hi."}]
    text = await near.render_chat(messages, add_generation_prompt=True)
    prompt = await near.tokenize(text, add_special=False)
    steps = await steps_of(near, prompt, 60)
    assert steps[-1].finish is FinishReason.STOP
    assert (await near.detokenize(steps[-1].token_ids), steps[-1].token_bytes) == (b"<|im_end|>", (b"",))
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)
    further = await steps_of(near, prompt, len(steps) + 3, Sampling(ignore_eos=True))
    assert further[-1].finish is FinishReason.LENGTH
    assert len(further) == len(steps) + 3


async def test_special_tokens_survive_the_way_to_ids_and_back(near: LlamaEngine) -> None:
    text = "<|im_start|>user\nGrüße 🦊<|im_end|>\n"
    assert (await near.detokenize(await near.tokenize(text, add_special=False))).decode() == text


@pytest.mark.full
async def test_a_seed_fixes_the_answer_even_where_another_node_continues_it(
    near: LlamaEngine, far: LlamaEngine
) -> None:
    prompt = await prompt_of(near, 20, "On chance. ")
    sampling = Sampling(temperature=1.0, seed=11, ignore_eos=True)
    answer = ids_of(await steps_of(near, prompt, 12, sampling))
    continued = ids_of(await steps_of(far, [*prompt, *answer[:5]], 7, sampling))
    assert continued == answer[5:]
    others = [ids_of(await steps_of(near, prompt, 12, Sampling(temperature=1.0, seed=seed))) for seed in (12, 13)]
    assert len({tuple(each) for each in [answer, *others]}) == 3


@pytest.mark.full
async def test_top_k_of_one_is_greedy_at_any_temperature(near: LlamaEngine) -> None:
    prompt = await prompt_of(near, 20, "On chance. ")
    greedy = ids_of(await steps_of(near, prompt, 8))
    assert ids_of(await steps_of(near, prompt, 8, Sampling(temperature=2.0, top_k=1))) == greedy


@pytest.mark.full
async def test_a_generation_ends_where_the_context_does(far: LlamaEngine) -> None:
    prompt = await prompt_of(far, MAX_MODEL_LEN - 3, "On giving up. ")
    steps = await steps_of(far, prompt, 100, Sampling(ignore_eos=True))
    assert len(ids_of(steps)) == 3
    assert steps[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [((), 1), ((1,) * MAX_MODEL_LEN, 1), ((1, -1), 1), ((1, 10**6), 1), ((1,), 0)],
    ids=["empty", "too long", "negative id", "id outside the vocabulary", "no token wanted"],
)
async def test_what_cannot_be_continued_is_refused(far: LlamaEngine, prompt: tuple[int, ...], max_tokens: int) -> None:
    with pytest.raises(PromptRefusedError):
        await steps_of(far, prompt, max_tokens)


async def test_messages_that_do_not_fit_the_template_are_refused(far: LlamaEngine) -> None:
    with pytest.raises(PromptRefusedError):
        await far.render_chat([{"role": "user"}], add_generation_prompt=True)


@pytest.mark.full
async def test_an_engine_of_one_slot_closes_under_a_running_generation() -> None:
    engine = LlamaEngine(
        ServerSettings(default_model_path(), slots=1, max_model_len=MAX_MODEL_LEN),
        model="smollm2-135m",
        store=BlockStore(1000),
    )
    await engine.start()
    assert engine.exact is True
    begun = asyncio.Event()

    async def run() -> None:
        async with aclosing(engine.generate(Generation((1, 2, 3), 400, Sampling(ignore_eos=True)))) as steps:
            async for _ in steps:
                begun.set()

    running = asyncio.create_task(run())
    await begun.wait()
    await engine.close()
    with pytest.raises((LlamaError, aiohttp.ClientError)):
        await running
    with pytest.raises(RuntimeError):
        await engine.tokenize("closed", add_special=False)
