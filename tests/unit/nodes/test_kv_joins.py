"""A block whose beginning is resident: only its rest is sent, and the joined block is the sender's or is not kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from engine_agents.nodes.kv_blocks import Block, BlockPart, BlockStore
from engine_agents.nodes.kv_connection import PullSource
from engine_agents.nodes.kv_errors import BadFrameError, FingerprintMismatchError
from engine_agents.nodes.kv_prefix import Cut, cut_blocks, resident_beginning
from engine_agents.nodes.kv_wire import PullReply, ReplyStatus, encode_block_header, encode_end, encode_reply
from tests.unit.nodes.kv_bench import FINGERPRINT, LAYOUT, Target, relay, source, target, until

TOKEN_BYTES = LAYOUT.token_bytes
TOKENS = list(range(1000, 1400))


def kv_of(tokens: list[int]) -> bytes:
    """Rows that name their token and plane."""
    return b"".join(
        b"".join((token * 7 + plane).to_bytes(size, "little") for token in tokens)
        for plane, size in enumerate(LAYOUT.row_bytes)
    )


def blocks_of(tokens: list[int]) -> list[Block]:
    return [Block(cut.hash, cut.token_count, kv_of(tokens[cut.start : cut.end])) for cut in cut_blocks(tokens)]


def head_of(store: BlockStore, tokens: list[int], cut: Cut) -> Block | None:
    return resident_beginning(store, tokens[cut.start : cut.end], cut.parent, limit=cut.token_count - 1)


def part_of(block: Block, from_token: int, payload: bytes) -> BlockPart:
    return BlockPart(block.hash, block.token_count, from_token, payload, block.digest())


def given_kv(near, tokens: list[int]):
    near.store.put_chain(blocks_of(tokens))
    return near.lease(cut_blocks(tokens), filled=False)


async def pull(far: Target, tokens: list[int], way, holder: str = "r"):
    return await far.puller.pull(holder, cut_blocks(tokens), way, partial(head_of, far.store, tokens))


def holds(far: Target, tokens: list[int]) -> bool:
    found = [far.store.get(block.hash) for block in blocks_of(tokens)]
    return found == blocks_of(tokens) and all(block.checksum == block.digest() for block in found)


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[PullSource]:
    """A server that answers whatever it is asked with these bytes, all at once."""
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        with contextlib.suppress(OSError):
            await writer.drain()
            await reader.read()
        writer.transport.abort()
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield PullSource("127.0.0.1", server.sockets[0].getsockname()[1], "lease")
        await until(served.is_set)


@pytest.mark.parametrize(("resident", "wanted"), [(30, 300), (100, 128), (100, 120), (1, 2), (127, 128), (64, 100)])
async def test_only_the_rest_of_a_block_is_sent(resident, wanted):
    async with source() as near:
        far, tokens = target(), TOKENS[:wanted]
        far.store.put_chain(blocks_of(tokens[:resident]))
        report = await pull(far, tokens, given_kv(near, tokens))
        assert holds(far, tokens)
        joined = resident % 64
        assert report.pulled_tokens == wanted - resident
        assert report.pulled_bytes == near.counters.served_bytes == (wanted - resident) * TOKEN_BYTES
        assert (far.counters.joined_tokens, far.counters.joined_bytes) == (joined, joined * TOKEN_BYTES)
        assert far.counters.failed_joins == 0
        await until(lambda: len(near.leases) == 0)


async def test_the_longest_resident_beginning_is_used():
    async with source() as near:
        far, tokens = target(), TOKENS[:64]
        for length in (10, 40, 20):
            far.store.put_chain(blocks_of(tokens[:length]))
        assert (await pull(far, tokens, given_kv(near, tokens))).pulled_tokens == 24


async def test_a_beginning_without_its_parent_is_not_used():
    async with source() as near:
        far, tokens = target(), TOKENS[:128]
        parent, tail = blocks_of(tokens[:100])
        far.store.put(tail)
        assert (await pull(far, tokens, given_kv(near, tokens))).pulled_tokens == 128
        assert parent.hash in far.store
        assert holds(far, tokens)


@pytest.mark.parametrize("at", [0, 20 * 4 + 3, 30 * 16 - 1])
async def test_a_beginning_that_is_not_the_senders_is_forgotten_and_the_block_sent_whole(at):
    async with source() as near:
        far, tokens = target(), TOKENS[:150]
        (tail,) = blocks_of(tokens[:30])
        wrong = bytearray(tail.payload)
        wrong[at] ^= 1
        far.store.put(replace(tail, payload=bytes(wrong)))
        report = await pull(far, tokens, given_kv(near, tokens))
        assert holds(far, tokens)
        assert tail.hash not in far.store
        assert (far.counters.failed_joins, far.counters.joined_bytes) == (1, 0)
        assert report.pulled_tokens == 150
        assert report.pulled_bytes == near.counters.served_bytes == (150 + 34) * TOKEN_BYTES


async def test_a_wrong_beginning_that_is_pinned_is_not_tried_again():
    async with source() as near:
        far, tokens = target(), TOKENS[:64]
        (tail,) = blocks_of(tokens[:30])
        far.store.put(replace(tail, payload=bytes(len(tail.payload))))
        far.store.pin("someone", [tail.hash])
        await pull(far, tokens, given_kv(near, tokens))
        assert holds(far, tokens)
        assert far.counters.failed_joins == 1


async def test_a_node_that_knows_no_layout_asks_for_whole_blocks():
    async with source() as near:
        far, tokens = target(joins=False), TOKENS[:100]
        far.store.put_chain(blocks_of(tokens[:30]))
        assert (await pull(far, tokens, given_kv(near, tokens))).pulled_tokens == 100


async def test_whoever_waits_for_a_joined_block_counts_only_what_was_sent():
    async with source() as near, relay() as wan:
        far, tokens = target(), TOKENS[:128]
        far.store.put_chain(blocks_of(tokens[:100]))
        wan.opened.clear()
        first = asyncio.create_task(pull(far, tokens, wan.via(given_kv(near, tokens)), "r1"))
        await until(lambda: far.puller.blocks_in_flight == 1)
        second = asyncio.create_task(pull(far, tokens, given_kv(near, tokens), "r2"))
        await until(lambda: near.server.sessions == 2)
        wan.opened.set()
        one, two = await asyncio.gather(first, second)
        assert (one.pulled_tokens, two.pulled_tokens, two.waited_tokens) == (28, 0, 28)
        assert far.store.pinned_by("r2") >= {cut.hash for cut in cut_blocks(tokens)}


async def test_a_broken_transfer_asks_again_for_the_same_rest():
    async with source() as near, relay() as wan:
        far, tokens = target(), TOKENS[:128]
        far.store.put_chain(blocks_of(tokens[:100]))
        wan.cut_after = [len(encode_reply(PullReply(ReplyStatus.OK, FINGERPRINT, 64, TOKEN_BYTES, 1))) + 70]
        report = await pull(far, tokens, wan.via(given_kv(near, tokens)))
        assert holds(far, tokens)
        assert far.counters.resumed_pulls == 1
        assert (report.pulled_tokens, far.counters.joined_tokens) == (28, 36)


async def test_a_range_behind_the_end_of_a_block_is_refused():
    async with source() as near:
        far, tokens = target(), TOKENS[:100]
        (cut,) = cut_blocks(tokens)[1:]
        long_head = Block(b"x" * 16, 36, b"")
        far.store.put(blocks_of(tokens)[0])
        with pytest.raises(BadFrameError):
            await far.puller.pull("r", cut_blocks(tokens), given_kv(near, tokens), lambda each: long_head)
        assert cut.hash not in far.store


@pytest.mark.parametrize("answer", ["whole", "another range", "another length", "short payload"])
async def test_a_server_that_sends_another_range_is_refused(answer):
    tokens = TOKENS[:64]
    (block,) = blocks_of(tokens)
    rest = LAYOUT.part(block.payload, 64, 30, 64)
    part = part_of(block, 30, rest)
    sent = {
        "whole": block,
        "another range": part_of(block, 31, LAYOUT.part(block.payload, 64, 31, 64)),
        "another length": replace(part, token_count=63),
        "short payload": replace(part, payload=rest[:-1]),
    }[answer]

    reply = PullReply(ReplyStatus.OK, FINGERPRINT, 64, TOKEN_BYTES, 1)
    data = encode_reply(reply) + encode_block_header(sent) + bytes(sent.payload) + encode_end(1, 0)
    async with answering(data) as way:
        far = target()
        far.store.put_chain(blocks_of(tokens[:30]))
        with pytest.raises(BadFrameError):
            await pull(far, tokens, way)
        assert block.hash not in far.store
        assert far.puller.blocks_in_flight == 0


async def test_blocks_behind_a_reply_of_another_model_are_not_kept():
    (block,) = blocks_of(TOKENS[:64])
    reply = PullReply(ReplyStatus.OK, "another model", 64, TOKEN_BYTES, 1)
    data = encode_reply(reply) + encode_block_header(block) + bytes(block.payload) + encode_end(1, 0)
    async with answering(data) as way:
        far = target()
        with pytest.raises(FingerprintMismatchError):
            await pull(far, TOKENS[:64], way)
        assert len(far.store) == far.puller.blocks_in_flight == 0
