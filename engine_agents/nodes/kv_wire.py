"""The KV wire's frames as bytes and back; pure, so that any chunking of any exchange can be tested.

A connection is one session over one lease; a puller that names itself may hold several. Puller: REQUEST (attach, and
the blocks wanted; may be none), later more REQUESTs or KEEPALIVEs, at last RELEASE. Server per REQUEST: REPLY, then
BLOCKs and END where the status is OK. Of a block whose beginning the puller has, it may ask for the rest alone.

Every frame starts with magic, version, kind and body length, little endian. Bodies of REQUEST and REPLY are msgpack;
a BLOCK's body is its fixed header, and the payload follows, so that it can be read straight into its final place.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash

from engine_agents.nodes.kv_blocks import Block, BlockPart, Payload
from engine_agents.nodes.kv_errors import BadFrameError

MAGIC = b"PDKV"
VERSION = 2
HASH_BYTES = 16
MAX_BODY_BYTES = 4 << 20
MAX_PAYLOAD_BYTES = 256 << 20

_FRAME = struct.Struct("<4sHHI")
_BLOCK = struct.Struct("<16sIIQQQ")
_END = struct.Struct("<IQ")
FRAME_BYTES = _FRAME.size
BLOCK_HEADER_BYTES = _FRAME.size + _BLOCK.size


class FrameKind(IntEnum):
    """What a frame is."""

    REQUEST = 1
    REPLY = 2
    BLOCK = 3
    END = 4
    KEEPALIVE = 5
    RELEASE = 6


class ReplyStatus(IntEnum):
    """How the server answers a request."""

    OK = 0
    BAD_FINGERPRINT = 1
    UNKNOWN_LEASE = 2
    LEASE_BUSY = 3
    BLOCK_GONE = 4
    BAD_REQUEST = 5


class Wanted(NamedTuple):
    """A block that a puller asks for, or its tokens from `from_token` on."""

    hash: bytes
    from_token: int = 0


class PullRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a puller asks for; `hashes` is the wanted block hashes, one after the other.

    `reader` is the same on all connections of one puller; without it a lease has one connection. `from_tokens` has,
    by its index, the first wanted token of each block that is not wanted whole.
    """

    fingerprint: str
    lease_id: str
    hashes: bytes
    reader: str = ""
    from_tokens: dict[int, int] = msgspec.field(default_factory=dict)

    def wanted(self) -> list[Wanted]:
        """The wanted blocks.

        Raises:
            BadFrameError: the bytes are no whole number of hashes, or a range belongs to none of them.
        """
        if len(self.hashes) % HASH_BYTES:
            raise BadFrameError(f"{len(self.hashes)} bytes of block hashes")
        count = len(self.hashes) // HASH_BYTES
        if any(not 0 <= index < count or from_token < 1 for index, from_token in self.from_tokens.items()):
            raise BadFrameError("a range of a block that is not asked for")
        starts = range(0, len(self.hashes), HASH_BYTES)
        hashes = [self.hashes[start : start + HASH_BYTES] for start in starts]
        return [Wanted(block_hash, self.from_tokens.get(index, 0)) for index, block_hash in enumerate(hashes)]


class PullReply(msgspec.Struct, frozen=True, array_like=True):
    """The server's answer, sent before any block."""

    status: int
    fingerprint: str
    block_tokens: int
    kv_bytes_per_token: int
    block_count: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class PreambleLine:
    """The WAN relay's one-line answer, without its line end."""

    line: bytes


@dataclass(frozen=True, slots=True)
class EndOfBlocks:
    """All blocks of a request have been sent."""

    block_count: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The puller still needs the lease."""


@dataclass(frozen=True, slots=True)
class Release:
    """The puller needs the lease no more."""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What precedes a payload: whose it is, its length, its xxh3_64 checksum and that of the whole block's payload."""

    hash: bytes
    token_count: int
    from_token: int
    payload_bytes: int
    checksum: int
    block_checksum: int

    def block(self, payload: Payload) -> Block | BlockPart:
        """The block, or the part of it, whose payload this is."""
        if self.from_token:
            return BlockPart(self.hash, self.token_count, self.from_token, payload, self.block_checksum)
        return Block(self.hash, self.token_count, payload, self.checksum)


