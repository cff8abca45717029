"""Whether KV that was saved, cut, rebuilt and restored continues to the very bits of a straight generation, here."""

from dataclasses import dataclass

from control.domain.prefix import BLOCK_TOKENS
from engine_agents.nodes.llama.api import LlamaApi
from engine_agents.nodes.llama.sampling import GREEDY_OPTIONS
from engine_agents.nodes.llama.slot_file import KvLayout
from engine_agents.nodes.llama.slot_io import SlotIo

_PROMPT_TOKENS = BLOCK_TOKENS + 16  # one whole block and a partial one
_EAGER_TOKENS = 4
_FURTHER_TOKENS = 2


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What the round trip showed: how KV is laid out, over how many streams, and whether it was exact."""

    layout: KvLayout
    streams: int
    is_exact: bool


async def run_selfcheck(api: LlamaApi, slot_io: SlotIo, *, slots: int, vocabulary_size: int) -> SelfCheck:
    """Do what a relay and its handoff do, once, on empty slots, and leave them empty.

    Raises:
        LlamaError: the server refused a call.
        SlotFileError: the server saves slots in a format that is not understood.
    """
    first, second = 0, min(1, slots - 1)
    prompt = [(7919 * position + 13) % vocabulary_size for position in range(_PROMPT_TOKENS)]
    opening = await api.next_token(first, prompt, GREEDY_OPTIONS)
    async with slot_io.saved(first) as file:
        layout, streams = file.layout, file.streams
        ranges = [(0, BLOCK_TOKENS), (BLOCK_TOKENS, _PROMPT_TOKENS)]
        payloads = await slot_io.payloads(file, ranges)
    eager = [opening.token_id]
    eager += [chosen for chosen, _ in await _continue(api, first, prompt + eager, _EAGER_TOKENS - 1)]
    straight = await _continue(api, first, prompt + eager, _FURTHER_TOKENS)
    blocks = [(end - start, payload) for (start, end), payload in zip(ranges, payloads, strict=True)]
    await slot_io.restore(second, layout, streams, prompt, blocks)
    handed_over = await _continue(api, second, prompt + eager, _FURTHER_TOKENS)
    for slot in {first, second}:
        await api.erase_slot(slot)
    return SelfCheck(layout, streams, is_exact=straight == handed_over)


async def _continue(api: LlamaApi, slot: int, tokens: list[int], count: int) -> list[tuple[int, float | None]]:
    """The next tokens, each with its log-probability: equal tokens alone would hide a small difference."""
    made: list[tuple[int, float | None]] = []
    for _ in range(count):
        step = await api.next_token(slot, tokens + [token for token, _ in made], GREEDY_OPTIONS, want_logprob=True)
        made.append((step.token_id, step.logprob))
    return made
