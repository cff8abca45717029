"""The feed of changes: nothing missed, nothing told twice, nobody listens longer than they may."""

import asyncio
import json
from contextlib import aclosing

import pytest
from sqlmodel import select

from control.api import event_hub
from control.api.event_hub import MAX_STREAMS_PER_CALLER, EventHub
from control.domain.operations import Kind
from control.errors import TooManyStreamsError, UnauthenticatedError
from control.services.access import Principal, Role
from control.services.audit import record_event
from control.services.operations import cancel_operation, open_operation
from control.store.tables import AuditEventRow

OLGA = Principal("olga", Role.OPERATOR)


def record(plane, *names):
    with plane.database.unit_of_work(plane.send) as work:
        for name in names:
            record_event(work.session, plane.now(), "olga", f"test.{name}", f"test/{name}")


def newest(plane):
    with plane.database.reading() as session:
        return max(row.id for row in session.exec(select(AuditEventRow)))


@pytest.fixture
def hub(seeded):
    return EventHub(seeded, poll_s=0.02)


def listen(hub, last_id=None, target="", check=lambda: None, caller="olga"):
    return hub.stream(caller, last_id, target, check)


async def events(stream, count):
    """The next so many events as (kind, data)."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            chunk = await anext(stream)
            lines = dict(line.split(": ", 1) for line in chunk.decode().splitlines() if line and line[0] != ":")
            if "event" in lines:
                data = json.loads(lines["data"])
                assert lines["event"] == "operation" or lines["id"] == str(data["id"])
                found.append((lines["event"], data))
    return found


async def begun(stream, hub):
    """The stream once it listens."""
    assert await anext(stream) == event_hub.HELLO
    return stream


async def test_a_stream_tells_what_changes_from_now_on(hub, seeded):
    async with aclosing(listen(hub)) as stream:
        await begun(stream, hub)
        waiting = asyncio.create_task(events(stream, 3))
        async with asyncio.timeout(60):
            while not hub._ready.is_set():
                await asyncio.sleep(0.01)
        record(seeded, "a", "b")
        record(seeded, "c")
        told = await waiting
    assert [data["action"] for _, data in told] == ["test.a", "test.b", "test.c"]
    assert {kind for kind, _ in told} == {"change"}
    assert hub.streams == 0
    assert hub._reader is None


async def test_a_stream_goes_on_behind_the_last_change_that_was_seen(hub, seeded, monkeypatch):
    monkeypatch.setattr(event_hub, "BATCH_EVENTS", 3)
    seen = newest(seeded)
    names = [f"{number}" for number in range(8)]
    record(seeded, *names)
    async with aclosing(listen(hub, last_id=seen)) as stream:
        told = await events(stream, 8)
        record(seeded, "live")
        told += await events(stream, 1)
    assert [data["target"] for _, data in told] == [f"test/{name}" for name in [*names, "live"]]


async def test_a_stream_may_ask_for_some_targets_only(hub, seeded):
    seen = newest(seeded)
    record(seeded, "a", "b")
    async with aclosing(listen(hub, last_id=seen, target="test/b")) as stream:
        [(_, first)] = await events(stream, 1)
        record(seeded, "a", "b2")
        [(_, second)] = await events(stream, 1)
    assert (first["target"], second["target"]) == ("test/b", "test/b2")


async def test_an_operation_is_told_as_it_is_and_at_each_step_to_its_end(hub, seeded):
    number = open_operation(seeded, OLGA, Kind.DRAIN, {"node": "ams-p-01", "force": True}, "why").stored.id
    async with aclosing(listen(hub, target="node/")) as stream:
        [(kind, first)] = await events(stream, 1)
        assert (kind, first["id"], first["finished_at"]) == ("operation", number, None)
        cancel_operation(seeded, OLGA, number, "not now")
        [(kind, changed)] = await events(stream, 1)
    assert (kind, changed["id"]) == ("operation", number)
    assert changed["state"] != first["state"]


async def test_a_reader_that_is_too_slow_has_to_come_back(hub, seeded, monkeypatch):
    async with aclosing(listen(hub)) as slow, aclosing(listen(hub)) as quick:
        await begun(slow, hub)
        waiting = asyncio.create_task(events(slow, 1))
        await begun(quick, hub)
        hub._ring = type(hub._ring)(maxlen=3)
        also = asyncio.create_task(events(quick, 1))
        async with asyncio.timeout(60):
            while not hub._ready.is_set():
                await asyncio.sleep(0.01)
        record(seeded, "a")
        [(_, first)] = await waiting
        await also
        for name in "bcdef":
            record(seeded, name)
        async with asyncio.timeout(60):
            while hub._told < 6:
                await asyncio.sleep(0.01)
        with pytest.raises(StopAsyncIteration):
            await events(slow, 1)
    async with aclosing(listen(hub, last_id=first["id"])) as again:
        assert [data["target"][-1] for _, data in await events(again, 5)] == list("bcdef")


async def test_a_stream_ends_with_the_right_to_it(hub, seeded, monkeypatch):
    monkeypatch.setattr(event_hub, "KEEP_ALIVE_S", 0.02)
    allowed = asyncio.Event()
    allowed.set()

    def check():
        if not allowed.is_set():
            raise UnauthenticatedError

    async with aclosing(listen(hub, check=check)) as stream:
        await begun(stream, hub)
        async with asyncio.timeout(60):
            assert await anext(stream) == event_hub.ALIVE
            allowed.clear()
            assert [chunk async for chunk in stream if chunk != event_hub.ALIVE] == []


async def test_streams_are_bounded_for_each_caller_and_together(hub, monkeypatch):
    monkeypatch.setattr(event_hub, "MAX_STREAMS", MAX_STREAMS_PER_CALLER + 1)
    streams = [listen(hub) for _ in range(MAX_STREAMS_PER_CALLER)]
    for stream in streams:
        hub.admit("olga")
        await anext(stream)
    with pytest.raises(TooManyStreamsError):
        hub.admit("olga")
    hub.admit("otto")
    others = listen(hub, caller="otto")
    await anext(others)
    with pytest.raises(TooManyStreamsError):
        hub.admit("third")
    for stream in [*streams, others]:
        await stream.aclose()
    hub.admit("olga")
    assert hub.streams == 0


async def test_a_server_that_stops_ends_its_streams(hub):
    async with aclosing(listen(hub)) as stream:
        await begun(stream, hub)
        rest = asyncio.create_task(collect(stream))
        await asyncio.sleep(0)
        hub.close()
        async with asyncio.timeout(60):
            assert await rest == []


async def collect(stream):
    return [chunk async for chunk in stream]
