"""Received bytes of the KV wire to events, whatever pieces the bytes arrive in."""

from collections.abc import Sequence

import numpy as np
import xxhash

from engine_agents.nodes.kv_blocks import Block, BlockPart, Payload
from engine_agents.nodes.kv_errors import BadFrameError, ChecksumMismatchError
from engine_agents.nodes.kv_wire import (
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    BlockHeader,
    Event,
    PreambleLine,
    decode_body,
    decode_prefix,
)

STAGING_BYTES = 1 << 16
READ_BYTES = 1 << 19  # what is read at once is still in the processor's cache when its checksum is taken
MAX_PREAMBLE_BYTES = 4096


class Decoder:
    """Turns received bytes into events. The transport writes into `buffer()`, then calls `advance(count)`.

    Small frames go through a staging buffer; a long payload is received directly into the block it becomes, and
    each piece is added to the checksum as it comes. Behind a long payload no more than the next header is read, so that
    the next payload is received in its place from its first byte on.
    """

    def __init__(self, *, preamble: bool = False) -> None:
        """Expect frames, or with `preamble` first the WAN relay's one-line answer."""
        self._staging = bytearray(STAGING_BYTES)
        self._start = 0
        self._end = 0
        self._header: BlockHeader | None = None
        self._payload = memoryview(b"")
        self._checksum = xxhash.xxh3_64()
        self._filled = 0
        self._is_direct = False
        self._is_behind_long = False
        self._preamble = preamble

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing is half received."""
        return not self._preamble and self._header is None and self._start == self._end

    def buffer(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        if self._is_direct:
            return self._payload[self._filled : self._filled + READ_BYTES]
        if self._start:
            held = self._staging[self._start : self._end]
            self._staging[: len(held)] = held
            self._start, self._end = 0, len(held)
        room = memoryview(self._staging)[self._end :]
        if self._is_behind_long and self._end < BLOCK_HEADER_BYTES:
            return room[: BLOCK_HEADER_BYTES - self._end]
        return room

    def advance(self, count: int) -> Sequence[Event]:
        """Take note of `count` more bytes in the last `buffer()`; gives the events that they complete.

        Raises:
            BadFrameError: the peer does not speak this wire.
            ChecksumMismatchError: a payload was damaged on its way.
        """
        if self._is_direct:
            self._fill(count)
            if self._is_direct:
                return ()
        else:
            self._end += count
        events: list[Event] = []
        while (event := self._next()) is not None:
            events.append(event)
        return events

    def feed(self, data: Payload) -> list[Event]:
        """The same for bytes that are somewhere else already."""
        events: list[Event] = []
        rest = memoryview(data)
        while rest:
            room = self.buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            events += self.advance(count)
            rest = rest[count:]
        return events

    def _next(self) -> Event | None:
        if self._preamble:
            return self._next_line()
        if self._header is None:
            event = self._next_frame()
            if event is None or not isinstance(event, BlockHeader):
                return event
            self._header = event
            # Not a bytearray: filling it with zeros would take longer than receiving into it.
            self._payload = np.empty(event.payload_bytes, np.uint8).data
            self._checksum.reset()
            self._filled = 0
        return self._next_payload(self._header)

    def _next_line(self) -> PreambleLine | None:
        at = self._staging.find(b"\n", self._start, self._end)
        if at < 0:
            if self._end - self._start > MAX_PREAMBLE_BYTES:
                raise BadFrameError("the relay's answer has no end")
            return None
        line = bytes(self._staging[self._start : at])
        self._start = at + 1
        self._preamble = False
        return PreambleLine(line)

    def _next_frame(self) -> Event | BlockHeader | None:
        if self._end - self._start < FRAME_BYTES:
            return None
        kind, length = decode_prefix(self._staging[self._start : self._start + FRAME_BYTES])
        if self._end - self._start < FRAME_BYTES + length:
            self._make_room(FRAME_BYTES + length)
            return None
        self._is_behind_long = False
        body_start = self._start + FRAME_BYTES
        self._start = body_start + length
        return decode_body(kind, bytes(self._staging[body_start : self._start]))

    def _next_payload(self, header: BlockHeader) -> Block | BlockPart | None:
        count = min(self._end - self._start, header.payload_bytes - self._filled)
        if count:
            staged = memoryview(self._staging)[self._start : self._start + count]
            self._payload[self._filled : self._filled + count] = staged
            self._start += count
            self._fill(count)
        if self._filled < header.payload_bytes:
            self._is_direct = True
            return None
        payload, self._payload, self._header = self._payload, memoryview(b""), None
        if self._checksum.intdigest() != header.checksum:
            raise ChecksumMismatchError(f"block {header.hash.hex()} was damaged on its way")
        return header.block(payload.toreadonly())

    def _fill(self, count: int) -> None:
        filled = self._filled + count
        self._checksum.update(self._payload[self._filled : filled])
        self._filled = filled
        if self._is_direct and filled == len(self._payload):
            self._is_direct = False
            self._is_behind_long = True

    def _make_room(self, frame_bytes: int) -> None:
        """Give a frame larger than the staging buffer a buffer of its size."""
        if frame_bytes > len(self._staging):
            held = self._staging[self._start : self._end]
            self._staging = held + bytearray(frame_bytes - len(held))
            self._start, self._end = 0, len(held)
