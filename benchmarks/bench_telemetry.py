"""Telemetry from a gateway's last token to a pixel: how much, how fast, at what cost. Real Valkey, SQLite and Chromium.

`make bench-telemetry` prints one JSON document. Shares are of one core; freshness runs from the end of a request to the
frame in which a tile has counted it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from playwright.async_api import Page, async_playwright
from redis.asyncio import Redis

from benchmarks.small_fleet import say, tell_if_busy
from benchmarks.telemetry_load import PROMISED, SITES, FakeFleet, record, ticks
from control.cli.browser import find_chromium
from control.cli.fleet_plan import Engine, FleetOptions, plan_fleet, port_names
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.services.access import Role
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.store.migrate import upgrade_schema
from control.store.session import open_database
from control.telemetry.ingest import Consumer, calm_collector, connect
from control.telemetry.records import (
    BATCH_FIELD,
    LIVE_SNAPSHOT_KEY,
    LIVE_STREAM,
    REQUESTS_STREAM,
    TICK_FIELD,
    RequestBatch,
)
from tests.processes import running_process, running_valkey
from tests.services import free_port

PARTS = ("throughput", "page", "clients", "heap")
BATCH_RECORDS = 250
ROUND_BATCHES = 400
ROUNDS = 3
FRESH_PROBES = 100
PAGE_SECONDS = 30
CLIENTS = 2000
CONNECTING = 20
CLIENT_SECONDS = 20
HEAP_TICKS = 2000
WARM_TICKS = 1000  # the page keeps 900 s
TICKS_PER_S = 40
FLEET_RPS = 20.0
TOKEN = "bench"  # noqa: S105 - of a database that is gone afterwards

# Called whenever the tile's text changes; the frame after the next is the first that surely shows it.
WATCH = """
() => {
  window.seen = [];
  const tile = document.querySelector('#tile-served');
  new MutationObserver(() => {
    const counts = tile.textContent.match(/([\\d  ,.]+) requests/);
    const count = counts ? Number(counts[1].replace(/\\D/g, '')) : null;
    requestAnimationFrame(() => requestAnimationFrame(() => window.seen.push([count, Date.now() / 1000])));
  }).observe(tile, { childList: true, characterData: true, subtree: true });
}
"""


@dataclass(frozen=True, slots=True)
class Plane:
    """A dashboard's process that serves."""

    url: str
    pid: int
    key: str


async def main(parts: Collection[str]) -> None:
    """Measure one part after the other, and print what was found."""
    tell_if_busy()
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no Chromium is installed: `make browser` says what is missing")
    report: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as name:
        folder = Path(name)
        if "throughput" in parts:
            with running_valkey(folder) as url:
                report["records_per_s_per_core"] = round(await measure_throughput(url, folder))
            say(f"throughput: {report['records_per_s_per_core']:,} records/s per core")
        if "page" in parts or "clients" in parts:
            with running_valkey(folder) as url, running_plane(folder, url) as plane:
                async with fleet_running(url, folder) as fleet:
                    report |= await measure_live(chromium, plane, fleet, parts)
        if "heap" in parts:
            with running_valkey(folder) as url, running_plane(folder, url, with_consumer=False) as plane:
                report["heap_growth_ratio"] = round(await measure_heap(chromium, plane, url), 3)
    print(json.dumps(report))


async def measure_live(chromium: str, plane: Plane, fleet: FakeFleet, parts: Collection[str]) -> dict[str, float]:
    """What a browser sees and costs, and what many of them cost."""
    report: dict[str, float] = {}
    if "page" in parts:
        async with browsing(chromium, plane) as page:
            report["freshness_p99_s"] = round(await measure_freshness(page, fleet), 3)
            say(f"freshness: P99 {report['freshness_p99_s']:.2f} s")
            report["live_page_cpu_share"] = round(await measure_page(page), 4)
            say(f"Live page: {report['live_page_cpu_share']:.1%} of a core")
    if "clients" in parts:
        core_share, tick_bytes, clients = await measure_clients(plane)
        report |= {"sse_clients": clients, "sse_core_share": round(core_share, 4), "tick_bytes": round(tick_bytes)}
        say(f"{clients} clients: {core_share:.1%} of a core")
    return report