Frame = PullRequest | PullReply | BlockHeader | EndOfBlocks | Keepalive | Release
Event = PreambleLine | PullRequest | PullReply | Block | BlockPart | EndOfBlocks | Keepalive | Release


def encode_request(fingerprint: str, lease_id: str, wanted: Sequence[Wanted], reader: str = "") -> bytes:
    """A REQUEST frame."""
    from_tokens = {index: want.from_token for index, want in enumerate(wanted) if want.from_token}
    request = PullRequest(fingerprint, lease_id, b"".join(want.hash for want in wanted), reader, from_tokens)
    return _frame(FrameKind.REQUEST, msgspec.msgpack.encode(request))


def encode_reply(reply: PullReply) -> bytes:
    """A REPLY frame."""
    return _frame(FrameKind.REPLY, msgspec.msgpack.encode(reply))


def encode_block_header(block: Block | BlockPart) -> bytes:
    """A BLOCK frame up to its payload, which the caller sends next, as it is."""
    if isinstance(block, BlockPart):
        from_token, block_checksum = block.from_token, block.block_checksum
        checksum = xxhash.xxh3_64_intdigest(block.payload)
    else:
        from_token, checksum, block_checksum = 0, block.digest(), block.digest()
    fields = (block.hash, block.token_count, from_token, block.size_bytes, checksum, block_checksum)
    return _frame(FrameKind.BLOCK, _BLOCK.pack(*fields))


def encode_end(block_count: int, payload_bytes: int) -> bytes:
    """An END frame."""
    return _frame(FrameKind.END, _END.pack(block_count, payload_bytes))


def encode_keepalive() -> bytes:
    """A KEEPALIVE frame."""
    return _frame(FrameKind.KEEPALIVE, b"")


def encode_release() -> bytes:
    """A RELEASE frame."""
    return _frame(FrameKind.RELEASE, b"")


def _frame(kind: FrameKind, body: bytes) -> bytes:
    return _FRAME.pack(MAGIC, VERSION, kind, len(body)) + body


def decode_prefix(data: Payload | bytearray) -> tuple[FrameKind, int]:
    """The kind and body length that a frame's first FRAME_BYTES announce.

    Raises:
        BadFrameError: they are not the start of a frame of this version.
    """
    magic, version, kind, length = _FRAME.unpack(data)
    if magic != MAGIC:
        raise BadFrameError("not a frame of the KV wire")
    if version != VERSION:
        raise BadFrameError(f"version {version} of the KV wire, this node speaks {VERSION}")
    if length > MAX_BODY_BYTES:
        raise BadFrameError(f"a frame body of {length} bytes")
    try:
        return FrameKind(kind), length
    except ValueError:
        raise BadFrameError(f"unknown frame kind {kind}") from None


def decode_body(kind: FrameKind, body: bytes) -> Frame:
    """The frame that a body of this kind says.

    Raises:
        BadFrameError: the body is malformed.
    """
    try:
        match kind:
            case FrameKind.REQUEST:
                return msgspec.msgpack.decode(body, type=PullRequest)
            case FrameKind.REPLY:
                return msgspec.msgpack.decode(body, type=PullReply)
            case FrameKind.END:
                return EndOfBlocks(*_END.unpack(body))
            case FrameKind.KEEPALIVE | FrameKind.RELEASE if body:
                raise BadFrameError("a body where none belongs")
            case FrameKind.KEEPALIVE:
                return Keepalive()
            case FrameKind.RELEASE:
                return Release()
            case FrameKind.BLOCK:
                return _checked(BlockHeader(*_BLOCK.unpack(body)))
    except (msgspec.DecodeError, struct.error) as error:
        raise BadFrameError(f"malformed {kind.name} frame: {error}") from None


def _checked(header: BlockHeader) -> BlockHeader:
    if header.payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadFrameError(f"a payload of {header.payload_bytes} bytes")
    if header.from_token and header.from_token >= header.token_count:
        raise BadFrameError(f"token {header.from_token} of a block of {header.token_count}")
    return header
