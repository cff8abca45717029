"""Handing 100 eager tokens from RLD to MD: by ids, which MD computes again, and by KV, over a shaky shared link.

Run: `python -m benchmarks.bench_handoff` (about 4 minutes). The last line is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.small_fleet import SmallFleet, running_fleet, say, tell_if_busy
from control.cli.fleet_plan import LINK, MODEL, ROUND_TRIP_S, SITE_B, Engine
from control.domain.topology import Node, Role
from control.domain.workload import message_text

EAGER_TOKENS = 100
# Whole blocks, so that the missing KV is that of the eager tokens and of nothing else.
BLOCK_TOKENS = 64
PROMPT_TOKENS = 4 * BLOCK_TOKENS
DEFAULT_REPETITIONS = 20
# One flow takes 12 of 40 Mbit/s, so up to three leave ours alone; each burst has as many as eight, for long enough to
# catch one handoff or miss it.
CROSS_FLOWS = (0, 8)
CROSS_BURST_S = (0.3, 2.5)
JITTER_EVERY_S = 0.25
# Round trips of a busy path: mostly a little above the idle one, now and then several times it.
JITTER_SIGMA = 0.6
MAX_ROUND_TRIP_S = 0.3
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Handoff:
    """One handoff: from the order to MD's first token, both at RLD's site."""

    seconds: float
    sent_bytes: int
    computed_tokens: int
    is_exact: bool


async def jitter(fleet: SmallFleet, http: aiohttp.ClientSession, rng: Random) -> None:
    """Change the link's round trip until cancelled."""
    while True:
        rtt_s = min(MAX_ROUND_TRIP_S, ROUND_TRIP_S * rng.lognormvariate(0.0, JITTER_SIGMA))
        await fleet.change_link(http, rtt_s=rtt_s)
        await asyncio.sleep(JITTER_EVERY_S)


