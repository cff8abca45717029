"""`pdd check handoff`: shows on a running fleet that no handoff ever changes an answer."""

import asyncio
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from control.cli.check_plan import Aim, Seen, Size, adjusted, first_difference, first_size, next_aim, outcome_of
from control.cli.concurrency import together
from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress, fetch_nodes, fetch_policy
from control.cli.stream_client import TimedAnswer, stream_answer
from control.domain.workload import message_text

BLOCK_TOKENS = 64
SHARED_PREFIX_TOKENS = 2 * BLOCK_TOKENS
_REQUEST_TIMEOUT_S = 300.0
_KEPT_PROMPTS = 12


@dataclass(slots=True)
class Tally:
    """What was found so far."""

    requests: int = 0
    exact: int = 0
    pipelines: Counter[str] = field(default_factory=lambda: Counter(direct=0, relay=0))
    handoff_modes: Counter[str] = field(default_factory=lambda: Counter(one_shot=0, catch_up=0))

    def document(self) -> dict[str, Any]:
        """The result as one JSON object."""
        return {
            "requests": self.requests,
            "exact": self.exact,
            "pipelines": dict(self.pipelines),
            "handoff_modes": dict(self.handoff_modes),
        }

    @property
    def is_proof(self) -> bool:
        """Whether every answer was exact and each pipeline and handoff mode occurred."""
        counts = [*self.pipelines.values(), *self.handoff_modes.values()]
        return self.requests > 0 and self.exact == self.requests and all(counts)


