"""The relay over real loopback sockets: every expectation is in bytes, none in seconds."""

import asyncio
import contextlib
import ipaddress
import json
import random
import sys

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from control.site_secret import SiteSecret
from engine_agents.wan.admin import build_admin_app
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import MIN_QUEUE_BYTES, ClassShare, LinkShape

SECRET = "site secret"
FAST = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.0)
READ_CHUNK_BYTES = 256 << 10
OPENED = []


@contextlib.asynccontextmanager
async def running_relay(shape=FAST, networks=("127.0.0.0/8",)):
    link = ShapedLink("ams-fra", "ams", "fra", shape)
    relay = Relay([link], [ipaddress.ip_network(network) for network in networks])
    host, port = await relay.start("127.0.0.1", 0)
    try:
        yield relay, link, (host, port)
    finally:
        await relay.close()


@contextlib.asynccontextmanager
async def kv_source(handler):
    """A target that runs `handler(reader, writer)` for each connection."""
    tasks = set()

    async def accept(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
async def opened():
    """Connections of the test, closed after it however it ends."""
    OPENED.clear()
    yield
    for writer in OPENED:
        await closed(writer)


async def connect(address):
    reader, writer = await asyncio.open_connection(*address)
    OPENED.append(writer)
    return reader, writer


async def open_transfer(address, target, **fields):
    reader, writer = await connect(address)
    preamble = {"link": "ams-fra", "target": target, "transfer_id": "t", "pipeline": "relay", **fields}
    writer.write(json.dumps(preamble).encode() + b"\n")
    return json.loads(await reader.readline()), reader, writer


async def closed(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def sends(payload):
    async def handler(_, writer):
        writer.write(payload)
        await writer.drain()

    return handler


async def settled(condition):
    """Wait until a condition holds; the test's own timeout is the only clock."""
    while not condition():
        await asyncio.sleep(0.01)


async def test_forwards_bytes_untouched_both_ways_and_counts_only_kv():
    payload = random.Random(1).randbytes(3_000_000)

    async def handler(reader, writer):
        request = await reader.readexactly(5)
        writer.write(request + payload)
        await writer.drain()

    async with running_relay() as (_, link, address), kv_source(handler) as target:
        answer, reader, writer = await open_transfer(address, target)
        assert answer == {"ok": True}
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert await reader.readexactly(len(payload)) == payload
        assert await reader.read() == b""
        await closed(writer)
        await settled(lambda: not link.flows)
        assert link.bytes_total == len(payload) + 5
        assert link.bytes_by_pipeline == {"relay": len(payload) + 5}


async def test_bytes_that_arrive_with_the_preamble_reach_the_target():
    async def handler(reader, writer):
        writer.write(await reader.readexactly(5))
        await writer.drain()

    async with running_relay() as (_, _link, address), kv_source(handler) as target:
        reader, writer = await connect(address)
        writer.write(json.dumps({"link": "ams-fra", "target": target}).encode() + b"\nhello")
        assert await reader.readline() == b'{"ok":true}\n'
        assert await reader.read() == b"hello"
        await closed(writer)


async def test_two_flows_have_moved_the_same_bytes_when_the_smaller_ends():
    small, large = 2_000_000, 6_000_000
    sizes = iter((small, large))

    async def handler(reader, writer):
        size = next(sizes)
        await reader.readexactly(1)
        writer.write(bytes(size))
        await writer.drain()

    shape = LinkShape(capacity_bytes_per_s=8_000_000, rtt_s=0.0)
    async with running_relay(shape) as (_, link, address), kv_source(handler) as target:
        _, first_reader, first = await open_transfer(address, target, transfer_id="small", pipeline="direct")
        _, second_reader, second = await open_transfer(address, target, transfer_id="large")
        flows = {flow.transfer.id: flow for flow in link.flows}
        rest = asyncio.create_task(second_reader.read(-1))
        first.write(b"g")
        second.write(b"g")
        await first_reader.readexactly(small)
        moved_by_large = flows["large"].sent_bytes
        assert 0.8 * small < moved_by_large < 1.25 * small
        assert len(await rest) == large
        assert link.bytes_by_pipeline == {"direct": small, "relay": large}
        await closed(first)
        await closed(second)


async def test_a_live_change_holds_for_the_bytes_already_waiting():
    payload = bytes(5_000_000)
    crawling = LinkShape(capacity_bytes_per_s=1e9, rate_cap_bytes_per_s=1000, rtt_s=0.0)
    async with running_relay(crawling) as (_, link, address), kv_source(sends(payload)) as target:
        _, reader, writer = await open_transfer(address, target)
        await settled(lambda: link.state()["queued_bytes"] > 0)
        flow = next(iter(link.flows))
        link.reshape({"rate_cap_bytes_per_s": None})
        assert len(await reader.read(-1)) == len(payload)
        assert flow.sent_bytes == len(payload)
        await closed(writer)


async def test_a_paused_link_moves_nothing_until_it_goes_on():
    payload = bytes(1000)
    async with running_relay() as (_, link, address), kv_source(sends(payload)) as target:
        link.reshape({"paused": True})
        _, reader, writer = await open_transfer(address, target)
        await settled(lambda: link.state()["queued_bytes"] == len(payload))
        assert link.bytes_total == 0
        link.reshape({"paused": False})
        assert await reader.read() == payload
        await closed(writer)


async def test_a_slow_link_holds_its_source_back():
    accepted = 0

    async def handler(_, writer):
        nonlocal accepted
        while True:
            writer.write(bytes(READ_CHUNK_BYTES))
            await writer.drain()
            accepted += READ_CHUNK_BYTES

    slow = LinkShape(capacity_bytes_per_s=1000, rtt_s=0.0)
    async with running_relay(slow) as (_, link, address), kv_source(handler) as target:
        _, _reader, writer = await open_transfer(address, target)
        before = -1
        while before != accepted:
            before = accepted
            await asyncio.sleep(0.2)
        assert link.state()["queued_bytes"] <= MIN_QUEUE_BYTES + READ_CHUNK_BYTES
        assert accepted < 32 << 20
        await closed(writer)


async def test_a_reader_that_stops_reading_stops_its_flow_and_no_other():
    async def handler(_, writer):
        while True:
            writer.write(bytes(READ_CHUNK_BYTES))
            await writer.drain()

    async with running_relay() as (_, link, address), kv_source(handler) as target:
        _, _stalled_reader, stalled = await open_transfer(address, target, transfer_id="stalled")
        stuck = next(iter(link.flows))
        before = -1
        while before != stuck.sent_bytes:
            before = stuck.sent_bytes
            await asyncio.sleep(0.2)
        _, reader, writer = await open_transfer(address, target, transfer_id="reading")
        await reader.readexactly(20_000_000)
        assert stuck.sent_bytes < 32 << 20
        await closed(writer)
        await closed(stalled)
        await settled(lambda: not link.flows)


async def test_a_cancelled_puller_frees_everything():
    released = asyncio.Event()

    async def handler(_, writer):
        try:
            while True:
                writer.write(bytes(READ_CHUNK_BYTES))
                await writer.drain()
        except ConnectionError:
            released.set()

    slow = LinkShape(capacity_bytes_per_s=100_000, rtt_s=0.02)
    async with running_relay(slow) as (relay, link, address), kv_source(handler) as target:
        _, reader, writer = await open_transfer(address, target)
        await reader.readexactly(1000)
        writer.transport.abort()
        await released.wait()
        await settled(lambda: not link.flows)
        state = link.state()
        assert (state["flows"], state["queued_bytes"], state["transfers"], relay.handshakes) == (0, 0, [], 0)
        counted = link.bytes_total
        await asyncio.sleep(0.1)
        assert link.bytes_total == counted


async def test_a_puller_that_leaves_a_silent_target_is_freed():
    released = asyncio.Event()

    async def handler(reader, _):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        released.set()
        await asyncio.Event().wait()

    async with running_relay() as (_, link, address), kv_source(handler) as target:
        _, _reader, writer = await open_transfer(address, target)
        await closed(writer)
        await released.wait()
        await settled(lambda: not link.flows)


async def test_a_puller_that_leaves_during_the_handshake_leaves_nothing():
    async with running_relay(LinkShape(1e9, rtt_s=5.0)) as (relay, link, address), kv_source(sends(b"")) as target:
        reader, writer = await connect(address)
        writer.write(json.dumps({"link": "ams-fra", "target": target}).encode() + b"\n")
        await settled(lambda: relay.handshakes == 1)
        writer.transport.abort()
        await settled(lambda: relay.handshakes == 0)
        assert not link.flows
        with contextlib.suppress(ConnectionError):
            await reader.read()


async def test_a_reset_by_the_target_reaches_the_puller():
    async def handler(_, writer):
        writer.write(b"some")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with running_relay() as (_, link, address), kv_source(handler) as target:
        _, reader, writer = await open_transfer(address, target)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() in {b"some", b""}
        await closed(writer)
        await settled(lambda: not link.flows)


async def test_what_a_source_sent_before_it_left_still_arrives():
    payload = random.Random(2).randbytes(60_000)
    shape = LinkShape(capacity_bytes_per_s=100_000, rtt_s=0.0)
    async with running_relay(shape) as (_, link, address), kv_source(sends(payload)) as target:
        _, reader, writer = await open_transfer(address, target)
        for _ in range(3):
            await reader.readexactly(10_000)
            writer.write(b"to nobody")
        assert len(await reader.read(-1)) == len(payload) - 30_000
        await closed(writer)
        await settled(lambda: not link.flows)
        assert link.bytes_total == len(payload)


async def test_a_half_closed_puller_still_gets_its_answer():
    async def handler(reader, writer):
        request = await reader.read()
        writer.write(request[::-1])
        await writer.drain()

    async with running_relay(LinkShape(1e9, rtt_s=0.01)) as (_, link, address), kv_source(handler) as target:
        _, reader, writer = await open_transfer(address, target)
        writer.write(b"abc")
        writer.write_eof()
        assert await reader.read() == b"cba"
        await closed(writer)
        await settled(lambda: not link.flows)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"link": "nowhere"}, "unknown link"),
        ({"target": "10.1.2.3:80"}, "target is outside the allowed networks"),
        ({"target": "127.0.0.1"}, "target must be host:port"),
        ({"target": "127.0.0.1:1"}, "target cannot be reached"),
    ],
)
async def test_refuses_with_the_reason(fields, reason):
    async with running_relay() as (relay, link, address):
        answer, reader, writer = await open_transfer(address, **{"target": "127.0.0.1:1", **fields})
        assert answer == {"ok": False, "error": reason}
        assert await reader.read() == b""
        await closed(writer)
        assert not link.flows
        await settled(lambda: relay.handshakes == 0)


