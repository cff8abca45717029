"""The KV wire: whatever is encoded comes back, in whatever pieces it arrives, and damage is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.nodes.kv_blocks import Block, BlockPart
from engine_agents.nodes.kv_decoder import STAGING_BYTES, Decoder
from engine_agents.nodes.kv_errors import BadFrameError, ChecksumMismatchError, KvError
from engine_agents.nodes.kv_wire import (
    FRAME_BYTES,
    MAGIC,
    EndOfBlocks,
    FrameKind,
    Keepalive,
    PreambleLine,
    PullReply,
    PullRequest,
    Release,
    Wanted,
    decode_body,
    encode_block_header,
    encode_end,
    encode_keepalive,
    encode_release,
    encode_reply,
    encode_request,
)

HASHES = st.binary(min_size=16, max_size=16)
TEXT = st.text(max_size=40)
COUNTS = st.integers(0, 2**31)
BLOCKS = st.builds(Block, HASHES, st.integers(1, 64), st.binary(max_size=3000))
PARTS = st.builds(
    lambda name, start, rest, payload, checksum: BlockPart(name, start + rest, start, payload, checksum),
    HASHES,
    st.integers(1, 63),
    st.integers(1, 63),
    st.binary(max_size=3000),
    st.integers(0, 2**64 - 1),
)
WANTED = st.lists(st.builds(Wanted, HASHES, st.integers(0, 63)))
REQUESTS = st.builds(
    lambda name, lease, wanted: decode_body(FrameKind.REQUEST, encode_request(name, lease, wanted)[FRAME_BYTES:]),
    TEXT,
    TEXT,
    WANTED,
)
REPLIES = st.builds(PullReply, st.integers(0, 5), TEXT, COUNTS, COUNTS, COUNTS, TEXT)
EVENTS = st.lists(
    st.one_of(
        BLOCKS,
        PARTS,
        REQUESTS,
        REPLIES,
        st.builds(EndOfBlocks, COUNTS, st.integers(0, 2**63)),
        st.just(Keepalive()),
        st.just(Release()),
    ),
    max_size=8,
)


def encoded(event) -> bytes:
    match event:
        case Block() | BlockPart():
            return encode_block_header(event) + bytes(event.payload)
        case PullRequest():
            return encode_request(event.fingerprint, event.lease_id, event.wanted())
        case PullReply():
            return encode_reply(event)
        case EndOfBlocks():
            return encode_end(event.block_count, event.payload_bytes)
        case Keepalive():
            return encode_keepalive()
        case Release():
            return encode_release()
    raise AssertionError(event)


def decoded(data: bytes, sizes: list[int], *, preamble: bool = False) -> list:
    """Feed the data in pieces of the given sizes, round and round."""
    decoder, events, at, turn = Decoder(preamble=preamble), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        events += decoder.feed(data[at : at + size])
        at += size
        turn += 1
    assert decoder.is_between_frames
    return events


def received(data: bytes) -> list:
    """The way a transport does it: fill the offered buffer as far as data goes."""
    decoder, events, at = Decoder(), [], 0
    while at < len(data):
        room = decoder.buffer()
        assert len(room) > 0
        count = min(len(room), len(data) - at)
        room[:count] = data[at : at + count]
        at += count
        events += decoder.advance(count)
    return events


@given(EVENTS, st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_every_exchange_survives_any_chunking(events, sizes):
    data = b"".join(encoded(event) for event in events)
    assert decoded(data, sizes) == events
    assert received(data) == events


@given(EVENTS)
def test_the_relays_line_comes_before_the_frames(events):
    data = b'{"ok":true}\n' + b"".join(encoded(event) for event in events)
    assert decoded(data, [7], preamble=True) == [PreambleLine(b'{"ok":true}'), *events]


@pytest.mark.parametrize("size", [STAGING_BYTES - 60, STAGING_BYTES, 3 * STAGING_BYTES + 17])
def test_payloads_larger_than_the_staging_buffer_are_received_in_place(size):
    block = Block(b"h" * 16, 64, bytes(range(256)) * (size // 256) + bytes(size % 256))
    data = encoded(block) + encoded(Release())
    assert received(data) == [block, Release()]
    assert decoded(data, [1500]) == [block, Release()]


def test_a_request_for_very_many_blocks_outgrows_the_staging_buffer():
    request = PullRequest("model", "lease", bytes(16) * 20_000)
    assert received(encoded(request)) == [request]


@given(BLOCKS.filter(lambda block: block.size_bytes > 0), st.data())
def test_one_flipped_bit_of_a_payload_is_noticed(block, data):
    at = data.draw(st.integers(0, block.size_bytes - 1))
    bit = data.draw(st.integers(0, 7))
    frame = bytearray(encoded(block))
    frame[len(frame) - block.size_bytes + at] ^= 1 << bit
    with pytest.raises(ChecksumMismatchError):
        decoded(bytes(frame), [100])


@given(TEXT, TEXT, WANTED, TEXT)
def test_a_request_says_which_blocks_are_wanted_and_from_which_token(fingerprint, lease, wanted, reader):
    (request,) = received(encode_request(fingerprint, lease, wanted, reader))
    assert request.wanted() == wanted
    assert (request.fingerprint, request.lease_id, request.reader) == (fingerprint, lease, reader)


@given(PARTS.filter(lambda part: part.size_bytes > 0), st.data())
def test_one_flipped_bit_of_a_parts_payload_is_noticed(part, data):
    frame = bytearray(encoded(part))
    at = data.draw(st.integers(0, part.size_bytes - 1))
    frame[len(frame) - part.size_bytes + at] ^= 1
    with pytest.raises(ChecksumMismatchError):
        decoded(bytes(frame), [100])


@given(st.binary(min_size=12, max_size=200).filter(lambda data: not data.startswith(MAGIC)))
def test_foreign_bytes_are_refused(data):
    with pytest.raises(BadFrameError):
        Decoder().feed(data)


@given(st.binary(max_size=300))
def test_garbage_behind_a_valid_magic_never_raises_anything_else(data):
    decoder = Decoder()
    try:
        decoder.feed(MAGIC + data)
    except KvError:
        return
    assert decoder.buffer()


@pytest.mark.parametrize(
    "frame",
    [
        MAGIC + b"\x01\x00\x01\x00" + b"\x00" * 4,
        MAGIC + b"\x02\x00\x63\x00" + b"\x00" * 4,
        MAGIC + b"\x02\x00\x01\x00" + b"\xff\xff\xff\x7f",
        MAGIC + b"\x02\x00\x05\x00" + b"\x01\x00\x00\x00x",
        MAGIC + b"\x02\x00\x04\x00" + b"\x01\x00\x00\x00x",
        MAGIC + b"\x02\x00\x01\x00" + b"\x01\x00\x00\x00\xc1",
    ],
    ids=["version", "kind", "length", "keepalive with body", "short end", "not msgpack"],
)
def test_a_malformed_frame_is_refused(frame):
    with pytest.raises(BadFrameError):
        Decoder().feed(frame)


def test_a_payload_beyond_all_reason_is_refused_before_memory_is_taken():
    header = bytearray(encode_block_header(Block(b"h" * 16, 64, b"")))
    header[12 + 24 : 12 + 32] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(BadFrameError):
        Decoder().feed(bytes(header))


def test_an_endless_relay_line_is_refused():
    with pytest.raises(BadFrameError):
        Decoder(preamble=True).feed(b"x" * 10_000)


def test_broken_hash_lists_are_refused():
    with pytest.raises(BadFrameError):
        PullRequest("model", "lease", b"x" * 17).wanted()


@pytest.mark.parametrize("from_tokens", [{1: 5}, {-1: 5}, {0: 0}, {0: -3}])
def test_a_range_of_no_wanted_block_is_refused(from_tokens):
    with pytest.raises(BadFrameError):
        PullRequest("model", "lease", b"x" * 16, from_tokens=from_tokens).wanted()


def test_a_part_that_begins_behind_its_block_is_refused():
    with pytest.raises(BadFrameError):
        Decoder().feed(encode_block_header(BlockPart(b"h" * 16, 30, 30, b"", 0)))
