"""The consumer against a real Valkey: what goes into the streams comes out of ticks and snapshot."""

import asyncio
import json
import os
import sys
import time

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from control.telemetry.ingest import Consumer, connect, consume
from control.telemetry.records import (
    BATCH_FIELD,
    LIVE_SNAPSHOT_KEY,
    LIVE_STREAM,
    REQUESTS_STREAM,
    SAMPLES_STREAM,
    TICK_FIELD,
    LinkSample,
    NodeSample,
    RequestBatch,
    RequestRecord,
    SampleBatch,
)

SITES = ("ams", "fra")
RECORDS_PER_BATCH = 25


@pytest.fixture
async def redis(valkey):
    async with Redis.from_url(valkey.url) as client:
        yield client


@pytest.fixture
async def new_consumer(valkey):
    """Makes consumers with connections of their own, as processes would have."""
    clients = []

    def make():
        clients.append(connect(valkey.url))
        return Consumer(clients[-1], SITES)

    yield make
    for client in clients:
        await client.aclose()


def record(index, ttft_s, **fields):
    values = {
        "request_id": f"r{index}",
        "gateway": "gw",
        "site": "ams",
        "received_at_s": time.time() - 20,
        "model": "m",
        "pipeline": "relay" if index % 5 == 0 else "direct",
        "reason": "transfer_short",
        "outcome": "completed",
        "status": 200,
        "policy_revision": 1,
        "input_tokens": 1000,
        "cached_tokens": 900 + index % 100,
        "output_tokens": 10,
        "eager_tokens": 4 if index % 5 == 0 else 0,
        "ttft_s": ttft_s,
        "e2e_s": 0.5,
    }
    return RequestRecord(**{**values, **fields})


def batch(sequence, records, *, site="ams", **fields):
    return RequestBatch(f"{site}-gw", site, 1, sequence, time.time(), tuple(records), **fields)


async def send(redis, value):
    stream = REQUESTS_STREAM if isinstance(value, RequestBatch) else SAMPLES_STREAM
    return await redis.xadd(stream.format(site=value.site), {BATCH_FIELD: msgspec.msgpack.encode(value)})


async def send_requests(redis, values, *, site="ams", first=0):
    records = [record(first + index, float(value)) for index, value in enumerate(values)]
    for start in range(0, len(records), RECORDS_PER_BATCH):
        await send(redis, batch(first + start, records[start : start + RECORDS_PER_BATCH], site=site))
    return records


async def ticks(redis):
    return [json.loads(fields[TICK_FIELD.encode()]) for _, fields in await redis.xrange(LIVE_STREAM)]


async def snapshot(redis):
    return json.loads(await redis.get(LIVE_SNAPSHOT_KEY) or "{}")


async def until(condition):
    """Wait for a condition; the test's own timeout is the only clock."""
    while not await condition():
        await asyncio.sleep(0.05)


