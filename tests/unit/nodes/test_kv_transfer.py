"""Transfers over several streams, and what a broken one sends again: every expectation is in exact bytes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.nodes.kv_blocks import Block
from engine_agents.nodes.kv_errors import (
    ChecksumMismatchError,
    LeaseBusyError,
    PeerLostError,
    PullStalledError,
)
from engine_agents.nodes.kv_transfer import MAX_FRUITLESS_RESUMES, may_resume, split_blocks
from engine_agents.nodes.kv_wire import PullReply, ReplyStatus, encode_block_header, encode_end, encode_reply
from tests.unit.nodes.kv_bench import FINGERPRINT, cuts_of, payload_of, relay, source, target, until


def reply_bytes(blocks):
    return len(encode_reply(PullReply(ReplyStatus.OK, FINGERPRINT, 64, 1, blocks)))


def block_bytes(cut):
    payload = payload_of(cut)
    return len(encode_block_header(Block(cut.hash, cut.token_count, payload))) + len(payload)


def exchange_bytes(cuts):
    """All that the server says to one request for these blocks."""
    return reply_bytes(len(cuts)) + sum(map(block_bytes, cuts)) + len(encode_end(0, 0))


@given(st.integers(0, 200), st.integers(1, 100))
def test_blocks_are_dealt_once_each_in_shares_that_differ_by_one_at_most(blocks, streams):
    hashes = [index.to_bytes(16, "big") for index in range(blocks)]
    shares = split_blocks(hashes, streams)
    assert sorted(block for share in shares for block in share) == hashes
    assert 1 <= len(shares) <= streams
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(shares) or blocks == 0


@pytest.mark.parametrize(
    ("error", "landed", "fruitless", "resumes"),
    [
        (PeerLostError(""), 3, 0, True),
        (PeerLostError(""), 0, MAX_FRUITLESS_RESUMES, True),
        (PeerLostError(""), 0, MAX_FRUITLESS_RESUMES + 1, False),
        (PullStalledError(""), 1, 0, True),
        (PullStalledError(""), 0, 1, False),
        (ChecksumMismatchError(""), 5, 0, False),
        (LeaseBusyError(""), 5, 0, False),
    ],
)
def test_a_transfer_goes_on_only_where_trying_again_can_help(error, landed, fruitless, resumes):
    assert may_resume(error, landed=landed, fruitless=fruitless) is resumes


async def test_one_transfer_uses_several_connections_and_gives_the_lease_back():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        report = await far.puller.pull("r", cuts, wan.via(near.lease(cuts), "t-9", streams=4))
        assert far.holds(cuts)
        assert [asked["transfer_id"] for asked in wan.preambles] == ["t-9"] * 4
        assert sorted(wan.passed_by_connection) == sorted(exchange_bytes(cuts[start::4]) for start in range(4))
        assert report.pulled_bytes == near.counters.served_bytes
        await until(lambda: len(near.leases) == 0 and near.server.sessions == 0)


async def test_opens_no_more_connections_than_blocks_are_missing():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(128)
        await far.puller.pull("r", cuts, wan.via(near.lease(cuts), streams=8))
        assert len(wan.preambles) == 2
        assert far.holds(cuts)


async def test_a_cut_transfer_goes_on_with_the_blocks_still_missing_and_no_other():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        # The cut falls into the fourth block: three have landed, seven are asked for again.
        wan.cut_after = [reply_bytes(10) + sum(map(block_bytes, cuts[:3])) + 100]
        report = await far.puller.pull("r", cuts, wan.via(near.lease(cuts)))
        assert far.holds(cuts)
        assert wan.passed_by_connection == [wan.cut_after[0], exchange_bytes(cuts[3:])]
        assert report.pulled_tokens == 640
        assert report.pulled_bytes == sum(len(payload_of(cut)) for cut in cuts)
        assert far.counters.resumed_pulls == 1
        assert far.counters.failed_pulls == 0
        await until(lambda: len(near.leases) == 0)


async def test_one_broken_stream_of_several_costs_only_its_own_missing_blocks():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        wan.cut_after = [reply_bytes(5) + block_bytes(cuts[0])]
        await far.puller.pull("r", cuts, wan.via(near.lease(cuts), streams=2))
        assert far.holds(cuts)
        # Four blocks are left, dealt to the stream that still stands and to one that is opened again.
        again = exchange_bytes(cuts[0:2]) + exchange_bytes(cuts[2:4])
        assert sum(wan.passed_by_connection) == wan.cut_after[0] + exchange_bytes(cuts[:5]) + again
        assert len(wan.passed_by_connection) == 3
        assert far.counters.resumed_pulls == 1


async def test_a_transfer_that_is_cut_before_it_began_is_asked_for_again():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.cut_after = [10]
        await far.puller.pull("r", cuts, wan.via(near.lease(cuts)))
        assert far.holds(cuts)
        assert wan.passed_by_connection == [10, exchange_bytes(cuts)]


async def test_a_transfer_that_never_gets_a_block_across_gives_up():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.cut_after = [10] * 50
        with pytest.raises(PeerLostError):
            await far.puller.pull("r", cuts, wan.via(near.lease(cuts)))
        assert len(wan.passed_by_connection) == 1 + MAX_FRUITLESS_RESUMES
        assert far.puller.blocks_in_flight == far.puller.running == 0
        assert len(near.leases) == 1


async def test_whoever_waits_for_a_block_goes_on_waiting_while_its_transfer_resumes():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(256)
        wan.cut_after = [reply_bytes(4) + block_bytes(cuts[0])]
        wan.opened.clear()
        first = asyncio.create_task(far.puller.pull("r1", cuts, wan.via(near.lease(cuts))))
        await until(lambda: far.puller.blocks_in_flight == 4)
        second = asyncio.create_task(far.puller.pull("r2", cuts, near.lease(cuts)))
        await until(lambda: near.server.sessions == 2)
        wan.opened.set()
        one, two = await asyncio.gather(first, second)
        assert (one.pulled_tokens, two.pulled_tokens, two.waited_tokens) == (256, 0, 256)


async def test_cancelling_closes_every_stream():
    async with source() as near, relay() as wan:
        far, cuts = target(), cuts_of(640)
        wan.opened.clear()
        pull = asyncio.create_task(far.puller.pull("r", cuts, wan.via(near.lease(cuts), streams=4)))
        await until(lambda: near.server.sessions == 4)
        pull.cancel()
        await asyncio.gather(pull, return_exceptions=True)
        await until(lambda: near.server.sessions == 0)
        assert far.puller.blocks_in_flight == far.puller.running == 0
        assert len(near.leases) == 1