async def measure_throughput(url: str, folder: Path) -> float:
    """Records a second and core through stream, decoding, windows, rollups and kept requests into SQL."""
    calm_collector()  # as the consumer's process does
    database = open_database(f"sqlite:///{folder / 'throughput.sqlite3'}")
    upgrade_schema(database)
    async with connect(url) as redis:
        consumer = Consumer(redis, SITES, database=database)
        assert consumer.rollups is not None
        await consumer.replay()
        await consumer.rollups.keep_step(redis, consumer.last_ids)
        rng, cpu_s, sequence = random.Random(1), 0.0, 0
        for _ in range(ROUNDS):
            for _ in range(ROUND_BATCHES):
                sequence += 1
                await redis.xadd(REQUESTS_STREAM.format(site=SITES[sequence % 2]), {BATCH_FIELD: _batch(rng, sequence)})
            began_s = time.process_time()
            await consumer.replay()
            await consumer.rollups.keep_step(redis, consumer.last_ids)
            cpu_s += time.process_time() - began_s
        records = ROUNDS * ROUND_BATCHES * BATCH_RECORDS
        assert consumer.counts.records == records
        assert not consumer.windows.dropped
    database.engine.dispose()
    return records / cpu_s


def _batch(rng: random.Random, sequence: int) -> bytes:
    site, now_s = SITES[sequence % 2], time.time()
    first = sequence * BATCH_RECORDS
    records = tuple(record(rng, first + index, now_s - rng.random(), site=site) for index in range(BATCH_RECORDS))
    batch = RequestBatch(
        f"{site}-gw-01", site, 1, sequence, now_s, records, 7, 0, 9, *PROMISED["default"], class_objectives=PROMISED
    )
    return msgspec.msgpack.encode(batch)


@contextlib.contextmanager
def running_plane(folder: Path, redis_url: str, *, with_consumer: bool = True) -> Iterator[Plane]:
    """The dashboard's process and the consumer on a fresh database."""
    with tempfile.TemporaryDirectory(dir=folder) as name, contextlib.ExitStack() as stack:
        data, port = Path(name), free_port()
        environment = {
            "PDD_DATA_DIR": str(data),
            "PDD_REDIS_URL": redis_url,
            "PDD_DATABASE_URL": f"sqlite:///{data / 'pdd.sqlite3'}",
            "PDD_SESSION_SECRET": "bench",
        }
        key = _prepare(environment["PDD_DATABASE_URL"], data)
        log = stack.enter_context((data / "log").open("wb"))
        argv = [sys.executable, "-m", "webapp", "--port", str(port)]
        web = stack.enter_context(running_process(argv, log, environment))
        if with_consumer:
            sites = [part for site in SITES for part in ("--site", site)]
            argv = [sys.executable, "-m", "control.telemetry.ingest", *sites]
            stack.enter_context(running_process(argv, log, environment))
        while b"ready http" not in (data / "log").read_bytes():
            time.sleep(0.1)
        yield Plane(f"http://127.0.0.1:{port}", web.pid, key)


def _prepare(database_url: str, data: Path) -> str:
    database = open_database(database_url)
    upgrade_schema(database)
    plane = ControlPlane(database, lambda _: None)
    ports = {name: 20_000 + index for index, name in enumerate(port_names(Engine.EMULATED))}
    seed_fleet(plane, plan_fleet(FleetOptions(data, Engine.EMULATED), ports), "bench")
    found_policy(plane, "bench", DEFAULT_POLICY_DOCUMENT, "first start")
    ensure_admin(plane)
    ensure_token(plane, "bench", Role.VIEWER, TOKEN)
    key = issue_login_key(plane)
    database.engine.dispose()
    return key


@contextlib.asynccontextmanager
async def fleet_running(url: str, folder: Path) -> AsyncIterator[FakeFleet]:
    """Traffic of a fleet of two sites."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        fleet = FakeFleet(url, Path(name), FLEET_RPS)
        task = asyncio.create_task(fleet.run())
        try:
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def browsing(chromium: str, plane: Plane) -> AsyncIterator[Page]:
    """A signed-in Live page."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        )
        # What waits in the page for a figure is evaluated text, which the page's own policy refuses.
        page = await browser.new_page(viewport={"width": 1440, "height": 900}, locale="en", bypass_csp=True)
        page.set_default_timeout(60_000)
        await page.goto(f"{plane.url}/login?key={plane.key}")
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_selector("#tile-served")
        yield page
        await browser.close()


