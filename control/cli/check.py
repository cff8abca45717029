"""`pdd check handoff`: shows on a running fleet that no handoff ever changes an answer."""

import asyncio
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from control.cli.check_plan import (
    Aim,
    Seen,
    Size,
    adjusted,
    first_size,
    next_aim,
    outcome_of,
    outlier_size,
    possible_aims,
)
from control.cli.check_texts import (
    MULTI_BYTE_TAIL,
    TOOL,
    TOOL_OUTPUT_TOKENS,
    Alone,
    Text,
    difference,
    filled,
    next_text,
    proves,
    scripted_call,
    stop_string,
    tool_messages,
)
from control.cli.concurrency import together
from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress, fetch_nodes, fetch_policy
from control.cli.stream_client import TimedAnswer, stream_answer
from control.domain.workload import message_text

BLOCK_TOKENS = 64
SHARED_PREFIX_TOKENS = 2 * BLOCK_TOKENS
_REQUEST_TIMEOUT_S = 300.0
_KEPT_PROMPTS = 12
_UNAVAILABLE = 503
_PATIENCE_S = 60.0
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """One request: its prompt in tokens, and the messages that were rendered to it where it is a chat with tools."""

    text: Text
    prompt: list[int]
    max_tokens: int
    messages: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Tally:
    """What was found so far."""

    requests: int = 0
    exact: int = 0
    pipelines: Counter[str] = field(default_factory=lambda: Counter(direct=0, relay=0, outlier=0))
    handoff_modes: Counter[str] = field(default_factory=lambda: Counter(one_shot=0, catch_up=0))
    texts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(map(str, Text), 0)))
    tool_calls: int = 0
    impossible: frozenset[str] = frozenset()

    def document(self) -> dict[str, Any]:
        """The result as one JSON object."""
        return {
            "requests": self.requests,
            "exact": self.exact,
            "pipelines": dict(self.pipelines),
            "handoff_modes": dict(self.handoff_modes),
            "texts": dict(self.texts),
            "tool_calls": self.tool_calls,
        }

    @property
    def is_proof(self) -> bool:
        """Whether every answer was exact and each pipeline, handoff mode and kind of text occurred that can."""
        occurred = self.pipelines | self.handoff_modes | self.texts
        is_complete = all(count for name, count in occurred.items() if name not in self.impossible)
        return self.requests > 0 and self.exact == self.requests and is_complete


