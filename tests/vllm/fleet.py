"""A gateway before three stock vLLM instances, and what it says beside what one instance alone says."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot, Link, Node, Role, Site
from control.site_secret import SiteSecret
from engine_agents.gateway.gateway import Gateway
from engine_agents.gateway.server import running_gateway
from tests.fleet import SECRET
from tests.gateways import Answered, KeptStream, serving_gateway
from tests.vllm.instances import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, MODEL_NAME, Instance, complete, running_instances
from tests.vllm.slow_wan import SlowWan, slow_wan

NAMES = {Role.PREFILL: "ams-p-01", Role.RELAY: "ams-rld-01", Role.MAIN: "fra-md-01"}
SETTLE_S = 20.0
WORDS = ["badu", "foki", "gesa", "lomi", "na\u00efve", "\u043c\u043e\u0441\u0442", "\u6cb3", "\U0001f600", "123", "\n"]


@dataclass(frozen=True)
class Case:
    """One request: how long its prompt is, when MD's pull may start, and what else is asked.

    `eager_tokens` is how many the relay makes before, whatever the speed of the machine.
    """

    tokens: int
    eager_tokens: int = 0
    delay_s: float = 0.0
    max_tokens: int = 100
    ends_itself: bool = False
    has_stop: bool = False
    is_chat: bool = False


@dataclass(frozen=True)
class Outcome:
    """An answer through the gateway and the answer that it must equal."""

    ids: list[int]
    text: str
    finish: str
    expected_ids: list[int]
    expected_text: str
    expected_finish: str
    explained: dict[str, Any]
    error: dict[str, Any]

    @property
    def is_exact(self) -> bool:
        """Whether both are the same; a stop string may leave ids of the chunk that it was found in."""
        same_ids = self.ids == self.expected_ids or (self.finish == "stop" and not self.expected_ids)
        return same_ids and (self.text, self.finish) == (self.expected_text, self.expected_finish)


@dataclass
class VllmFleet:
    """The running fleet."""

    url: str
    gateway: Gateway
    instances: dict[Role, Instance]
    wan: SlowWan
    http: httpx.AsyncClient
    revisions: itertools.count = field(default_factory=lambda: itertools.count(1))
    salts: itertools.count = field(default_factory=itertools.count)

    async def configure(self, changes: dict[str, Any]) -> None:
        """Run on the default policy with changes."""
        fleet = FleetSnapshot(
            sites=(Site("ams"), Site("fra")),
            nodes=tuple(
                Node(
                    NAMES[role],
                    NAMES[role][:3],
                    role,
                    self.wan.url if role is Role.MAIN else instance.url,
                    "vllm",
                    MODEL_NAME,
                )
                for role, instance in self.instances.items()
            ),
            links=(Link("ams-fra", "ams", "fra", 5e6, 0.002),),
            model=MODEL_NAME,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            block_tokens=BLOCK_TOKENS,
        )
        policy = apply_changes(DEFAULT_POLICY_DOCUMENT, {**changes, "routing.relay_load_ceiling": 1.0})
        document = {"revision": next(self.revisions), "policy": policy, "fleet": fleet.to_document()}
        headers = {"Authorization": f"Bearer {SECRET}"}
        response = await self.http.put(f"{self.url}/admin/v1/config", json=document, headers=headers)
        assert response.status_code == 200, response.text

    async def run(self, case: Case, seed: int) -> Outcome:
        """Ask one instance alone, then the gateway."""
        messages = _messages(case, seed) if case.is_chat else None
        return await self.compare(await self.prompt_of(case, seed), case, messages)

    async def compare(self, prompt: list[int], case: Case, messages: list[dict[str, str]] | None = None) -> Outcome:
        """Ask one instance alone, then the gateway, for the same prompt; `messages` are what it was rendered from."""
        self.wan.delay_s = case.delay_s
        asked: dict[str, Any] = {"max_tokens": case.max_tokens, "ignore_eos": not case.ends_itself}
        alone = (await self.alone(prompt, **asked))["choices"][0]
        ids, text, finish = alone["token_ids"], alone["text"], alone["finish_reason"]
        if case.has_stop:
            stop = text[len(text) // 2 :][:3]
            asked["stop"], ids, text, finish = stop, [], text[: text.index(stop)], "stop"
        answer = await self.ask(prompt, messages, eager_tokens=case.eager_tokens, **asked)
        return Outcome(
            answer.token_ids, answer.text, answer.finish_reason or "", ids, text, finish, answer.explained, answer.error
        )

    async def alone(self, prompt: list[int], **asked: Any) -> dict[str, Any]:
        """The answer of one instance that uses nothing it has cached."""
        salt = f"alone-{next(self.salts)}"
        return await complete(self.http, self.instances[Role.MAIN], prompt, cache_salt=salt, **asked)

    async def ask(
        self, prompt: list[int], messages: list[dict[str, str]] | None = None, *, eager_tokens: int = 0, **asked: Any
    ) -> Answered:
        """A streamed answer of the gateway to its end; no pull starts before it has so many tokens."""
        if eager_tokens:
            self.wan.gate.clear()
        try:
            async with self.open_stream(prompt, messages, **asked) as (answer, chunks):
                async for _ in chunks:
                    if len(answer.token_ids) >= eager_tokens:
                        self.wan.gate.set()
        finally:
            self.wan.gate.set()
        return answer

    @asynccontextmanager
    async def open_stream(
        self, prompt: list[int], messages: list[dict[str, str]] | None = None, **asked: Any
    ) -> AsyncIterator[tuple[Answered, AsyncIterator[None]]]:
        """A streamed answer as it grows; leaving the context closes the connection."""
        body = {"model": MODEL_NAME, "temperature": 0, "stream": True, "return_token_ids": True, **asked}
        body |= {"prompt": prompt} if messages is None else {"messages": messages}
        path = "/v1/completions" if messages is None else "/v1/chat/completions"
        headers = {"X-PDD-Explain": "1"}
        async with self.http.stream("POST", self.url + path, json=body, headers=headers) as response:
            answer = Answered(response.status_code, dict(response.headers))
            yield answer, _chunks(answer, response)

    async def prompt_of(self, case: Case, seed: int) -> list[int]:
        """Token ids that no other case has."""
        if case.is_chat:
            asked: dict[str, Any] = {"messages": _messages(case, seed), "add_generation_prompt": True}
        else:
            asked = {"prompt": _text(case.tokens, seed)}
        body = {"model": MODEL_NAME, **asked}
        tokens = (await self.http.post(f"{self.instances[Role.PREFILL].url}/tokenize", json=body)).json()["tokens"]
        return tokens if case.is_chat else tokens[: case.tokens]

    async def figure(self, role: Role, name: str) -> float:
        """The sum of one metric over its labels."""
        text = (await self.http.get(f"{self.instances[role].url}/metrics")).text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)

    async def is_at_rest(self) -> bool:
        """Whether gateway and instances come to rest within a generous time."""
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while asyncio.get_running_loop().time() < deadline:
            running = [await self.figure(role, "vllm:num_requests_running") for role in Role]
            state = self.gateway.state.snapshot()
            held = [*state["nodes"].values(), state["requests_in_flight"], state["leases"], state["transfers"]]
            if not any(running) and not any(held):
                return True
            await asyncio.sleep(0.1)
        return False


async def _chunks(answer: Answered, response: httpx.Response) -> AsyncIterator[None]:
    if response.status_code != 200:
        answer.error = json.loads(await response.aread())["error"]
        return
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            document = json.loads(line.removeprefix("data: "))
            for choice in document.get("choices", ()):
                choice.setdefault("text", choice.get("delta", {}).get("content", ""))
            answer.take(document)
            yield


def _messages(case: Case, seed: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": _text(case.tokens // 2, seed)}]


def _text(count: int, seed: int) -> str:
    chosen = random.Random(f"{seed}/{count}").choices(WORDS, k=count)
    return " ".join([f"Case {seed}:", *chosen])


@asynccontextmanager
async def vllm_fleet(folder: Path) -> AsyncIterator[VllmFleet]:
    """The whole fleet, configured to nothing yet; logs and the gateway's data go to the folder."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=120.0, trust_env=False, limits=limits))
        instances = await stack.enter_async_context(running_instances(folder, http))
        wan = await stack.enter_async_context(slow_wan(instances[Role.MAIN].url))
        gateway = await stack.enter_async_context(
            running_gateway("ams-gw-01", "ams", data_dir=folder, site_secret=SiteSecret(SECRET), stream=KeptStream())
        )
        url = await stack.enter_async_context(serving_gateway(gateway))
        yield VllmFleet(url, gateway, instances, wan, http)
