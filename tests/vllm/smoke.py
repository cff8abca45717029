"""`make smoke-vllm`: stock vLLM as P, RLD and MD behind the gateway; the last line is JSON, 0 means all was exact."""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from control.domain.topology import Role
from tests.gateways import ONE_SHOT
from tests.vllm.cases import LEFT, OVERLAPPING, PLANS, TOGETHER, TURN
from tests.vllm.fleet import Case, Outcome, VllmFleet, vllm_fleet
from tests.vllm.install import UnavailableError, UnfitError, ensure_vllm

BYTES = "vllm:nixl_bytes_transferred_sum"


@dataclass
class Tally:
    """What was seen."""

    requests: int = 0
    exact: int = 0
    pipelines: Counter[str] = field(default_factory=Counter)
    handoff_modes: Counter[str] = field(default_factory=Counter)
    eager_tokens: int = 0
    batches: int = 0
    longest_stall_s: float = 0.0

    def add(self, name: str, outcome: Outcome) -> None:
        """Count one answer and say how it went."""
        explained = outcome.explained
        self.requests += 1
        self.exact += outcome.is_exact
        self.pipelines[explained.get("pipeline", "none")] += 1
        if mode := explained.get("handoff_mode"):
            self.handoff_modes[mode] += 1
        self.eager_tokens += explained.get("eager_tokens", 0)
        self.batches += explained.get("handoff_batches", 0)
        self.longest_stall_s = max(self.longest_stall_s, explained.get("handoff_stall_s") or 0.0)
        facts = {key: explained.get(key) for key in ("pipeline", "handoff_mode", "eager_tokens", "handoff_batches")}
        say(f"{name}: {'exact' if outcome.is_exact else f'DIFFERS {outcome}'} {facts}")


def say(text: str) -> None:
    """One line of progress."""
    print(text, flush=True)  # noqa: T201


async def check(fleet: VllmFleet, tally: Tally) -> dict[str, object]:
    """Run all cases; figures beyond the tally."""
    seed = 0
    for name, (changes, cases) in PLANS.items():
        await fleet.configure(changes)
        for case in cases:
            seed += 1
            tally.add(f"{name} {case.tokens}", await fleet.run(case, seed))
    await fleet.configure(ONE_SHOT)
    for outcome in await asyncio.gather(*(fleet.run(case, 100 + at) for at, case in enumerate(TOGETHER))):
        tally.add("together", outcome)
    overlap_bytes, outcomes = await overlapping(fleet)
    for outcome in outcomes:
        tally.add("overlapping", outcome)
    turn_bytes, outcomes = await two_turns(fleet)
    for outcome in outcomes:
        tally.add("turn", outcome)
    return {"overlap_bytes": overlap_bytes, "turn_bytes": turn_bytes, "freed_after_leaving": await leave(fleet)}


async def overlapping(fleet: VllmFleet) -> tuple[list[float], list[Outcome]]:
    """Two requests with one prompt at once: bytes that MD pulled for one such prompt, and for the two together."""
    before = await fleet.figure(Role.MAIN, BYTES)
    first = await fleet.run(OVERLAPPING, 200)
    single = await fleet.figure(Role.MAIN, BYTES) - before
    both = await asyncio.gather(fleet.run(OVERLAPPING, 201), fleet.run(OVERLAPPING, 201))
    return [single, await fleet.figure(Role.MAIN, BYTES) - before - single], [first, *both]


async def two_turns(fleet: VllmFleet) -> tuple[list[float], list[Outcome]]:
    """A session's second turn holds its first: bytes that MD pulled for each of the two."""
    start = await fleet.figure(Role.MAIN, BYTES)
    prompt = await fleet.prompt_of(TURN, 400)
    first = await fleet.compare(prompt, TURN)
    middle = await fleet.figure(Role.MAIN, BYTES)
    more = await fleet.prompt_of(Case(100), 401)
    second = await fleet.compare([*prompt, *first.ids, *more], TURN)
    return [middle - start, await fleet.figure(Role.MAIN, BYTES) - middle], [first, second]


async def leave(fleet: VllmFleet, case: Case = LEFT) -> bool:
    """Close a relayed stream half-way; whether everything comes to rest."""
    fleet.wan.delay_s = case.delay_s
    prompt = await fleet.prompt_of(case, 300)
    async with fleet.open_stream(prompt, max_tokens=case.max_tokens, ignore_eos=True) as (answer, chunks):
        async for _ in chunks:
            if len(answer.token_ids) > 20:
                break
    return await fleet.is_at_rest()


async def main() -> int:
    """Check, then print the summary."""
    try:
        ensure_vllm()
    except UnavailableError as error:
        say(f"{'skipped' if isinstance(error, UnfitError) else 'failed'}: {error}")
        say(json.dumps({"requests": 0, "exact": 0, "error": str(error)}))
        return 0 if isinstance(error, UnfitError) else 1
    tally, start_s = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with vllm_fleet(Path(folder)) as fleet:
            ready_s = time.monotonic() - start_s
            say(f"three instances ready after {ready_s:.0f} s")
            more = await check(fleet, tally)
            kv_bytes = {role.value: await fleet.figure(role, BYTES) for role in (Role.RELAY, Role.MAIN)}
            mismatches = fleet.gateway.state.token_mismatches
    seen = {*tally.pipelines, *tally.handoff_modes}
    is_proof = {"direct", "relay", "one_shot", "catch_up"} <= seen
    is_good = is_proof and tally.exact == tally.requests and more["freed_after_leaving"] and not mismatches
    summary = {
        "requests": tally.requests,
        "exact": tally.exact,
        "pipelines": tally.pipelines,
        "handoff_modes": tally.handoff_modes,
        "eager_tokens": tally.eager_tokens,
        "catch_up_batches": tally.batches,
        "token_mismatches": mismatches,
        "longest_stall_s": round(tally.longest_stall_s, 3),
        "kv_bytes": kv_bytes,
        **more,
        "start_s": round(ready_s, 1),
        "wall_s": round(time.monotonic() - start_s, 1),
    }
    say(json.dumps(summary))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
