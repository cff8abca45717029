"""Telemetry as two sites would send it, without them: records, samples, and an hour of ticks in a minute."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis

from control.telemetry.records import (
    BATCH_FIELD,
    SAMPLES_STREAM,
    LinkSample,
    NodeSample,
    RequestBatch,
    RequestRecord,
    SampleBatch,
    StageTime,
)
from control.telemetry.windows import LiveWindows
from engine_agents.gateway.spool import Spool
from engine_agents.gateway.telemetry import Publisher, RedisStream

SITES = ("ams", "fra")
PROMISED = {"default": (2.0, 5.0, 0.1), "gold": (1.0, 2.0, 0.05)}
_STAGES = ("tokenize", "queue", "prefill", "kv_rdma", "kv_wan", "relay_decode", "handoff", "main_decode")


def record(rng: random.Random, number: int, ended_at_s: float, *, site: str = "ams") -> RequestRecord:
    """A request as agents make them: mostly warm, now and then cold and through relay decode."""
    is_cold = rng.random() < 0.2
    ttft_s = min(rng.lognormvariate(0.0 if is_cold else -1.2, 0.7), 60.0)
    output_tokens = rng.randint(20, 400)
    e2e_s = ttft_s + 0.02 * output_tokens
    step_s = e2e_s / len(_STAGES)
    return RequestRecord(
        request_id=f"{number:032x}",
        gateway=f"{site}-gw-01",
        site=site,
        received_at_s=ended_at_s - e2e_s,
        model="model-70b",
        pipeline="relay" if is_cold else "direct",
        reason="transfer_long" if is_cold else "hit_rate_high",
        outcome="failed" if rng.random() < 0.002 else "completed",
        status=200,
        policy_revision=7,
        tenant=f"tenant-{number % 9}",
        service_class="gold" if number % 5 == 0 else "default",
        prefill_node=f"{site}-p-0{number % 8}",
        relay_node=f"{site}-rld-01" if is_cold else "",
        main_node=f"fra-md-0{number % 6}",
        link="ams-fra",
        input_tokens=64_000,
        output_tokens=output_tokens,
        eager_tokens=output_tokens // 4 if is_cold else 0,
        max_output_tokens=1024,
        predicted_prefix_tokens=60_000,
        cached_tokens=rng.randint(20_000, 57_000) if is_cold else rng.randint(58_000, 64_000),
        drc_resident_tokens=59_000,
        uncached_tokens=5_000,
        predicted_transfer_s=0.4,
        transfer_s=rng.lognormvariate(-1.0, 0.6),
        pulled_tokens=5_000,
        pulled_bytes=250_000_000,
        handoff_mode="one_shot" if is_cold else "",
        handoff_stall_s=0.3 if is_cold else None,
        ttft_s=ttft_s,
        ttst_s=ttft_s + 0.02,
        tpot_s=0.02,
        max_itl_s=0.08,
        e2e_s=e2e_s,
        gateway_overhead_s=0.001,
        relay_utilization=0.3,
        stages=tuple(StageTime(name, step_s * index, step_s * (index + 1)) for index, name in enumerate(_STAGES)),
        output_bound_tokens=1024,
        output_bound_source="client",
    )


def samples(site: str, sequence: int, at_s: float) -> SampleBatch:
    """What the observer of a site would send: twelve nodes, one link."""
    nodes = tuple(
        NodeSample(f"{site}-{role}-0{index}", site, role, "ready", index, 0, 8, 10_000, 100_000)
        for role in ("prefill", "relay", "main")
        for index in range(4)
    )
    sent = 40_000_000 * sequence
    link = LinkSample(
        f"{site}-out", site, "far", 125_000_000.0, 0.03, sent, {"direct": sent // 2, "relay": sent - sent // 2}, 6
    )
    return SampleBatch(f"{site}-observer", site, 1, sequence, at_s, nodes, (link,))


class FakeFleet:
    """Sends records of `rps` requests a second and samples of both sites until it is stopped."""

    def __init__(self, redis_url: str, folder: Path, rps: float) -> None:
        self._url = redis_url
        self._rps = rps
        self._rng = random.Random(5)
        self.sent = 0
        self._publishers = {
            site: Publisher(
                f"{site}-gw-01",
                site,
                stream=RedisStream(redis_url, site),
                spool=Spool(folder / f"spool-{site}"),
                vitals=lambda: (7, 3),
            )
            for site in SITES
        }

    def end_request(self, site: str = "ams") -> float:
        """A request sends its last token now; gives back when that was, Unix seconds."""
        ended_at_s = time.time()
        self._publishers[site].add(record(self._rng, self.sent, ended_at_s, site=site))
        self.sent += 1
        return ended_at_s

    async def run(self) -> None:
        """Send for ever."""
        sending = [publisher.run() for publisher in self._publishers.values()]
        await asyncio.gather(*sending, self._end_requests(), self._observe())

    async def _end_requests(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(self._rps))
            self.end_request(self._rng.choice(SITES))

    async def _observe(self) -> None:
        async with Redis.from_url(self._url) as redis:
            sequence = 0
            while True:
                for site in SITES:
                    data = msgspec.msgpack.encode(samples(site, sequence, time.time()))
                    await redis.xadd(SAMPLES_STREAM.format(site=site), {BATCH_FIELD: data})
                sequence += 1
                await asyncio.sleep(1.0)


def ticks(count: int, start_s: float, rps: int = 6) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Ticks and snapshots of so many seconds of traffic, as a consumer would have made them."""
    windows, rng = LiveWindows(), random.Random(6)
    for second in range(count):
        now_s = start_s + second
        for site in SITES:
            records = tuple(record(rng, second * rps + index, now_s - 0.5, site=site) for index in range(rps // 2))
            gateway = f"{site}-gw-01"
            batch = RequestBatch(
                gateway, site, 1, second, now_s, records, 7, 0, 3, *PROMISED["default"], class_objectives=PROMISED
            )
            windows.take_requests(batch, now_s)
            windows.take_samples(samples(site, second, now_s), now_s)
        tick = windows.tick(now_s)
        windows.forget_new()
        yield tick, windows.snapshot(now_s) if second % 100 == 0 else {}
