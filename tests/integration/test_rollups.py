"""Sums in SQL against a real Valkey: counts stay exact whatever is killed, restarted or doubled."""

import asyncio
import os
import signal
import sys
import time

import msgspec
import pytest
from redis.asyncio import Redis

from control.domain.rollups import COARSE, FINE, RESOLUTIONS, LinkSums, RequestSums
from control.store.migrate import upgrade_schema
from control.store.rollups import load_counts, load_link_rollups, load_request_rollups
from control.store.samples import Order, RequestFilter, load_samples
from control.store.session import open_database
from control.telemetry.ingest import Consumer, connect
from control.telemetry.records import (
    BATCH_FIELD,
    REQUESTS_STREAM,
    SAMPLES_STREAM,
    LinkSample,
    RequestBatch,
    RequestRecord,
    SampleBatch,
)
from engine_agents.gateway.spool import Spool
from engine_agents.gateway.telemetry import Publisher, RedisStream

SITES = ("ams", "fra")


@pytest.fixture
async def redis(valkey):
    async with Redis.from_url(valkey.url) as client:
        yield client


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").new_migrated_database()
    return f"sqlite:///{tmp_path / 'control.sqlite3'}"


@pytest.fixture
def database(database_url):
    opened = open_database(database_url)
    upgrade_schema(opened)
    yield opened
    opened.engine.dispose()


@pytest.fixture
async def new_consumer(valkey, database):
    """Makes consumers that have read all there is, each with connections of its own."""
    clients = []

    async def make():
        clients.append(connect(valkey.url))
        consumer = Consumer(clients[-1], SITES, database=database)
        await consumer.replay()
        return consumer

    yield make
    for client in clients:
        await client.aclose()


def record(ttft_s=0.5, *, site="ams", age_s=20.0):
    return RequestRecord(
        request_id="r",
        gateway="gw",
        site=site,
        received_at_s=time.time() - age_s,
        model="m",
        pipeline="direct",
        reason="transfer_short",
        outcome="completed",
        status=200,
        policy_revision=1,
        input_tokens=1000,
        cached_tokens=900,
        ttft_s=ttft_s,
    )


async def send(redis, sequence, records=1, *, site="ams", gateway="gw"):
    batch = RequestBatch(f"{site}-{gateway}", site, 1, sequence, time.time(), (record(site=site),) * records)
    await redis.xadd(REQUESTS_STREAM.format(site=site), {BATCH_FIELD: msgspec.msgpack.encode(batch)})


def stored(database, resolution=COARSE):
    with database.reading() as session:
        return RequestSums.merged(load_request_rollups(session, resolution, 0, time.time() + 1).values()).requests


def kept(database):
    with database.reading() as session:
        return len(load_samples(session, RequestFilter(), Order(), 1000))


def counts(database):
    with database.reading() as session:
        return {reason: count for reason, count in load_counts(session).items() if count}


async def keep_step(consumer, redis):
    await consumer.replay()
    await consumer.rollups.keep_step(redis, consumer.last_ids)


async def test_every_record_is_stored_once_in_every_resolution(redis, database, new_consumer):
    for sequence in range(40):
        await send(redis, sequence, 5, site=SITES[sequence % 2])
    consumer = await new_consumer()
    await keep_step(consumer, redis)
    for sequence in range(40, 50):
        await send(redis, sequence, 5, site=SITES[sequence % 2])
    await keep_step(consumer, redis)
    assert [stored(database, resolution) for resolution in RESOLUTIONS] == [250, 250, 250]
    assert counts(database) == {}


async def test_what_was_read_before_sql_was_asked_and_what_is_older_than_the_windows_is_not_missed(
    redis, database, new_consumer
):
    stream = REQUESTS_STREAM.format(site="ams")
    old_s = time.time() - 3000
    batch = RequestBatch("ams-gw", "ams", 1, 1, old_s, (record(age_s=3010),))
    await redis.xadd(stream, {BATCH_FIELD: msgspec.msgpack.encode(batch)}, id=f"{int(old_s * 1000)}-0")
    await send(redis, 2)
    consumer = await new_consumer()
    assert not consumer.rollups.is_in_step
    await keep_step(consumer, redis)
    assert consumer.rollups.is_in_step
    assert stored(database) == 2
    assert consumer.windows.dropped == {}


async def test_a_restarted_consumer_neither_loses_nor_doubles_and_knows_old_batches(redis, database, new_consumer):
    first = await new_consumer()
    for sequence in range(10):
        await send(redis, sequence)
    await keep_step(first, redis)
    for sequence in range(10, 15):
        await send(redis, sequence)
    await first.replay()  # read, and lost with the process
    await send(redis, 3)  # a gateway that did not hear that it had been heard
    second = await new_consumer()
    await keep_step(second, redis)
    assert stored(database) == kept(database) == 15
    assert counts(database) == {"duplicate": 1}