async def test_refuses_a_first_line_without_end():
    async with running_relay() as (_, _link, (host, port)):
        reader, writer = await connect((host, port))
        writer.write(b"x" * 5000)
        assert json.loads(await reader.readline())["ok"] is False
        await closed(writer)


@contextlib.asynccontextmanager
async def admin_of(relay):
    runner = web.AppRunner(build_admin_app(relay, SiteSecret(SECRET)))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
        yield session
    await runner.cleanup()


async def test_the_admin_api_shows_transfers_and_changes_links_only_with_the_secret():
    bearer = {"Authorization": f"Bearer {SECRET}"}
    slow = LinkShape(capacity_bytes_per_s=1e9, rate_cap_bytes_per_s=1000, rtt_s=0.0)
    async with (
        running_relay(slow) as (relay, link, address),
        kv_source(sends(bytes(200_000))) as target,
        admin_of(relay) as session,
    ):
        _, reader, writer = await open_transfer(address, target, transfer_id="one", pipeline="direct")
        state = (await (await session.get("/links")).json())[0]
        assert (state["name"], state["flows"], state["rate_cap_bytes_per_s"]) == ("ams-fra", 1, 1000)
        assert [(t["transfer_id"], t["pipeline"]) for t in state["transfers"]] == [("one", "direct")]

        change = {"rate_cap_bytes_per_s": 5e8, "rtt_s": 0.001}
        assert (await session.put("/links/ams-fra", json=change)).status == 401
        assert (await session.put("/links/ams-fra", json=change, headers={"Authorization": "Bearer no"})).status == 401
        assert (await session.put("/links/none", json=change, headers=bearer)).status == 404
        assert (await session.put("/links/ams-fra", json={"rtt_s": "x"}, headers=bearer)).status == 400
        assert link.shape == slow
        changed = await session.put("/links/ams-fra", json=change, headers=bearer)
        assert (changed.status, (await changed.json())["rate_cap_bytes_per_s"]) == (200, 5e8)
        assert len(await reader.read(-1)) == 200_000
        await closed(writer)

        metrics = await (await session.get("/metrics")).text()
        assert (
            'pdd_kv_transfer_bytes_total{link="ams-fra",pipeline="direct",service_class="default"} 200000.0' in metrics
        )
        assert 'pdd_kv_transfers_in_flight{link="ams-fra"}' in metrics
        assert 'pdd_link_utilization_ratio{link="ams-fra"}' in metrics
        assert (await session.get("/health")).status == 200


