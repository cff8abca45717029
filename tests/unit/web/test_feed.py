import asyncio
import contextlib
import json

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from control.api.event_stream import EventStream
from control.telemetry.records import LIVE_SNAPSHOT_KEY, LIVE_STREAM, TICK_FIELD
from webapp.feed import ALIVE, HELLO, KEEP_ALIVE_S, QUEUE_TICKS, RESET, FeedUnreachableError, LiveFeed
from webapp.metrics import metrics_router

NOW_S = 1_000_000.0


@pytest.fixture
async def redis(valkey):
    async with Redis.from_url(valkey.url) as client:
        yield client


@contextlib.asynccontextmanager
async def reading(redis):
    feed = LiveFeed(redis, lambda: NOW_S)
    async with feed.running():
        yield feed


async def add_tick(redis, number):
    tick = {"now_s": NOW_S + number, "number": number, "slot": {"at_s": number}, "tiles": {}, "sources": []}
    return (await redis.xadd(LIVE_STREAM, {TICK_FIELD: json.dumps(tick)})).decode()


def numbers(events):
    return [json.loads(event.split(b"data: ")[1])["number"] for event in events if event.startswith(b"event: tick")]


async def take(stream, count):
    return [await anext(stream) for _ in range(count)]


async def until_read(feed, last_id):
    while feed._last_id != last_id:
        await asyncio.sleep(0.005)


async def test_a_browser_that_knows_the_newest_tick_gets_only_what_follows(redis):
    first = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, first)
        stream = feed.stream(first)
        assert await anext(stream) == HELLO
        await add_tick(redis, 2)
        assert numbers(await take(stream, 1)) == [2]
        await stream.aclose()
        assert feed.subscribers == 0


async def test_a_browser_resumes_behind_the_event_that_it_saw_last(redis):
    ids = [await add_tick(redis, number) for number in range(5)]
    async with reading(redis) as feed:
        await until_read(feed, ids[-1])
        stream = feed.stream(ids[1])
        assert numbers(await take(stream, 4)) == [2, 3, 4]


@pytest.mark.parametrize("last_id", ["", "nonsense", "1-0", "99999999999999-0"])
async def test_a_browser_of_another_life_is_told_to_start_again(redis, last_id):
    newest = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, newest)
        assert await take(feed.stream(last_id), 2) == [HELLO, RESET]


async def test_a_restarted_web_process_still_resumes_from_the_stream(redis):
    ids = [await add_tick(redis, number) for number in range(3)]
    async with reading(redis) as feed:
        await until_read(feed, ids[-1])
    async with reading(redis) as successor:
        await until_read(successor, ids[-1])
        assert numbers(await take(successor.stream(ids[0]), 3)) == [1, 2]


async def test_each_tick_is_serialised_once_for_all_browsers(redis):
    first = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, first)
        streams = [feed.stream(first) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        await add_tick(redis, 2)
        events = [await anext(stream) for stream in streams]
        assert events[0] is events[1] is events[2]


async def test_a_browser_that_reads_too_slowly_gets_one_order_to_start_again(redis):
    last = await add_tick(redis, 0)
    async with reading(redis) as feed:
        await until_read(feed, last)
        stream = feed.stream(last)
        await anext(stream)
        for number in range(QUEUE_TICKS + 1):
            last = await add_tick(redis, number)
        await until_read(feed, last)
        assert await anext(stream) == RESET


async def test_browsers_and_ticks_are_counted(redis):
    first = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, first)
        stream = feed.stream(first)
        await anext(stream)
        app = FastAPI()
        app.include_router(metrics_router(feed))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for _ in range(2):
                page = (await client.get("/metrics")).text
        assert "pdd_live_subscribers 1.0" in page
        assert "pdd_live_ticks_total 1.0" in page


async def test_streams_end_when_the_feed_closes(redis):
    first = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, first)
        stream = feed.stream(first)
        await anext(stream)
        feed.close()
        assert [event async for event in stream] == []


async def test_the_reader_goes_on_when_redis_comes_back(valkey, redis):
    first = await add_tick(redis, 1)
    async with reading(redis) as feed:
        await until_read(feed, first)
        stream = feed.stream(first)
        await anext(stream)
        await valkey.stop()
        await valkey.start()
        await add_tick(redis, 2)
        assert numbers(await take(stream, 1)) == [2]


async def test_snapshot_tells_its_age_and_the_state_of_the_fleet(redis):
    await redis.set(LIVE_SNAPSHOT_KEY, json.dumps({"now_s": NOW_S - 12, "slots": [], "tiles": {}, "sources": []}))
    picture = json.loads(await LiveFeed(redis, lambda: NOW_S).snapshot())
    assert picture["age_s"] == 12
    assert picture["fleet"]["word"] == "no_data"


async def test_there_is_no_snapshot_before_the_first_tick(redis):
    assert await LiveFeed(redis, lambda: NOW_S).snapshot() is None


async def test_a_redis_that_is_away_is_named(valkey, redis):
    await valkey.stop()
    with pytest.raises(FeedUnreachableError):
        await LiveFeed(redis, lambda: NOW_S).snapshot()


async def test_a_stream_without_ticks_says_now_and_then_that_it_lives(redis, monkeypatch):
    monkeypatch.setattr("webapp.feed.READ_BLOCK_MS", 10)
    clock = [NOW_S]
    feed = LiveFeed(redis, lambda: clock[0])
    async with feed.running():
        newest = await add_tick(redis, 1)
        await until_read(feed, newest)
        stream = feed.stream(newest)
        assert await anext(stream) == HELLO
        clock[0] += KEEP_ALIVE_S
        assert await anext(stream) == ALIVE
        await add_tick(redis, 2)
        assert numbers(await take(stream, 1)) == [2]
        await stream.aclose()


async def test_a_stream_is_closed_as_soon_as_its_reader_has_gone():
    closed, gone = asyncio.Event(), asyncio.Event()

    async def silence():
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body"):
            gone.set()

    await EventStream(silence())({"type": "http"}, receive, send)
    assert closed.is_set()
