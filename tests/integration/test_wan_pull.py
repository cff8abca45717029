"""Real pullers through the real relay: streams, cuts and queues, counted in exact bytes."""

import asyncio
import contextlib
import ipaddress

from engine_agents.nodes.kv_connection import PullSource, RelayRoute
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import LinkShape
from tests.unit.nodes.kv_bench import cuts_of, source, target, until
from tests.unit.nodes.test_kv_transfer import exchange_bytes


@contextlib.asynccontextmanager
async def running_link(shape):
    link = ShapedLink("l", "a", "b", shape)
    relay = Relay([link], [ipaddress.ip_network("127.0.0.0/8")])
    _, port = await relay.start("127.0.0.1", 0)

    def via(lease, transfer_id, streams=1):
        route = RelayRoute("127.0.0.1", port, "l", transfer_id, "relay", streams=streams)
        return PullSource(lease.host, lease.port, lease.lease_id, route)

    try:
        yield link, via
    finally:
        await relay.close()


async def test_a_pull_over_four_streams_is_one_transfer_and_brings_every_byte_once():
    shape = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.002, flow_cap_bytes_per_s=100_000)
    async with source() as near, running_link(shape) as (link, via):
        far, cuts = target(), cuts_of(640)
        pull = asyncio.create_task(far.puller.pull("r", cuts, via(near.lease(cuts), "t", streams=4)))
        await until(lambda: any(transfer.sent_bytes for transfer in link.transfers))
        await until(lambda: sum(transfer.state(0.0)["streams"] for transfer in link.transfers) == 4)
        assert len(link.transfers) == 1
        await pull
        assert far.holds(cuts)
        await until(lambda: not link.flows)
        assert link.bytes_total == sum(exchange_bytes(cuts[start::4]) for start in range(4))


async def test_a_cut_transfer_sends_only_the_blocks_that_had_not_landed():
    shape = LinkShape(capacity_bytes_per_s=50_000, rtt_s=0.002)
    async with source() as near, running_link(shape) as (link, via):
        far, cuts = target(), cuts_of(64 * 12)
        pull = asyncio.create_task(far.puller.pull("r", cuts, via(near.lease(cuts), "t")))
        await until(lambda: len(far.store) >= 3)
        link.cut_transfer(link.transfer("t"))
        link.reshape({"paused": True})
        sent_before = link.bytes_total
        await until(lambda: link.transfer("t") is not None)
        landed = len(far.store)
        assert 3 <= landed < 12
        link.reshape({"paused": False, "capacity_bytes_per_s": 1e9})
        report = await pull
        assert far.holds(cuts)
        assert report.pulled_tokens == 64 * 12
        await until(lambda: not link.flows)
        assert link.bytes_total - sent_before == exchange_bytes(cuts[landed:])
        assert (far.counters.resumed_pulls, link.cut_transfers_total) == (1, 1)
        await until(lambda: len(near.leases) == 0)


async def test_a_pull_that_waits_for_anothers_blocks_does_not_keep_it_from_the_link():
    shape = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.002, max_transfers=1, flow_cap_bytes_per_s=1.0)
    async with source() as near, running_link(shape) as (link, via):
        far, cuts = target(), cuts_of(640)
        first = asyncio.create_task(far.puller.pull("r1", cuts, via(near.lease(cuts), "one")))
        await until(lambda: link.transfer("one") is not None)
        link.pause_transfer(link.transfer("one"), paused=True)
        second = asyncio.create_task(far.puller.pull("r2", cuts, via(near.lease(cuts), "two")))
        await until(lambda: link.transfer("two") is not None and link.transfer("two").holds_place)
        link.pause_transfer(link.transfer("one"), paused=False)
        await until(lambda: link.transfer("one").is_waiting)
        link.reshape({"flow_cap_bytes_per_s": None})
        one, two = await asyncio.gather(first, second)
        assert (one.pulled_tokens, two.pulled_tokens, two.waited_tokens) == (640, 0, 640)
        assert far.holds(cuts)
        await until(lambda: not link.transfers)
        assert link.waits.sum_s > 0