def told(size):
    """A target that sends `size` bytes once it is asked to."""

    async def handler(reader, writer):
        await reader.readexactly(1)
        writer.write(bytes(size))
        await writer.drain()

    return handler


async def test_streams_of_one_transfer_are_one_transfer_with_a_cap_each():
    shape = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.0, flow_cap_bytes_per_s=500_000)
    async with running_relay(shape) as (_, link, address), kv_source(told(500_000)) as target:
        streams = [await open_transfer(address, target, transfer_id="wide") for _ in range(3)]
        _, lone_reader, lone = await open_transfer(address, target, transfer_id="narrow")
        assert [(state["transfer_id"], state["streams"]) for state in link.state()["transfers"]] == [
            ("wide", 3),
            ("narrow", 1),
        ]
        wide, narrow = link.transfers
        for _, _, writer in [*streams, (None, None, lone)]:
            writer.write(b"g")
        await lone_reader.readexactly(500_000)
        assert wide.sent_bytes > 2 * narrow.sent_bytes
        for _, reader, writer in streams:
            assert len(await reader.read(-1)) == 500_000
            await closed(writer)
        await closed(lone)
        await settled(lambda: not link.transfers)
        assert link.bytes_total == 2_000_000


async def test_transfers_beyond_the_limit_wait_in_the_order_of_class_then_arrival():
    shape = LinkShape(
        capacity_bytes_per_s=1e9, rtt_s=0.0, max_transfers=1, classes={"gold": ClassShare(priority=5)}, paused=True
    )
    size = 300_000
    async with running_relay(shape) as (_, link, address), kv_source(told(size)) as target:
        order = []
        opened = [("first", "default"), ("second", "default"), ("third", "default"), ("gold", "gold")]
        streams = []
        for name, service_class in opened:
            _, reader, writer = await open_transfer(address, target, transfer_id=name, service_class=service_class)
            streams.append((name, reader, writer))
            writer.write(b"g")
            transfer = link.transfer(name)
            await settled(lambda transfer=transfer: transfer.holds_place or transfer.is_waiting)
        assert (link.state()["queue_depth"], link.transfer("first").holds_place) == (3, True)

        async def finish(name, reader):
            await reader.readexactly(1)
            order.append(name)
            await reader.readexactly(size - 1)

        readers = [asyncio.create_task(finish(name, reader)) for name, reader, _ in streams]
        link.reshape({"paused": False})
        await asyncio.gather(*readers)
        assert order == ["first", "gold", "second", "third"]
        assert link.waits.state()["count"] == 4
        assert link.waits.counts[0] == 1
        assert {entry["service_class"]: entry["bytes"] for entry in link.state()["bytes_by"]} == {
            "default": 3 * size,
            "gold": size,
        }
        for _, _, writer in streams:
            await closed(writer)
        await settled(lambda: not link.transfers)


