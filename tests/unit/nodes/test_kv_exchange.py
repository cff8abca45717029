"""Blocks from one store to another: only what is missing, once, checked, and freed when it goes wrong."""

import asyncio
from dataclasses import replace

import pytest

from engine_agents.nodes.kv_errors import (
    BadFrameError,
    BlockGoneError,
    ChecksumMismatchError,
    FingerprintMismatchError,
    LeaseBusyError,
    LeaseUnknownError,
    PeerLostError,
    PullStalledError,
    RelayRefusedError,
    StoreFullError,
)
from tests.unit.nodes.kv_bench import BLOCK_BYTES, cuts_of, relay, source, target, until


async def test_brings_all_blocks_and_gives_the_lease_back():
    async with source() as near:
        far, cuts = target(), cuts_of(200)
        report = await far.puller.pull("r", cuts, near.lease(cuts))
        assert far.holds(cuts)
        assert report.pulled_tokens == 200
        assert report.pulled_bytes == near.counters.served_bytes
        assert far.counters.pulled_bytes >= report.pulled_bytes
        assert far.store.pinned_by("r") == {cut.hash for cut in cuts}
        await until(lambda: len(near.leases) == 0 and near.server.sessions == 0)
        assert near.store.pinned_bytes == 0


async def test_brings_only_what_is_missing():
    async with source() as near:
        far = target()
        await far.puller.pull("r1", cuts_of(128), near.lease(cuts_of(128)))
        before = near.counters.served_bytes
        longer = cuts_of(300)
        report = await far.puller.pull("r2", longer, near.lease(longer))
        assert far.holds(longer)
        assert report.pulled_tokens == 172
        assert near.counters.served_bytes - before == report.pulled_bytes == 3 * (BLOCK_BYTES // 16 * 16)


async def test_asks_for_nothing_when_all_is_here_but_gives_the_lease_back():
    async with source() as near:
        far, cuts = target(), cuts_of(128)
        await far.puller.pull("r1", cuts, near.lease(cuts))
        served = near.counters.served_bytes
        report = await far.puller.pull("r2", cuts, near.lease(cuts))
        assert report.pulled_tokens == 0
        await until(lambda: len(near.leases) == 0)
        assert near.counters.served_bytes == served
        await far.puller.close()


async def test_goes_through_the_relay_with_one_line_that_says_what_it_is():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(200)
        way = wan.via(near.lease(cuts), "t-7")
        await far.puller.pull("r", cuts, way)
        assert far.holds(cuts)
        assert wan.preambles == [
            {
                "link": "ams-fra",
                "target": f"127.0.0.1:{near.port}",
                "transfer_id": "t-7",
                "pipeline": "relay",
                "service_class": "default",
            }
        ]


async def test_a_second_pull_waits_for_blocks_on_their_way():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 4)
        longer = cuts_of(320)
        second = asyncio.create_task(far.puller.pull("r2", longer, near.lease(longer)))
        await until(lambda: longer[4].hash in far.store)
        wan.opened.set()
        one, two = await asyncio.gather(first, second)
        assert far.holds(longer)
        assert (one.pulled_tokens, one.waited_tokens) == (256, 0)
        assert (two.pulled_tokens, two.waited_tokens) == (64, 256)
        assert near.counters.served_bytes == one.pulled_bytes + two.pulled_bytes
        assert far.store.pinned_by("r2") == {cut.hash for cut in longer}
        await until(lambda: len(near.leases) == 0)


async def test_a_waiter_takes_over_when_the_first_is_cancelled():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 4)
        waiters = [asyncio.create_task(far.puller.pull(f"w{index}", cuts, near.lease(cuts))) for index in range(3)]
        await until(lambda: near.server.sessions == 4)
        first.cancel()
        reports = await asyncio.gather(*waiters)
        assert far.holds(cuts)
        assert sum(report.pulled_tokens for report in reports) == 256
        assert sum(report.waited_tokens for report in reports) == 512
        assert first.cancelled()
        assert far.puller.blocks_in_flight == far.puller.running == 0
        await until(lambda: wan.closed == 1)


async def test_a_waiter_takes_over_when_the_first_fails():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        wan.damage = True
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 10)
        second = asyncio.create_task(far.puller.pull("r2", cuts, near.lease(cuts)))
        await until(lambda: near.server.sessions == 2)
        wan.opened.set()
        with pytest.raises((ChecksumMismatchError, BadFrameError)):
            await first
        report = await second
        assert far.holds(cuts)
        assert report.pulled_tokens + report.waited_tokens == 640
        assert report.pulled_tokens > 0
        assert far.counters.failed_pulls == 1


async def test_cancelling_closes_the_connection_and_leaves_the_lease_for_another_try():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.opened.clear()
        lease = near.lease(cuts)
        pull = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(lease)))
        await until(lambda: far.puller.blocks_in_flight == 4)
        pull.cancel()
        await asyncio.gather(pull, return_exceptions=True)
        await until(lambda: near.server.sessions == 0)
        assert far.puller.blocks_in_flight == far.puller.running == 0
        assert len(near.leases) == 1
        report = await far.puller.pull("r2", cuts, lease)
        assert report.pulled_tokens == 256


