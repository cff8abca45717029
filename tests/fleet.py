"""Real nodes for tests: emulated ones on ephemeral loopback ports, started in a second, always stopped.

In this process and event loop (fast; also gives the node's inside)::

    async def test_something():
        async with emulated_fleet("ams-p-01", "ams-rld-01", instant_node("fra-md-01", slots=2)) as fleet:
            reply = await fleet["ams-p-01"].complete([1, 2, 3], max_tokens=4)
            fleet["ams-p-01"].url          # base of its HTTP API, for a FleetSnapshot
            fleet["ams-p-01"].node         # engine_agents.nodes.node.Node: store, leases, counters, admission

In a process of its own (for tests that kill things, or need a second core)::

    async with emulated_process([EmulatedNode(name="a"), EmulatedNode(name="b")], tmp_path) as host:
        host.urls["a"], host.process.pid

A node's name may be given alone: then it is an instant node, with 4 slots and no end of text by itself. `NodeClient`
speaks the dialect over HTTP and asserts nothing; `lease()` and `complete()` raise `NodeReplyError` on an error status.
All nodes share the model MODEL and the site secret SECRET. `prompt_of(n, seed)` makes n valid token ids.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from control.site_secret import SiteSecret
from control.tracing import Tracing
from engine_agents.nodes.dialect_app import fleet_app, node_app
from engine_agents.nodes.emulated.config import EmulatedHost, EmulatedNode
from engine_agents.nodes.emulated.engine import EmulatedChip
from engine_agents.nodes.node import Node
from engine_agents.nodes.serve import running_node, serving

MODEL = "emulated-test"
SECRET = "test-site-secret"
START_TIMEOUT_S = 20.0


class NodeReplyError(Exception):
    """A node answered with an error; `status` and `error` (OpenAI's object) say which."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.error = body.get("error", {})


@dataclass
class Streamed:
    """What a stream said: all chunks, and the parts joined."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for choice in chunk["choices"] for token in choice["token_ids"] or []]

    @property
    def text(self) -> str:
        return "".join(choice["text"] for chunk in self.chunks for choice in chunk["choices"])

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice["finish_reason"] for chunk in self.chunks for choice in chunk["choices"]]
        return next((reason for reason in reversed(reasons) if reason), None)

    @property
    def last(self) -> dict[str, Any]:
        return self.chunks[-1]


@dataclass
class NodeClient:
    """Speaks the dialect to one node."""

    url: str
    http: httpx.AsyncClient
    model: str = MODEL
    node: Node | None = None

    def body(self, prompt: Sequence[int] | str, **fields: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "temperature": 0,
            "return_token_ids": True,
            **fields,
        }

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.http.post(self.url + path, json=body)

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(self.url + path)

    async def delete(self, path: str, secret: str = SECRET) -> httpx.Response:
        return await self.http.delete(self.url + path, headers={"Authorization": f"Bearer {secret}"})

    async def complete(self, prompt: Sequence[int] | str, **fields: Any) -> dict[str, Any]:
        response = await self.post("/v1/completions", self.body(prompt, **fields))
        if response.status_code != 200:
            raise NodeReplyError(response.status_code, response.json())
        return response.json()

    async def lease(self, prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
        """Prefill here; gives the kv_transfer_params for one consumer."""
        asks = {"do_remote_decode": True, "do_remote_prefill": False}
        reply = await self.complete(prompt, max_tokens=1, kv_transfer_params=asks, **fields)
        return reply["kv_transfer_params"]

    @asynccontextmanager
    async def open_stream(
        self, prompt: Sequence[int] | str, **fields: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The chunks as they come; leaving the context closes the connection."""
        body = self.body(prompt, stream=True, **fields)
        async with self.http.stream("POST", self.url + "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise NodeReplyError(response.status_code, json.loads(await response.aread()))
            yield _chunks(response)

    async def stream(self, prompt: Sequence[int] | str, **fields: Any) -> Streamed:
        """The whole stream, usage chunk included."""
        streamed = Streamed()
        async with self.open_stream(prompt, stream_options={"include_usage": True}, **fields) as chunks:
            async for chunk in chunks:
                streamed.chunks.append(chunk)
        streamed.is_done = True
        return streamed

    async def info(self) -> dict[str, Any]:
        return (await self.get("/pdd/v1/node")).json()

    async def is_idle(self, within_s: float = 60.0) -> bool:
        """Whether the node comes to rest (nothing running, waiting or pulling) within a generous time."""
        deadline = asyncio.get_running_loop().time() + within_s
        while asyncio.get_running_loop().time() < deadline:
            info = await self.info()
            load = (await self.get("/load")).json()["server_load"]
            if not (info["running"] or info["waiting"] or info["pulling"] or load):
                return True
            await asyncio.sleep(0.02)
        return False


async def _chunks(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Parsed events up to [DONE]; a stream that ends without it is an error."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise ConnectionError("the stream ended without [DONE]")


def instant_node(name: str, *, queue_limit: int = 256, **chip: Any) -> EmulatedNode:
    """A node that takes no time and never ends a text by itself, but for what its chip is said to do."""
    return EmulatedNode(name, EmulatedChip(**{"eos_period": 0, **chip}), MODEL, queue_limit=queue_limit)


def prompt_of(count: int, seed: int = 0) -> list[int]:
    """Token ids of readable bytes, the same for the same arguments."""
    return random.Random(f"{seed}").choices(range(97, 123), k=count)


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    """A client without proxies or a pool limit that could make a test wait for itself."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(timeout=60.0, limits=limits, trust_env=False) as client:
        yield client


@asynccontextmanager
async def emulated_fleet(
    *nodes: EmulatedNode | str, tracing: Tracing | None = None
) -> AsyncIterator[dict[str, NodeClient]]:
    """Nodes in this event loop, all behind one port under /nodes/<name>."""
    specs = [node if isinstance(node, EmulatedNode) else instant_node(node) for node in nodes]
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client())
        running = [await stack.enter_async_context(running_node(spec.spec(MODEL))) for spec in specs]
        app = fleet_app({node.name: node_app(node, SiteSecret(SECRET), tracing=tracing) for node in running})
        port = await stack.enter_async_context(serving(app, host="127.0.0.1", port=0))
        yield {
            node.name: NodeClient(f"http://127.0.0.1:{port}/nodes/{node.name}", http, node.engine.model, node)
            for node in running
        }


@dataclass
class EmulatedProcess:
    """A child process that hosts nodes."""

    process: asyncio.subprocess.Process
    urls: dict[str, str]


@asynccontextmanager
async def emulated_process(
    nodes: Sequence[EmulatedNode | str], folder: Path, port: int = 0
) -> AsyncIterator[EmulatedProcess]:
    """The same in a child process, ended by SIGTERM, and by SIGKILL if that takes too long."""
    specs = [node if isinstance(node, EmulatedNode) else instant_node(node) for node in nodes]
    config = folder / f"nodes-{random.getrandbits(32):08x}.json"
    config.write_bytes(msgspec.json.encode(EmulatedHost(specs, port=port, model=MODEL)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine_agents.nodes.emulated", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PDD_SITE_SECRET": SECRET},
        cwd=Path(__file__).parents[1],
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            urls = [await _ready_url(process) for _ in specs]
        yield EmulatedProcess(process, {url.rsplit("/", 1)[1]: url for url in urls})
    finally:
        await _stop(process)


async def _ready_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if line.startswith("ready "):
            return line.split()[1]
    raise ConnectionError("the process ended before its nodes were ready")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(10):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