async def test_a_transfer_that_sends_nothing_lets_the_next_one_have_its_place():
    async def handler(reader, writer):
        writer.write(b"hello")
        await reader.read()

    shape = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.0, max_transfers=1)
    async with running_relay(shape) as (_, _link, address), kv_source(handler) as target:
        opened = [await open_transfer(address, target, transfer_id=str(index)) for index in range(3)]
        for _, reader, _ in opened:
            assert await reader.readexactly(5) == b"hello"
        for _, _, writer in opened:
            await closed(writer)


async def test_a_raised_limit_lets_waiting_transfers_in_and_a_lowered_one_holds_them_back():
    slow = LinkShape(capacity_bytes_per_s=100_000, rtt_s=0.0, max_transfers=1)
    async with running_relay(slow) as (_, link, address), kv_source(told(10**6)) as target:
        streams = [await open_transfer(address, target, transfer_id=name) for name in ("a", "b")]
        for _, _, writer in streams:
            writer.write(b"g")
        await settled(lambda: link.waiting_transfers == 1)
        link.reshape({"max_transfers": None})
        await settled(lambda: link.waiting_transfers == 0)
        assert all(transfer.holds_place for transfer in link.transfers)
        link.reshape({"max_transfers": 1})
        await settled(lambda: link.waiting_transfers == 1)
        for _, _, writer in streams:
            await closed(writer)


