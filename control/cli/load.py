"""`pdd load`: closed-loop agent sessions against any OpenAI endpoint."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from control.cli.stream_client import TimedAnswer, stream_answer
from control.domain.workload import SessionPlan, WorkloadShape, plan_session

_REQUEST_TIMEOUT_S = 600.0
_PAUSE_AFTER_FAILURE_S = 2.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What to send. `requests` and `duration_s` bound the run, whichever is reached first; None: no bound."""

    base_url: str
    model: str
    seed: int = 1
    sessions: int = 4
    requests: int | None = None
    duration_s: float | None = None
    shape: WorkloadShape = field(default_factory=WorkloadShape)
    headers: dict[str, str] = field(default_factory=dict)
    think_scale: float = 1.0


Gate = Callable[[], Awaitable[None]]


class LoadRun:
    """A number of sessions at a time, each turn sent a think time after the last answer.

    `gate` is awaited before each request and may hold it back; `on_answer` sees every answer as it ends.
    """

    def __init__(
        self,
        options: LoadOptions,
        on_answer: Callable[[TimedAnswer], None],
        gate: Gate | None = None,
    ) -> None:
        self._options = options
        self._on_answer = on_answer
        self._gate = gate
        self._started = 0
        self._stop_at_s = time.monotonic() + options.duration_s if options.duration_s else None

    async def run(self) -> None:
        """Send until a bound is reached, or until cancelled; requests under way are finished."""
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, asyncio.TaskGroup() as group:
            for worker in range(self._options.sessions):
                group.create_task(self._worker(http, worker))

    async def _worker(self, http: aiohttp.ClientSession, worker: int) -> None:
        """Sessions worker, worker + n, worker + 2n, …: the same ones for the same seed and number of workers."""
        index = worker
        stagger = Random(f"{self._options.seed}/start/{worker}")  # noqa: S311
        await self._pause(stagger.uniform(0, self._options.shape.think_s.high) * worker / self._options.sessions)
        while not self._is_over():
            # All turns of a session run under one policy, also while a roll-out tries another one.
            headers = {**self._options.headers, "X-PDD-Session": f"{self._options.seed}/{index}"}
            await self._session(http, plan_session(self._options.seed, index, self._options.shape), headers)
            index += self._options.sessions

    async def _session(self, http: aiohttp.ClientSession, plan: SessionPlan, headers: dict[str, str]) -> None:
        messages = [{"role": "system", "content": plan.system}] if plan.system else []
        for turn in plan.turns:
            await self._pause(turn.think_s)
            if self._gate:
                await self._gate()
            if self._is_over():
                return
            self._started += 1
            messages.append({"role": "user", "content": turn.message})
            answer = await stream_answer(
                http,
                f"{self._options.base_url}/chat/completions",
                self._body(messages, turn.max_output_tokens),
                headers,
            )
            self._on_answer(answer)
            if not answer.is_complete:
                await self._pause(_PAUSE_AFTER_FAILURE_S)
                return
            messages.append({"role": "assistant", "content": answer.text})

    def _body(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._options.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _pause(self, pause_s: float) -> None:
        pause_s *= self._options.think_scale
        if self._stop_at_s is not None:
            pause_s = min(pause_s, max(0.0, self._stop_at_s - time.monotonic()))
        await asyncio.sleep(pause_s)

    def _is_over(self) -> bool:
        if self._options.requests is not None and self._started >= self._options.requests:
            return True
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s


async def fetch_model(base_url: str, headers: dict[str, str]) -> str:
    """The first model the endpoint lists.

    Raises:
        aiohttp.ClientError, KeyError, IndexError: it lists none.
    """
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http,
        http.get(f"{base_url}/models", headers=headers) as response,
    ):
        response.raise_for_status()
        return str((await response.json())["data"][0]["id"])
