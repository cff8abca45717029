"""An engine without a model: exact to the byte about KV, with a chip's timing instead of its work."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec

from control.domain.prefill import ChunkRule, plan_chunks
from control.domain.prefix import BLOCK_TOKENS
from engine_agents.nodes.emulated.script import remaining_script
from engine_agents.nodes.emulated.sequence import KvSequence
from engine_agents.nodes.emulated.timing import decode_step_s, prefill_s
from engine_agents.nodes.emulated.vocabulary import END, Vocabulary
from engine_agents.nodes.engine import FinishReason, Generation, PromptRefusedError, Step, TokenLogprob
from engine_agents.nodes.hermes_prompt import hermes_messages, needs_hermes
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_layout import PayloadLayout
from engine_agents.nodes.kv_prefix import ResidentPrefix, longest_resident

RIDE_ALONG_TOKENS = 64
_VOCABULARY = Vocabulary()


class EmulatedChip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and speed of an emulated node: rates in tokens/s, times in s.

    Speeds of 0 take no time at all, and an `eos_period` of 0 never ends a text by itself.
    """

    slots: int = 4
    capacity_tokens: int = 65_536
    prefill_tokens_per_s: float = 0.0
    prefill_floor_s: float = 0.0
    prefill_chunk_tokens: int = 512
    tail_chunk_min_tokens: int = 0
    decode_step_s: float = 0.0
    decode_step_per_request_s: float = 0.0
    tokens_per_step: int = 1
    kv_bytes_per_token: int = 64
    max_model_len: int = 131_072
    eos_period: int = 400