async def test_the_admin_api_pauses_and_cuts_one_transfer_by_its_id():
    bearer = {"Authorization": f"Bearer {SECRET}"}
    shape = LinkShape(capacity_bytes_per_s=2_000_000, rtt_s=0.0)
    async with (
        running_relay(shape) as (relay, link, address),
        kv_source(told(10**6)) as target,
        admin_of(relay) as session,
    ):
        _, reader, writer = await open_transfer(address, target, transfer_id="a/b")
        path = "/links/ams-fra/transfers/a%2Fb"
        for method in ("PUT", "DELETE"):
            assert (await session.request(method, URL(path, encoded=True), json={"paused": True})).status == 401
        assert (await session.put(URL(path, encoded=True), json={"paused": 1}, headers=bearer)).status == 400
        assert (await session.delete("/links/ams-fra/transfers/none", headers=bearer)).status == 404
        assert (await session.delete("/links/none/transfers/a", headers=bearer)).status == 404

        paused = await session.put(URL(path, encoded=True), json={"paused": True}, headers=bearer)
        assert (await paused.json())["state"] == "paused"
        writer.write(b"g")
        await settled(lambda: link.state()["queued_bytes"] > 0)
        await asyncio.sleep(0.05)
        assert link.bytes_total == 0
        _, other_reader, other = await open_transfer(address, target, transfer_id="other")
        other.write(b"g")
        assert len(await other_reader.read(-1)) == 10**6
        await closed(other)
        await session.put(URL(path, encoded=True), json={"paused": False}, headers=bearer)
        await reader.readexactly(1000)

        cut = await (await session.delete(URL(path, encoded=True), headers=bearer)).json()
        assert cut["streams"] == 1
        assert 1000 <= cut["bytes"] <= 10**6
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read(-1)) < 10**6 - 1000
        assert not link.transfers
        await closed(writer)
        metrics = await (await session.get("/metrics")).text()
        assert 'pdd_link_cut_transfers_total{link="ams-fra"} 1.0' in metrics
        assert 'pdd_link_queue_depth{link="ams-fra"} 0.0' in metrics
        assert 'pdd_link_queue_wait_seconds_count{link="ams-fra"}' in metrics


@contextlib.asynccontextmanager
async def relay_process(tmp_path):
    """The relay as `pdd up` starts it, on its own event loop: the process, its data address and its admin URL."""
    config = tmp_path / "links.json"
    link = {"name": "l", "source": "a", "target": "b", "capacity_bytes_per_s": 200_000, "rtt_s": 0.01}
    config.write_text(json.dumps({"links": [link]}))
    arguments = ("-m", "engine_agents.wan", "--port", "0", "--admin-port", "0", "--config", str(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    ready, admin = [(await process.stdout.readline()).decode().split() for _ in range(2)]
    assert (ready[0], admin[0]) == ("ready", "admin")
    host, port = ready[1].split(":")
    try:
        yield process, (host, int(port)), f"http://{admin[1]}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_the_process_says_when_it_listens_and_ends_on_sigterm(tmp_path):
    async with relay_process(tmp_path) as (process, address, _), kv_source(sends(bytes(10**6))) as target:
        answer, reader, writer = await open_transfer(address, target, link="l")
        assert answer == {"ok": True}
        process.terminate()
        _, log = await process.communicate()
        assert (process.returncode, b"Traceback" in log) == (0, False)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await closed(writer)


async def test_the_process_frees_a_cancelled_puller_and_keeps_its_count(tmp_path):
    async with (
        relay_process(tmp_path) as (_, address, admin),
        kv_source(sends(bytes(10**7))) as target,
        aiohttp.ClientSession() as session,
    ):

        async def state():
            return (await (await session.get(f"{admin}/links")).json())[0]

        _, reader, writer = await open_transfer(address, target, link="l")
        await reader.readexactly(5000)
        assert (await state())["flows"] == 1
        writer.transport.abort()
        while (await state())["flows"]:
            await asyncio.sleep(0.02)
        freed = await state()
        assert (freed["queued_bytes"], freed["transfers"]) == (0, [])
        assert 5000 <= freed["bytes_total"] == freed["bytes_by_pipeline"]["relay"] < 10**7