async def measure_freshness(page: Page, fleet: FakeFleet) -> float:
    """P99 of the seconds from a request's last token to the frame that has counted it."""
    await page.wait_for_function("/requests/.test(document.querySelector('#tile-served').textContent)")
    await page.evaluate(WATCH)
    rng = random.Random(2)
    ended: list[tuple[int, float]] = []
    while len(ended) < FRESH_PROBES:
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        at_s = fleet.end_request()
        ended.append((fleet.sent, at_s))
    await page.wait_for_function(f"window.seen.some(([count]) => count >= {ended[-1][0]})")
    seen: list[tuple[int | None, float]] = await page.evaluate("window.seen")
    delays = [
        min(at_s for count, at_s in seen if count is not None and count >= number) - ended_at_s
        for number, ended_at_s in ended
    ]
    return float(np.quantile(delays, 0.99))


async def measure_page(page: Page) -> float:
    """Share of a core that the main thread of the page takes: processor time, not time in tasks."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    began_s, before = time.monotonic(), await _metrics(session)
    await asyncio.sleep(PAGE_SECONDS)
    after = await _metrics(session)
    return (after["ThreadTime"] - before["ThreadTime"]) / (time.monotonic() - began_s)


async def _metrics(session: Any) -> Mapping[str, float]:
    found = await session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in found["metrics"]}


async def measure_clients(plane: Plane) -> tuple[float, float, int]:
    """Share of a core that the dashboard's process takes for so many streams, bytes of a tick, and how many streams."""
    got: list[int] = []
    few_at_once = asyncio.Semaphore(CONNECTING)
    connections = await asyncio.gather(*(_connect(plane, few_at_once) for _ in range(CLIENTS)))
    reading = [asyncio.create_task(_count_ticks(reader, got)) for reader, _ in connections]
    await asyncio.sleep(2.0)
    got.clear()
    began_s, cpu_s = time.monotonic(), _cpu_s(plane.pid)
    await asyncio.sleep(CLIENT_SECONDS)
    share = (_cpu_s(plane.pid) - cpu_s) / (time.monotonic() - began_s)
    assert len(got) >= CLIENTS * (CLIENT_SECONDS - 2), f"only {len(got)} ticks came"
    tick_bytes = float(np.mean(got))
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for _, writer in connections:
        writer.close()
    return share, tick_bytes, len(connections)


async def _connect(plane: Plane, few_at_once: asyncio.Semaphore) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(plane.url)
    async with few_at_once:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"GET /live/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return reader, writer


async def _count_ticks(reader: asyncio.StreamReader, got: list[int]) -> None:
    while True:
        event = await reader.readuntil(b"\n\n")
        if b"event: tick" in event:
            got.append(len(event))


def _cpu_s(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_heap(chromium: str, plane: Plane, redis_url: str) -> float:
    """Heap of the page after so many ticks / after the first ones, when all windows are full."""
    async with Redis.from_url(redis_url) as redis:
        feed = ticks(HEAP_TICKS + WARM_TICKS, time.time() - HEAP_TICKS - WARM_TICKS)
        await _publish(redis, feed, 1)
        async with browsing(chromium, plane) as page:
            session = await page.context.new_cdp_session(page)
            await _publish(redis, feed, WARM_TICKS - 1)
            before = await _heap(session)
            await _publish(redis, feed, HEAP_TICKS)
            after = await _heap(session)
    for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize"):
        say(f"{name}: {before[name]:,.0f} after {WARM_TICKS} ticks, {after[name]:,.0f} after {HEAP_TICKS} more")
    return after["JSHeapUsedSize"] / before["JSHeapUsedSize"]


async def _publish(redis: Redis, feed: Any, count: int) -> None:
    for _ in range(count):
        tick, snapshot = next(feed)
        tick_id = await redis.xadd(LIVE_STREAM, {TICK_FIELD: msgspec.json.encode(tick)}, maxlen=900)
        if snapshot:
            await redis.set(LIVE_SNAPSHOT_KEY, msgspec.json.encode({"id": tick_id.decode(), **snapshot}))
        await asyncio.sleep(1 / TICKS_PER_S)


async def _heap(session: Any) -> Mapping[str, float]:
    await session.send("Performance.enable")
    for _ in range(3):
        await session.send("HeapProfiler.collectGarbage")
    return await _metrics(session)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_telemetry", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part only; may be given again")
    asyncio.run(main(parser.parse_args().only or PARTS))