class EmulatedEngine:
    """The engine protocol over hashes. Greedy whatever the sampling says, except that `ignore_eos` is obeyed.

    A prompt may script its answer, see `script`.
    """

    kind = "emulated"

    def __init__(self, model: str, chip: EmulatedChip | None = None) -> None:
        chip = chip or EmulatedChip()
        self.chip = chip
        self.model = model
        self.fingerprint = f"emulated-1/{model}/{chip.kv_bytes_per_token}"
        self.payload_layout = PayloadLayout((chip.kv_bytes_per_token,))
        self.exact: bool | None = True
        self.max_model_len = chip.max_model_len
        self.slots = chip.slots
        self.store = BlockStore(chip.capacity_tokens)
        self.running = 0
        self._prefill_turn = asyncio.Lock()

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    async def generate(self, generation: Generation) -> AsyncGenerator[Step, None]:
        """Continue a prompt; the first step has one token, later ones up to `tokens_per_step`."""
        unknown = next((token for token in generation.prompt if not _VOCABULARY.knows(token)), None)
        if unknown is not None:
            raise PromptRefusedError(f"no token {unknown} in the vocabulary")
        slot = _Slot(generation, KvSequence(self.model, self.chip.kv_bytes_per_token))
        self.running += 1
        try:
            resident = await self._evaluate_prompt(slot)
            script = remaining_script(generation.prompt, _VOCABULARY)
            slot.script = script if script is not None and slot.sequence.is_true(self.model) else None
            step = self._step(slot, 1)
            yield replace(step, resident_tokens=resident, computed_tokens=len(generation.prompt) - resident)
            while step.finish is None:
                count = min(self.chip.tokens_per_step, generation.max_tokens - slot.generated)
                await self._decode_time(count)
                step = self._step(slot, count)
                yield step
        finally:
            self.running -= 1
            self._save(slot)

    async def tokenize(self, text: str, *, add_special: bool) -> list[int]:  # noqa: ARG002 - no start token here
        """Token ids of a text."""
        return _VOCABULARY.encode(text)

    async def render_chat(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """ChatML, with tools in the Hermes format.

        Raises:
            ValueError: a message has no role, or content that is no text.
        """
        if needs_hermes(messages, tools):
            messages = hermes_messages(messages, tools)
        text = "".join(_rendered(message) for message in messages)
        return text + "<|im_start|>assistant\n" if add_generation_prompt else text

    async def detokenize(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that token ids stand for.

        Raises:
            ValueError: an id is unknown.
        """
        return _VOCABULARY.decode(token_ids)

    async def _evaluate_prompt(self, slot: "_Slot") -> int:
        """Have the prompt's KV in slot and store; gives back how many tokens were resident.

        One long prefill at a time, as a chip does it that is bound by compute, so that the second of two equal
        prompts finds the first one's KV; a short rest rides along with whatever is running.
        """
        prompt, salt = slot.generation.prompt, slot.generation.salt
        prefix = longest_resident(self.store, prompt, salt)
        if len(prompt) - prefix.token_count <= RIDE_ALONG_TOKENS:
            return await self._prefill(slot, prefix)
        async with self._prefill_turn:
            return await self._prefill(slot, longest_resident(self.store, prompt, salt))

    async def _prefill(self, slot: "_Slot", prefix: ResidentPrefix) -> int:
        """Compute what the prefix leaves, in chunks.

        The last token always counts as computed, as on a real engine: its output is the first new token.
        """
        prompt = slot.generation.prompt
        slot.sequence.load(prompt[: prefix.token_count], [block.payload for block in prefix.blocks])
        resident = min(prefix.token_count, len(prompt) - 1)
        rule = ChunkRule(self.chip.prefill_chunk_tokens, self.chip.tail_chunk_min_tokens)
        for start, end in pairwise([resident, *plan_chunks(resident, len(prompt), rule)]):
            chunk = prompt[start:end]
            await asyncio.sleep(prefill_s(len(chunk), self.chip.prefill_tokens_per_s, self.chip.prefill_floor_s))
            slot.sequence.evaluate(chunk[max(0, prefix.token_count - start) :])
            slot.generation.on_progress()
        self._save(slot)
        return resident

    def _save(self, slot: "_Slot") -> None:
        """Keep the KV of all that was evaluated, as far as the store has room."""
        if slot.sequence.tokens:
            self.store.put_chain(slot.sequence.blocks(self.store, slot.generation.salt, BLOCK_TOKENS))

    async def _decode_time(self, steps: int) -> None:
        step_s = decode_step_s(self.running, self.chip.decode_step_s, self.chip.decode_step_per_request_s)
        await asyncio.sleep(step_s * steps)

    def _step(self, slot: "_Slot", count: int) -> Step:
        """Up to `count` tokens; the last one is evaluated only when the next one is wanted."""
        ids: list[int] = []
        likely: list[TokenLogprob] = []
        finish: FinishReason | None = None
        while len(ids) < count and finish is None:
            ids.append(slot.next_token(self.chip.eos_period))
            if slot.generation.sampling.logprobs is not None:
                likely.append(slot.sequence.likely(_VOCABULARY, ids[-1], slot.generation.sampling.logprobs))
            finish = slot.finish()
        return Step(tuple(ids), tuple(_VOCABULARY.piece(token) for token in ids), finish, logprobs=tuple(likely))


@dataclass(slots=True)
class _Slot:
    """One generation under way; `last` was made but not evaluated."""

    generation: Generation
    sequence: KvSequence
    generated: int = 0
    last: int | None = None
    script: tuple[int, ...] | None = None

    def next_token(self, eos_period: int) -> int:
        """Evaluate the last token and make the next one."""
        if self.last is not None:
            self.sequence.evaluate([self.last])
        ignore_eos = self.generation.sampling.ignore_eos
        if self.script is not None and (self.generated < len(self.script) or not ignore_eos):
            self.last = self.script[self.generated] if self.generated < len(self.script) else END
        else:
            self.last = self.sequence.next_token(_VOCABULARY, eos_period, ignore_eos=ignore_eos)
        self.generated += 1
        return self.last

    def finish(self) -> FinishReason | None:
        """Why the last token ended it, if it did."""
        if self.last == END:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.generated >= self.generation.max_tokens else None


def _rendered(message: dict[str, object]) -> str:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise ValueError("a message needs a role")  # noqa: TRY004 - it is the client's data that is wrong
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str | None):
        raise ValueError("a message's content must be text")  # noqa: TRY004
    return f"<|im_start|>{role}\n{content or ''}<|im_end|>\n"