async def test_a_tick_carries_the_quantiles_and_counts_of_the_records(redis, new_consumer):
    values = np.random.default_rng(11).lognormal(0, 1, 2000).clip(0.001, 600)
    await send_requests(redis, values[:1500])
    await send_requests(redis, values[1500:], site="fra")
    consumer = new_consumer()
    await consumer.replay()
    await consumer.publish()
    tick = (await ticks(redis))[-1]
    exact = dict(zip(("p50", "p90", "p99"), np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf"), strict=True))
    assert tick["tiles"]["ttft"] == pytest.approx(exact, rel=0.01)
    assert tick["tiles"]["requests"] == 2000
    assert tick["tiles"]["rld_share"] == 0.08
    assert tick["dropped"] == {}
    picture = await snapshot(redis)
    assert sum(slot["requests"] or 0 for slot in picture["slots"]) == 2000
    assert [(source["name"], source["stale"]) for source in picture["sources"]] == [
        ("ams-gw", False),
        ("fra-gw", False),
    ]


async def test_ids_of_tick_and_snapshot_agree_and_rows_are_sent_once(redis, new_consumer):
    consumer = new_consumer()
    await send_requests(redis, [0.1, 0.2])
    await consumer.replay()
    await consumer.publish()
    await consumer.publish()
    entries = await redis.xrange(LIVE_STREAM)
    assert (await snapshot(redis))["id"] == entries[-1][0].decode()
    assert [len(tick["requests"]) for tick in await ticks(redis)] == [2, 0]
    assert [row["id"] for row in (await snapshot(redis))["requests"]] == ["r1", "r0"]


async def test_a_restarted_consumer_neither_loses_nor_doubles(redis, new_consumer):
    first = new_consumer()
    await send_requests(redis, [0.5] * 100)
    await first.replay()
    await first.publish()
    await asyncio.sleep(0.01)
    await send_requests(redis, [1.5] * 30, first=100)

    second = new_consumer()
    await second.replay()
    await second.skip_published()
    await send_requests(redis, [2.5] * 20, first=200)
    await second.replay()
    await second.publish()
    tick = (await ticks(redis))[-1]
    assert tick["tiles"]["requests"] == 150
    assert {row["id"] for row in tick["requests"]} == {
        *(f"r{i}" for i in range(110, 130)),
        *(f"r{i}" for i in range(200, 220)),
    }
    assert tick["dropped"] == {}


async def test_a_batch_delivered_twice_counts_once_and_garbage_is_counted(redis, new_consumer):
    consumer = new_consumer()
    doubled = batch(1, [record(1, 0.5), record(2, -1.0)])
    await send(redis, doubled)
    await send(redis, doubled)
    await redis.xadd(REQUESTS_STREAM.format(site="ams"), {BATCH_FIELD: b"\xc1 garbage"})
    await redis.xadd(REQUESTS_STREAM.format(site="ams"), {"other": b"field"})
    fields = msgspec.to_builtins(batch(2, [record(3, 0.5), record(4, 0.5)]))
    fields[5][0][18] = "not a number"
    await redis.xadd(REQUESTS_STREAM.format(site="ams"), {BATCH_FIELD: msgspec.msgpack.encode(fields)})
    await consumer.replay()
    await consumer.publish()
    tick = (await ticks(redis))[-1]
    assert tick["tiles"]["requests"] == 2
    assert tick["dropped"] == {"impossible": 1, "duplicate": 1, "malformed": 3}


async def test_samples_become_links_and_nodes(redis, new_consumer):
    consumer = new_consumer()
    now_s = time.time()
    for step in range(3):
        links = (LinkSample("ams-fra", "ams", "fra", 1000.0, 0.03, 500 * step, {"relay": 500 * step}, flows=step),)
        nodes = (NodeSample("rld", "ams", "relay", "ready", running=1, slots=4),)
        await send(redis, SampleBatch("obs", "ams", 1, step, now_s - 2 + step, nodes, links))
    await consumer.replay()
    await consumer.publish()
    tick = (await ticks(redis))[-1]
    assert tick["tiles"]["wan_use"] == {
        "link": "ams-fra",
        "ratio": 0.5,
        "bytes_per_s": 500,
        "capacity_bytes_per_s": 1000,
    }
    assert (tick["tiles"]["relay_utilization"], tick["nodes"][0]["name"], tick["links"][0]["flows"]) == (0.25, "rld", 2)


async def test_a_restart_of_redis_is_survived_without_loss(redis, valkey, new_consumer, caplog):
    task = asyncio.ensure_future(consume(new_consumer()))
    try:
        await send_requests(redis, [0.5] * 10)

        async def counted(requests):
            return (await snapshot(redis)).get("tiles", {}).get("requests") == requests

        await until(lambda: counted(10))
        await valkey.stop()
        await until(lambda: asyncio.sleep(0, "does not answer" in caplog.text))
        await valkey.start()
        await redis.connection_pool.disconnect()
        await send_requests(redis, [0.5] * 7, first=100)
        await until(lambda: counted(17))
        assert (await snapshot(redis))["dropped"] == {}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_process_ticks_and_ends_cleanly_on_sigterm(redis, valkey):
    await send_requests(redis, [0.5] * 3)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "control.telemetry.ingest", "--site", "ams", "--site", "fra"),
        env={**os.environ, "PDD_REDIS_URL": valkey.url},
        stderr=asyncio.subprocess.PIPE,
    )

    async def has_two_ticks():
        return await redis.xlen(LIVE_STREAM) >= 2

    await until(has_two_ticks)
    process.terminate()
    _, log = await process.communicate()
    assert process.returncode == 0
    assert b"stopped" in log
    assert b"Traceback" not in log
    sent = [row["id"] for tick in await ticks(redis) for row in tick["requests"]]
    assert sorted(sent) == ["r0", "r1", "r2"]