class HandoffCheck:
    """Sends requests through the gateway and asks one node alone the same; compares token by token."""

    def __init__(self, address: FleetAddress, seed: int) -> None:
        self._address = address
        self._rng = Random(f"{seed}/check")  # noqa: S311 - prompts, not secrets
        self._one_shot_max_tokens = 0
        self._sizes: dict[Aim, Size] = {}
        self._seen: Counter[Aim] = Counter()
        self._under_way: Counter[Aim] = Counter()
        self._answered: list[list[int]] = []
        self._prefix: list[int] = []
        self._nodes: list[dict[str, Any]] = []
        self.tally = Tally()

    async def run(self, requests: int, concurrency: int) -> Tally:
        """Send that many requests.

        Raises:
            CommandError: the fleet cannot be asked.
        """
        self._nodes = await asyncio.to_thread(fetch_nodes, self._address)
        policy = await asyncio.to_thread(fetch_policy, self._address)
        self._one_shot_max_tokens = int(policy["handoff"]["one_shot_max_tokens"])
        self._sizes = {aim: first_size(aim, self._one_shot_max_tokens) for aim in Aim}
        if not self._nodes:
            raise CommandError("The control plane knows no node.")
        try:
            await self._run_lanes(requests, concurrency)
        except (aiohttp.ClientError, OSError) as error:
            raise CommandError(f"A node does not answer: {error}") from error
        return self.tally

    async def _run_lanes(self, requests: int, concurrency: int) -> None:
        numbers = iter(range(requests))
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            self._prefix = await self._new_tokens(http, SHARED_PREFIX_TOKENS)
            await together(*(self._lane(http, numbers) for _ in range(min(concurrency, requests))))

    async def _lane(self, http: aiohttp.ClientSession, numbers: Any) -> None:
        for number in numbers:
            aim = next_aim(self._seen, self._under_way)
            if aim is Aim.DIRECT and not self._answered:
                aim = Aim.ONE_SHOT
            self._under_way[aim] += 1
            try:
                await self._one(http, number, aim)
            finally:
                self._under_way[aim] -= 1

    async def _one(self, http: aiohttp.ClientSession, number: int, aim: Aim) -> None:
        size = self._sizes[aim]
        prompt = await self._prompt(http, aim, size)
        answer = await self._through_gateway(http, prompt, size.max_output_tokens)
        alone = await self._one_node_alone(http, number, prompt, size.max_output_tokens)
        seen = _seen(answer)
        if answer.is_complete and seen.handoff_mode:
            self._answered = [*self._answered, prompt][-_KEPT_PROMPTS:]
        self._sizes[aim] = adjusted(aim, size, seen, self._one_shot_max_tokens)
        met = outcome_of(seen)
        if met is not None:
            self._seen[met] += 1
        self._count(number, seen, answer, alone)

    async def _prompt(self, http: aiohttp.ClientSession, aim: Aim, size: Size) -> list[int]:
        """A prompt that shares the common prefix; for DIRECT, whole blocks that MD has got, plus a few tokens."""
        if aim is Aim.DIRECT:
            known = self._rng.choice(self._answered)
            whole = known[: len(known) // BLOCK_TOKENS * BLOCK_TOKENS]
            return whole + await self._new_tokens(http, self._rng.randint(1, size.new_tokens))
        return self._prefix + await self._new_tokens(http, size.new_tokens)

    async def _new_tokens(self, http: aiohttp.ClientSession, count: int) -> list[int]:
        if not count:
            return []
        text = f"{self._rng.randrange(10**9)} {message_text(self._rng, 2 * count + 16)}"
        url = f"{self._nodes[0]['url']}/tokenize"
        async with http.post(url, json={"model": self._nodes[0]["model"], "prompt": text}) as response:
            response.raise_for_status()
            tokens: list[int] = (await response.json())["tokens"]
        return tokens[:count]

    async def _through_gateway(self, http: aiohttp.ClientSession, prompt: list[int], max_tokens: int) -> TimedAnswer:
        body = self._body(prompt, max_tokens) | {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"X-PDD-Explain": "1"}
        return await stream_answer(http, f"{self._address.gateway_url}/v1/completions", body, headers)

    async def _one_node_alone(
        self, http: aiohttp.ClientSession, number: int, prompt: list[int], max_tokens: int
    ) -> list[int]:
        """Ask one node directly, in turn; the salt keeps it from any KV it did not compute itself for this."""
        node = self._nodes[number % len(self._nodes)]
        body = self._body(prompt, max_tokens) | {"cache_salt": uuid.uuid4().hex}
        async with http.post(f"{node['url']}/v1/completions", json=body) as response:
            if response.status != 200:
                raise CommandError(f"{node['name']} answered {response.status}: {(await response.text())[:200]}")
            return list((await response.json())["choices"][0]["token_ids"])

    def _body(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._nodes[0]["model"],
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }

    def _count(self, number: int, seen: Seen, answer: TimedAnswer, alone: list[int]) -> None:
        difference = first_difference(answer.token_ids, alone)
        is_exact = answer.is_complete and difference is None
        self.tally.requests += 1
        self.tally.exact += is_exact
        if seen.pipeline:
            self.tally.pipelines[seen.pipeline] += 1
        if seen.handoff_mode:
            self.tally.handoff_modes[seen.handoff_mode] += 1
        told = "exact" if is_exact else answer.error or f"differs at token {difference} of {len(alone)}"
        eager = answer.explanation.get("eager_tokens", 0)
        print(
            f"{number + 1:3}  {seen.pipeline or '-':8} {seen.handoff_mode or '-':9} "
            f"{answer.input_tokens:4} in {len(answer.token_ids):4} out {eager or 0:4} eager  {told}",
            file=sys.stderr,
            flush=True,
        )


def _seen(answer: TimedAnswer) -> Seen:
    told = answer.explanation
    tokens = sum(answer.chunk_tokens)
    token_s = (answer.chunk_s[-1] - answer.chunk_s[0]) / (tokens - 1) if tokens > 1 else 0.0
    transfer_s = told.get("transfer_s") or told.get("predicted_transfer_s") or 0.0
    return Seen(str(told.get("pipeline") or ""), str(told.get("handoff_mode") or ""), float(transfer_s), token_s)