class HandoffCheck:
    """Sends requests through the gateway and asks one node alone the same; compares token by token."""

    def __init__(self, address: FleetAddress, seed: int, api_key: str = "") -> None:
        self._address = address
        self._headers = {"X-PDD-Explain": "1"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._rng = Random(f"{seed}/check")  # noqa: S311 - prompts, not secrets
        self._one_shot_max_tokens = 0
        self._sizes: dict[Aim, Size] = {}
        self._aims: list[Aim] = []
        self._sent: Counter[Text] = Counter()
        self._seen: Counter[Aim] = Counter()
        self._under_way: Counter[Aim] = Counter()
        self._answered: list[list[int]] = []
        self._prefix: list[int] = []
        self._script = scripted_call(self._rng)
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
        self._sizes[Aim.OUTLIER] = outlier_size(policy)
        self._aims = possible_aims(policy)
        self.tally.impossible = frozenset(set(Aim) - set(self._aims))
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
            aim = next_aim(self._seen, self._under_way, self._aims)
            if aim is Aim.DIRECT and not self._answered:
                aim = Aim.ONE_SHOT
            self._under_way[aim] += 1
            try:
                await self._one(http, number, aim)
            finally:
                self._under_way[aim] -= 1

    async def _one(self, http: aiohttp.ClientSession, number: int, aim: Aim) -> None:
        size = self._sizes[aim]
        question = await self._question(http, aim, size)
        alone, stop = None, ""
        if question.text is Text.STOP:
            alone = await self._one_node_alone(http, number, question)
            stop = stop_string(alone)
        answer = await self._through_gateway(http, question, stop)
        alone = alone or await self._one_node_alone(http, number, question)
        seen = _seen(answer)
        if answer.is_complete and seen.handoff_mode:
            self._answered = [*self._answered, question.prompt][-_KEPT_PROMPTS:]
        self._sizes[aim] = adjusted(aim, size, seen, self._one_shot_max_tokens)
        met = outcome_of(seen)
        if met is not None:
            self._seen[met] += 1
        self.tally.texts[question.text] += proves(question.text, answer, stop)
        self._count(number, seen, answer, question.text, difference(question.text, stop, answer, alone))

    async def _question(self, http: aiohttp.ClientSession, aim: Aim, size: Size) -> Question:
        """Most share the common prefix; for DIRECT, it is whole blocks that MD has got, plus a few tokens."""
        text = next_text(aim, self._sent)
        self._sent[text] += 1
        if aim is Aim.DIRECT:
            known = self._rng.choice(self._answered)
            whole = known[: len(known) // BLOCK_TOKENS * BLOCK_TOKENS]
            new = await self._new_tokens(http, self._rng.randint(1, size.new_tokens))
            return Question(text, whole + new, size.max_output_tokens)
        if text is Text.TOOLS:
            filler = await self._text_of(http, await self._new_tokens(http, size.new_tokens))
            messages = tool_messages(self._script, filler)
            prompt = await self._tokens_of(http, {"messages": messages, "tools": [TOOL]})
            return Question(text, prompt, TOOL_OUTPUT_TOKENS, messages)
        new = await self._new_tokens(http, size.new_tokens)
        if text is Text.MULTI_BYTE:
            new = filled(new, await self._tokens_of(http, {"prompt": MULTI_BYTE_TAIL}), size.new_tokens)
        return Question(text, self._prefix + new, size.max_output_tokens)

    async def _new_tokens(self, http: aiohttp.ClientSession, count: int) -> list[int]:
        if not count:
            return []
        text = f"{self._rng.randrange(10**9)} {message_text(self._rng, 2 * count + 16)}"
        return (await self._tokens_of(http, {"prompt": text}))[:count]

    async def _tokens_of(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> list[int]:
        return list((await self._ask_node(http, "/tokenize", body))["tokens"])

    async def _text_of(self, http: aiohttp.ClientSession, tokens: list[int]) -> str:
        return str((await self._ask_node(http, "/detokenize", {"tokens": tokens}))["prompt"])

    async def _ask_node(self, http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
        node = self._nodes[0]
        async with http.post(node["url"] + path, json={"model": node["model"], **body}) as response:
            response.raise_for_status()
            document: dict[str, Any] = await response.json()
        return document

    async def _through_gateway(self, http: aiohttp.ClientSession, question: Question, stop: str) -> TimedAnswer:
        """The gateway's answer; a fleet that is full is asked again, as it says."""
        body = self._body(question) | {"stream": True, "stream_options": {"include_usage": True}}
        path = "completions"
        if question.messages is not None:
            del body["prompt"]
            body |= {"messages": question.messages, "tools": [TOOL]}
            path = "chat/completions"
        if stop:
            body["stop"] = [stop]
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            url = f"{self._address.gateway_url}/v1/{path}"
            answer = await stream_answer(http, url, body, self._headers)
            if answer.status != _UNAVAILABLE or time.monotonic() > give_up_s:
                return answer
            await asyncio.sleep(_PAUSE_S)

    async def _one_node_alone(self, http: aiohttp.ClientSession, number: int, question: Question) -> Alone:
        """Ask one node directly, in turn; the salt keeps it from any KV it did not compute itself for this."""
        node = self._nodes[number % len(self._nodes)]
        body = self._body(question) | {"cache_salt": uuid.uuid4().hex}
        async with http.post(f"{node['url']}/v1/completions", json=body) as response:
            if response.status != 200:
                raise CommandError(f"{node['name']} answered {response.status}: {(await response.text())[:200]}")
            choice = (await response.json())["choices"][0]
        return Alone(list(choice["token_ids"]), choice["text"], choice["finish_reason"])

    def _body(self, question: Question) -> dict[str, Any]:
        return {
            "model": self._nodes[0]["model"],
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }

    def _count(self, number: int, seen: Seen, answer: TimedAnswer, text: Text, wrong: str) -> None:
        self.tally.requests += 1
        self.tally.exact += not wrong
        self.tally.tool_calls += len(answer.tool_calls)
        if seen.pipeline:
            self.tally.pipelines[seen.pipeline] += 1
        if seen.handoff_mode:
            self.tally.handoff_modes[seen.handoff_mode] += 1
        eager = answer.explanation.get("eager_tokens", 0)
        print(
            f"{number + 1:3}  {seen.pipeline or '-':8} {seen.handoff_mode or '-':9} {text:10} "
            f"{answer.input_tokens:4} in {len(answer.token_ids):4} out {eager or 0:4} eager  {wrong or 'exact'}",
            file=sys.stderr,
            flush=True,
        )


def _seen(answer: TimedAnswer) -> Seen:
    told = answer.explanation
    tokens = sum(answer.chunk_tokens)
    token_s = (answer.chunk_s[-1] - answer.chunk_s[0]) / (tokens - 1) if tokens > 1 else 0.0
    transfer_s = told.get("transfer_s") or told.get("predicted_transfer_s") or 0.0
    return Seen(
        str(told.get("pipeline") or ""),
        str(told.get("handoff_mode") or ""),
        float(transfer_s),
        token_s,
        str(told.get("reason") or ""),
    )