async def test_of_two_consumers_that_both_write_each_entry_counts_once(redis, database, new_consumer):
    first, second = await new_consumer(), await new_consumer()
    await keep_step(first, redis)
    await keep_step(second, redis)
    for sequence in range(30):
        await send(redis, sequence)
        await first.replay()
        await second.replay()
        if sequence % 5 == 0:
            await first.rollups.keep_step(redis, first.last_ids)
        if sequence % 3 == 0:
            await second.rollups.keep_step(redis, second.last_ids)
    for consumer in (first, second, first, second):
        await keep_step(consumer, redis)
    assert stored(database) == kept(database) == 30
    assert counts(database) == {}


async def test_a_database_that_is_away_delays_the_sums_and_loses_none(redis, database, new_consumer, monkeypatch):
    consumer = await new_consumer()
    await keep_step(consumer, redis)
    for sequence in range(5):
        await send(redis, sequence)
    with monkeypatch.context() as patched:
        patched.setattr("control.telemetry.rollup_writer.add_rollups", _broken)
        with pytest.raises(OSError, match="away"):
            await keep_step(consumer, redis)
    assert stored(database) == 0
    await send(redis, 5)
    await keep_step(consumer, redis)
    assert stored(database) == kept(database) == 6


def _broken(*_):
    raise OSError("the database is away")


async def test_entries_that_a_full_stream_dropped_are_counted(redis, database, new_consumer):
    first = await new_consumer()
    await send(redis, 0)
    await keep_step(first, redis)
    for sequence in range(1, 11):
        await send(redis, sequence)
    await redis.xtrim(REQUESTS_STREAM.format(site="ams"), maxlen=4, approximate=False)
    second = await new_consumer()
    await keep_step(second, redis)
    assert stored(database) == 5
    assert counts(database) == {"trimmed": 6}


async def test_link_counters_go_on_across_a_restart(redis, database, new_consumer):
    now_s = time.time()
    for step in range(4):
        link = LinkSample("ams-fra", "ams", "fra", 1000.0, 0.03, 500 * step, {"relay": 500 * step})
        batch = SampleBatch("obs", "ams", 1, step, now_s - 4 + step, (), (link,))
        await redis.xadd(SAMPLES_STREAM.format(site="ams"), {BATCH_FIELD: msgspec.msgpack.encode(batch)})
        await keep_step(await new_consumer(), redis)
    with database.reading() as session:
        sums = LinkSums.merged(load_link_rollups(session, FINE, 0, now_s + 1).values())
    assert (sums.samples, sums.total_bytes, sums.relay_bytes, sums.seconds) == (4, 1500, 1500, pytest.approx(3.0))


@pytest.mark.timeout(300)
@pytest.mark.full
async def test_a_consumer_that_is_killed_while_it_writes_doubles_and_loses_nothing(
    redis, valkey, database_url, database
):
    async def start():
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "control.telemetry.ingest", "--site", "ams", "--site", "fra"),
            env={**os.environ, "PDD_REDIS_URL": valkey.url, "PDD_DATABASE_URL": database_url},
        )

    sent = 0
    for round_ in range(3):
        process = await start()
        for _ in range(20):
            await send(redis, sent, 3)
            sent += 1
        if round_ < 2:
            while not stored(database) > 60 * round_:
                await asyncio.sleep(0.05)
            await send(redis, sent, 3)
            sent += 1
            process.send_signal(signal.SIGKILL)
            await process.wait()
    while stored(database) < 3 * sent:
        await asyncio.sleep(0.05)
    await send(redis, 0, 3)  # a double; what comes behind it shows that it was read
    await send(redis, sent, 3)
    while stored(database) < 3 * (sent + 1):
        await asyncio.sleep(0.05)
    process.terminate()
    assert await process.wait() == 0
    assert stored(database) == kept(database) == 3 * (sent + 1)
    assert counts(database) == {"duplicate": 1}


async def test_what_a_gateway_kept_while_redis_was_away_is_counted_once_it_is_back(
    redis, valkey, database, new_consumer, tmp_path
):
    stream = RedisStream(valkey.url, "ams")
    publisher = Publisher("ams-gw", "ams", stream=stream, spool=Spool(tmp_path / "spool"), vitals=lambda: (1, 0))
    try:
        publisher.add(record())
        await publisher.send_batch()
        await valkey.stop()
        for _ in range(5):
            for _ in range(3):
                publisher.add(record())
            await publisher.send_batch()
        await valkey.start()
        await redis.connection_pool.disconnect()
        await publisher.send_batch()
        consumer = await new_consumer()
        await keep_step(consumer, redis)
    finally:
        await stream.close()
    assert stored(database) == kept(database) == 16
    assert set(counts(database)) <= {"out_of_order"}
    assert publisher.dropped_records == 0