async def test_a_cancelled_waiter_leaves_no_pin_behind():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(128)
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 2)
        second = asyncio.create_task(far.puller.pull("r2", cuts, near.lease(cuts)))
        await until(lambda: near.server.sessions == 2)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        far.store.unpin("r2")
        wan.opened.set()
        await first
        assert far.store.pinned_by("r2") == frozenset()


async def test_a_damaged_payload_never_reaches_the_store():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(64)
        wan.damage = True
        way = wan.via(near.lease(cuts))
        with pytest.raises((ChecksumMismatchError, BadFrameError)):
            await far.puller.pull("r", cuts, way)
        assert len(far.store) == 0


async def test_refuses_a_node_of_another_model():
    async with source(fingerprint="model-b") as near:
        far, cuts = target(), cuts_of(64)
        with pytest.raises(FingerprintMismatchError):
            await far.puller.pull("r", cuts, near.lease(cuts))
        assert len(near.leases) == 1


async def test_refuses_an_unknown_lease():
    async with source() as near:
        far, cuts = target(), cuts_of(64)
        way = near.lease(cuts)
        near.leases.release(way.lease_id)
        with pytest.raises(LeaseUnknownError):
            await far.puller.pull("r", cuts, way)


async def test_refuses_a_second_reader_of_one_lease():
    async with source() as near, relay() as wan:
        cuts = cuts_of(256)
        lease = near.lease(cuts)
        wan.opened.clear()
        one, other = target(), target()
        first = asyncio.create_task(one.puller.pull("r1", cuts, wan.via(lease)))
        await until(lambda: near.server.sessions == 1)
        with pytest.raises(LeaseBusyError):
            await other.puller.pull("r2", cuts, lease)
        wan.opened.set()
        await first
        assert one.holds(cuts)


async def test_refuses_blocks_that_the_lease_does_not_cover():
    async with source() as near:
        far = target()
        lease = near.lease(cuts_of(64))
        near.lease(cuts_of(64, seed=9))
        with pytest.raises(BlockGoneError):
            await far.puller.pull("r", cuts_of(64, seed=9), lease)


async def test_says_why_the_relay_refused():
    async with source() as near, relay() as wan:
        wan.refuse_with = "unknown link"
        cuts = cuts_of(64)
        with pytest.raises(RelayRefusedError, match="unknown link"):
            await target().puller.pull("r", cuts, wan.via(near.lease(cuts)))


async def test_says_when_nobody_listens():
    async with source() as near:
        cuts = cuts_of(64)
        way = near.lease(cuts)
    with pytest.raises(PeerLostError):
        await target().puller.pull("r", cuts, way)


async def test_a_peer_that_dies_in_the_middle_is_a_typed_error():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        wan.opened.clear()
        pull = asyncio.create_task(far.puller.pull("r", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 10)
        for task in wan.tasks:
            task.cancel()
        await near.server.close()
        wan.opened.set()
        with pytest.raises(PeerLostError):
            async with asyncio.timeout(10):
                await pull


async def test_a_pull_that_stands_still_gives_up():
    async with source() as near, relay() as wan:
        far, cuts = target(stall_s=0.2), cuts_of(256)
        wan.opened.clear()
        with pytest.raises(PullStalledError):
            await far.puller.pull("r", cuts, wan.via(near.lease(cuts)))
        assert far.puller.blocks_in_flight == 0


async def test_the_server_drops_a_session_that_says_nothing():
    async with source(idle_s=0.2) as near:
        cuts = cuts_of(64)
        lease = near.lease(cuts)
        attached = near.leases.attach(lease.lease_id)
        near.leases.detach(attached)
        reader, writer = await asyncio.open_connection("127.0.0.1", near.port)
        await until(lambda: near.server.sessions == 1)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        await until(lambda: near.server.sessions == 0)
        writer.close()


async def test_a_store_whose_room_is_all_pinned_refuses():
    async with source() as near:
        far = target(capacity_tokens=128)
        first = cuts_of(128)
        await far.puller.pull("r1", first, near.lease(first))
        other = cuts_of(128, seed=5)
        with pytest.raises(StoreFullError):
            await far.puller.pull("r2", other, near.lease(other))
        far.store.unpin("r1")
        far.store.unpin("r2")
        await far.puller.pull("r3", other, near.lease(other))
        assert far.holds(other)


async def test_garbage_at_the_kv_port_is_answered_and_forgotten():
    async with source() as near:
        reader, writer = await asyncio.open_connection("127.0.0.1", near.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"PDKV")
        writer.close()
        await until(lambda: near.server.sessions == 0)
        cuts = cuts_of(64)
        far = target()
        await far.puller.pull("r", cuts, near.lease(cuts))
        assert far.holds(cuts)


async def test_a_released_lease_stops_serving_further_requests():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 4)
        lease = near.lease(cuts)
        second = asyncio.create_task(far.puller.pull("r2", cuts, replace(lease)))
        await until(lambda: near.server.sessions == 2)
        near.leases.release(lease.lease_id)
        first.cancel()
        with pytest.raises(LeaseUnknownError):
            await second
