"""What joining a small last prefill chunk to the one before it saves: on an emulated chip with a floor, and on llama.

Prompts differ in how many tokens are left over after whole chunks. Each is prefilled with and without the rule, in
turn, with nothing resident; the figure is the median time to the first token. Run: `python benchmarks/bench_valley.py`;
the last line is JSON. `--engine emulated` needs no model.
"""

import argparse
import json
import random
import statistics
import time
from contextlib import aclosing

import uvloop

from control.domain.prefill import ChunkRule, chunked_prefill_s, plan_chunks
from engine_agents.nodes.emulated.engine import EmulatedChip, EmulatedEngine
from engine_agents.nodes.engine import Engine, Generation, Sampling
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.llama.engine import DEFAULT_CHUNK_RULE, LlamaEngine
from engine_agents.nodes.llama.server import ServerSettings, default_model_path

EMULATED_RULE = ChunkRule(chunk_tokens=512, tail_chunk_min_tokens=128)
EMULATED_TOKENS_PER_S = 15_000.0
EMULATED_FLOOR_S = 0.02


async def first_token_s(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Seconds to the first token of a prompt that nothing is resident of."""
    engine.store.clear()
    generation = Generation(prompt, 1, Sampling())
    began_s = time.perf_counter()
    async with aclosing(engine.generate(generation)) as steps:
        await anext(steps)
        return time.perf_counter() - began_s


async def compare(
    engines: tuple[Engine, Engine], rule: ChunkRule, tails: list[int], rounds: int, ids: range
) -> list[dict[str, float]]:
    """Median first-token time without and with the rule, for each length of the tail."""
    draw = random.Random(1)
    rows = []
    for tail in tails:
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            prompt = tuple(draw.choices(ids, k=2 * rule.chunk_tokens + tail))
            for engine, times in zip(engines, taken, strict=True):
                times.append(await first_token_s(engine, prompt))
        apart_s, joined_s = map(statistics.median, taken)
        row = {"tail_tokens": tail, "apart_s": apart_s, "joined_s": joined_s, "saved_ratio": 1 - joined_s / apart_s}
        print({name: round(value, 4) for name, value in row.items()})
        rows.append(row)
    return rows


async def run_emulated(rounds: int) -> list[dict[str, float]]:
    """The emulated chip, whose every chunk costs at least its floor."""
    rule = EMULATED_RULE
    apart, joined = (
        EmulatedEngine(
            "bench",
            EmulatedChip(
                prefill_tokens_per_s=EMULATED_TOKENS_PER_S,
                prefill_floor_s=EMULATED_FLOOR_S,
                prefill_chunk_tokens=rule.chunk_tokens,
                tail_chunk_min_tokens=minimum,
            ),
        )
        for minimum in (0, rule.tail_chunk_min_tokens)
    )
    tails = [8, 64, 127, 128, 300]
    for tail in tails:
        prompt_tokens = 2 * rule.chunk_tokens + tail
        formula = [
            chunked_prefill_s(0, plan_chunks(0, prompt_tokens, variant), EMULATED_TOKENS_PER_S, EMULATED_FLOOR_S)
            for variant in (ChunkRule(rule.chunk_tokens), rule)
        ]
        print(f"formula, tail {tail}: apart {formula[0]:.4f} s, joined {formula[1]:.4f} s")
    return await compare((apart, joined), rule, tails, rounds, range(256))


async def run_llama(rounds: int) -> list[dict[str, float]]:
    """Two llama engines on one machine, one of them idle while the other works."""
    rule = DEFAULT_CHUNK_RULE
    settings = ServerSettings(default_model_path(), slots=1)
    apart, joined = (
        LlamaEngine(settings, model="bench", store=BlockStore(20_000), chunk_rule=variant)
        for variant in (ChunkRule(rule.chunk_tokens), rule)
    )
    try:
        await apart.start()
        await joined.start()
        return await compare((apart, joined), rule, [2, 8, 16, 31, 32, 48], rounds, range(1000, 40_000))
    finally:
        await apart.close()
        await joined.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["all", "emulated", "llama"], default="all")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    result = {}
    if arguments.engine != "llama":
        result["emulated"] = uvloop.run(run_emulated(arguments.rounds))
    if arguments.engine != "emulated":
        result["llama"] = uvloop.run(run_llama(arguments.rounds))
    print(
        json.dumps({name: [{k: round(v, 4) for k, v in row.items()} for row in rows] for name, rows in result.items()})
    )


if __name__ == "__main__":
    main()