async def cross_traffic(fleet: SmallFleet, source_port: int, rng: Random) -> None:
    """Bursts of other transfers over the same link until cancelled."""
    while True:
        flows, burst_s = rng.randint(*CROSS_FLOWS), rng.uniform(*CROSS_BURST_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(burst_s), asyncio.TaskGroup() as group:
                for _ in range(flows):
                    group.create_task(_drain(fleet, source_port))
                await asyncio.sleep(burst_s)


async def _drain(fleet: SmallFleet, source_port: int) -> None:
    async with through_link(fleet, "127.0.0.1", source_port, "cross") as (reader, _):
        while await reader.read(_CHUNK_BYTES):
            pass


@asynccontextmanager
async def zeros() -> AsyncIterator[int]:
    """A port that sends zeros to whoever connects."""

    async def feed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(_CHUNK_BYTES))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(feed, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def through_link(
    fleet: SmallFleet, host: str, port: int, pipeline: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection across the link, already open as a kept one would be."""
    link = fleet.snapshot.links[0]
    reader, writer = await asyncio.open_connection(link.relay_host, link.relay_port)
    try:
        preamble = {"link": LINK, "target": f"{host}:{port}", "transfer_id": uuid.uuid4().hex, "pipeline": pipeline}
        writer.write(json.dumps(preamble).encode() + b"\n")
        answer = json.loads(await reader.readline())
        assert answer["ok"], answer
        yield reader, writer
    finally:
        writer.transport.abort()


async def post_across(fleet: SmallFleet, node: Node, body: dict[str, Any]) -> tuple[dict[str, Any], float, int]:
    """A completion asked of a node at the other end of the link: the reply, seconds, and bytes of the request."""
    address = urlsplit(node.url)
    assert address.port is not None
    data = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST {address.path}/v1/completions HTTP/1.1\r\nHost: {node.name}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    ).encode()
    async with through_link(fleet, "127.0.0.1", address.port, "order") as (reader, writer):
        began_s = time.perf_counter()
        writer.write(head + data)
        reply = await reader.read()
        took_s = time.perf_counter() - began_s
    status, _, content = reply.partition(b"\r\n\r\n")
    assert status.split()[1] == b"200", reply[:300]
    document: dict[str, Any] = json.loads(content)
    return document, took_s, len(head) + len(data)


class HandoffBench:
    """Makes eager tokens on RLD and hands them to MD, either way."""

    def __init__(self, fleet: SmallFleet, http: aiohttp.ClientSession, seed: int) -> None:
        self._fleet = fleet
        self._http = http
        self._seed = seed
        self._relay, self._main = fleet.node(Role.RELAY), fleet.node(Role.MAIN)
        self._system: list[int] = []

    async def prompt(self, repetition: int) -> list[int]:
        """A prompt whose last block is new, with its KV on RLD and on MD, as it is when a handoff comes."""
        if not self._system:
            self._system = await self._tokens("system", PROMPT_TOKENS - BLOCK_TOKENS)
        prompt = self._system + await self._tokens(f"prompt/{repetition}", BLOCK_TOKENS)
        lease = await self._lease(prompt)
        await self._post(self._main, self._body(prompt, 1) | {"kv_transfer_params": lease["kv_transfer_params"]})
        return prompt

    async def eager_tokens(self, prompt: list[int]) -> list[int]:
        """What RLD says next."""
        reply = await self._post(self._relay, self._body(prompt, EAGER_TOKENS))
        ids: list[int] = reply["choices"][0]["token_ids"]
        assert len(ids) == EAGER_TOKENS
        return ids

    async def by_ids(self, sequence: list[int]) -> Handoff:
        """MD gets all token ids and computes the KV of the eager ones."""
        expected = await self._lease(sequence)
        await self._release(expected)
        reply, seconds, sent_bytes = await post_across(self._fleet, self._main, self._body(sequence, 1))
        return self._handoff(reply, expected, seconds, sent_bytes)

    async def by_kv(self, sequence: list[int]) -> Handoff:
        """MD pulls the blocks it lacks from RLD, through the link, and goes on from them."""
        lease = await self._lease(sequence)
        link = self._fleet.snapshot.links[0]
        via = {
            "host": link.relay_host,
            "port": link.relay_port,
            "link": link.name,
            "transfer_id": uuid.uuid4().hex,
            "pipeline": "relay",
        }
        body = self._body(sequence, 1) | {"kv_transfer_params": {**lease["kv_transfer_params"], "via": via}}
        before = await self._pulled_bytes()
        reply, seconds, _ = await post_across(self._fleet, self._main, body)
        pulled = reply["pdd"]["pulled_tokens"]
        assert pulled == EAGER_TOKENS, f"{pulled} tokens were pulled"
        return self._handoff(reply, lease, seconds, await self._pulled_bytes() - before)

    def _handoff(self, reply: dict[str, Any], expected: dict[str, Any], seconds: float, sent_bytes: int) -> Handoff:
        same = reply["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
        return Handoff(seconds, sent_bytes, reply["pdd"]["computed_tokens"], same)

    async def _pulled_bytes(self) -> int:
        """All KV that has crossed the link for us, frames included."""
        link = await self._fleet.fetch_link(self._http)
        return int(link["bytes_by_pipeline"].get("relay", 0))

    async def _tokens(self, name: str, count: int) -> list[int]:
        rng = Random(f"{self._seed}/{name}")
        text = f"{rng.randrange(10**9)} {message_text(rng, 2 * count)}"
        async with self._http.post(f"{self._relay.url}/tokenize", json={"model": MODEL, "prompt": text}) as response:
            tokens: list[int] = (await response.json())["tokens"]
        assert len(tokens) >= count
        return tokens[:count]

    async def _lease(self, prompt: list[int]) -> dict[str, Any]:
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        return await self._post(self._relay, self._body(prompt, 1) | {"kv_transfer_params": params})

    async def _release(self, lease: dict[str, Any]) -> None:
        url = f"{self._relay.url}/pdd/v1/leases/{lease['kv_transfer_params']['remote_request_id']}"
        async with self._http.delete(url, headers=self._fleet.authorization) as response:
            response.raise_for_status()

    async def _post(self, node: Node, body: dict[str, Any]) -> dict[str, Any]:
        async with self._http.post(f"{node.url}/v1/completions", json=body) as response:
            reply: dict[str, Any] = await response.json()
            assert response.status == 200, reply
        return reply

    def _body(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }


def summarise(handoffs: Sequence[Handoff]) -> dict[str, Any]:
    """Bytes that crossed, and mean, maximum and standard deviation in seconds."""
    seconds = [handoff.seconds for handoff in handoffs]
    return {
        "bytes": round(statistics.fmean(handoff.sent_bytes for handoff in handoffs)),
        "mean_s": round(statistics.fmean(seconds), 4),
        "max_s": round(max(seconds), 4),
        "sigma_s": round(statistics.stdev(seconds), 4),
        "computed_tokens": round(statistics.fmean(handoff.computed_tokens for handoff in handoffs), 1),
        "exact": sum(handoff.is_exact for handoff in handoffs),
    }


async def run(engine: Engine, seed: int, repetitions: int) -> dict[str, Any]:
    """Alternate both ways on one fleet while the link shakes."""
    found: dict[str, list[Handoff]] = {"ids": [], "kv": []}
    roles = (Role.RELAY, Role.MAIN)
    async with (
        running_fleet(engine, main_site=SITE_B, roles=roles, with_gateway=False) as fleet,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http,
        zeros() as source_port,
    ):
        bench = HandoffBench(fleet, http, seed)
        async with asyncio.TaskGroup() as group:
            noise = [
                group.create_task(jitter(fleet, http, Random(f"{seed}/jitter"))),
                group.create_task(cross_traffic(fleet, source_port, Random(f"{seed}/cross"))),
            ]
            for repetition in range(2 * repetitions):
                prompt = await bench.prompt(repetition)
                sequence = prompt + await bench.eager_tokens(prompt)
                way, hand_over = ("kv", bench.by_kv) if repetition % 2 else ("ids", bench.by_ids)
                handoff = await hand_over(sequence)
                found[way].append(handoff)
                say(f"{repetition + 1:3} {way:3} {handoff.seconds:6.3f} s {handoff.sent_bytes:9} bytes")
            for task in noise:
                task.cancel()
    return {
        "tokens": EAGER_TOKENS,
        "repetitions": repetitions,
        **{way: summarise(handoffs) for way, handoffs in found.items()},
        "seed": seed,
    }


def main() -> int:
    """Print the report; 1 where a handoff changed the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=DEFAULT_REPETITIONS, help="of each way, at least 2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", type=Engine, choices=list(Engine), default=Engine.LLAMA)
    arguments = parser.parse_args()
    tell_if_busy()
    found = asyncio.run(run(arguments.engine, arguments.seed, max(2, arguments.repetitions)))
    print(json.dumps(found))
    return 0 if all(found[way]["exact"] == found["repetitions"] for way in ("ids", "kv")) else 1


if __name__ == "__main__":
    sys.exit(main())
