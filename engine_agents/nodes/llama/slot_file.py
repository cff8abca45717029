"""llama.cpp's saved slot as blocks of KV and back; pure, and the only place that knows the file's format.

The file, little endian:

    4 bytes "qsgg", u32 version 4
    u32 n, then n i32: -1, 1, token count, the tokens, 0
    u32 streams; for each stream u32 cells (0: the stream is empty), and for the one in use:
        cells x (i32 position, u32 1, i32 sequence)
        u32 0 (V is not transposed), u32 layers, u32 0, u32 0
        layers x (i32 ggml type, u64 row bytes, cells x row) for K, then the same for V

It changes between versions of llama.cpp, so everything that is not understood is refused. What nodes exchange is
our own layout. The payload of a block of t tokens, whole or partial, is, without padding:

    for each layer, K: t rows; then for each layer, V: t rows

that is `t * KvLayout.token_bytes` bytes, with row sizes and element types as the layout says.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine_agents.nodes.kv_layout import PayloadLayout

_MAGIC = int.from_bytes(b"qsgg", "little")
_VERSION = 4
PAYLOAD_VERSION = 1  # of the block payload's layout; part of what two nodes must agree on
_HEAD = (-1, 1)
_TAIL = (0,)
_CELL_BYTES = 12
_PLANE_HEADER = struct.Struct("<iQ")

Buffer = bytes | bytearray | memoryview


class SlotFileError(Exception):
    """A saved slot cannot be understood, or cannot be built from what was given."""


class UnknownSlotFormatError(SlotFileError):
    """The file is of another magic, version or structure than this codec was written for."""


class TruncatedSlotFileError(SlotFileError):
    """The file ends before its contents do."""


class PayloadSizeError(SlotFileError):
    """A block's payload is not as long as its tokens need."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The keys or the values of one layer: the ggml type of an element and the bytes of one token's row."""

    ggml_type: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What a token's KV looks like: the K planes of all layers, then the V planes of all layers."""

    planes: tuple[Plane, ...]

    @property
    def layers(self) -> int:
        """Layers of the model that have KV."""
        return len(self.planes) // 2

    @property
    def token_bytes(self) -> int:
        """Bytes of KV per token."""
        return sum(plane.row_bytes for plane in self.planes)

    @property
    def payload_layout(self) -> PayloadLayout:
        """The layout of a block's payload."""
        return PayloadLayout(tuple(plane.row_bytes for plane in self.planes))


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A parsed slot file; `rows` are views into the buffer it was parsed from, one per plane.

    An empty slot has no tokens, no planes and no rows.
    """

    tokens: tuple[int, ...]
    layout: KvLayout
    streams: int
    rows: tuple[memoryview, ...]

    def payload(self, start: int, end: int) -> bytes:
        """The KV of tokens[start:end] as a block payload: one copy.

        Raises:
            IndexError: the range does not lie inside the slot's tokens.
        """
        if not 0 <= start <= end <= len(self.tokens):
            raise IndexError(f"tokens {start} to {end} of a slot with {len(self.tokens)}")
        return b"".join(
            rows[start * plane.row_bytes : end * plane.row_bytes]
            for plane, rows in zip(self.layout.planes, self.rows, strict=True)
        )

    def release(self) -> None:
        """Let go of the buffer; the views cannot be read after that."""
        for rows in self.rows:
            rows.release()


def parse_slot_file(buffer: Buffer) -> SlotFile:
    """Read a saved slot without copying its KV.

    Raises:
        UnknownSlotFormatError: not a slot file as described above.
        TruncatedSlotFileError: it ends early.
    """
    reader = _Reader(memoryview(buffer).toreadonly())
    tokens = _read_tokens(reader)
    streams, behind, cells = _read_stream_counts(reader)
    if cells != len(tokens):
        raise UnknownSlotFormatError(f"{len(tokens)} tokens but KV for {cells}")
    planes: tuple[tuple[Plane, memoryview], ...] = ()
    if cells:
        _check_cells(reader.take(_CELL_BYTES * cells), cells)
        planes = _read_planes(reader, cells)
    if any(reader.u32s(behind)) or reader.rest:
        raise UnknownSlotFormatError("more than one sequence")
    layout = KvLayout(tuple(plane for plane, _ in planes))
    return SlotFile(tokens, layout, streams, tuple(rows for _, rows in planes))


def slot_file_bytes(layout: KvLayout, token_count: int, streams: int) -> int:
    """How long the file of a slot with that many tokens is."""
    integers = len(_HEAD) + 1 + token_count + len(_TAIL)
    state = 4 + 4 * streams + _CELL_BYTES * token_count + 16
    return 12 + 4 * integers + state + _PLANE_HEADER.size * len(layout.planes) + layout.token_bytes * token_count


def write_slot_file(
    target: memoryview,
    layout: KvLayout,
    streams: int,
    tokens: Sequence[int],
    blocks: Sequence[tuple[int, Buffer]],
) -> None:
    """Write the file of a slot that holds `tokens`, whose KV is given as blocks (token count, payload) in order.

    `target` is writable and exactly `slot_file_bytes` long. Each payload is copied once.

    Raises:
        PayloadSizeError: a payload does not fit its tokens, or the blocks do not add up to the tokens.
    """
    _check_blocks(layout, len(tokens), blocks)
    writer = _Writer(target)
    integers = (*_HEAD, len(tokens), *tokens, *_TAIL)
    writer.put(struct.pack("<3I", _MAGIC, _VERSION, len(integers)))
    writer.put(np.asarray(integers, dtype="<i4").tobytes())
    writer.put(struct.pack("<2I", streams, len(tokens)))
    cells = np.zeros((len(tokens), 3), dtype="<i4")
    cells[:, 0] = np.arange(len(tokens))
    cells[:, 1] = 1
    writer.put(cells.tobytes())
    writer.put(struct.pack("<4I", 0, layout.layers, 0, 0))
    payloads = [(count, memoryview(payload)) for count, payload in blocks]
    plane_start = 0  # bytes per token of the planes before this one
    for plane in layout.planes:
        writer.put(_PLANE_HEADER.pack(plane.ggml_type, plane.row_bytes))
        for count, payload in payloads:
            writer.put(payload[count * plane_start : count * (plane_start + plane.row_bytes)])
        plane_start += plane.row_bytes
    writer.put(bytes(4 * (streams - 1)))


@dataclass(slots=True)
class _Reader:
    view: memoryview
    offset: int = 0

    @property
    def rest(self) -> int:
        return len(self.view) - self.offset

    def take(self, size: int) -> memoryview:
        if size > self.rest:
            raise TruncatedSlotFileError(f"{size} bytes wanted at {self.offset}, {self.rest} left")
        start, self.offset = self.offset, self.offset + size
        return self.view[start : self.offset]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u32s(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.take(4 * count))


@dataclass(slots=True)
class _Writer:
    view: memoryview
    offset: int = 0

    def put(self, data: Buffer) -> None:
        end = self.offset + len(data)
        self.view[self.offset : end] = data
        self.offset = end


def _read_tokens(reader: _Reader) -> tuple[int, ...]:
    magic, version = reader.u32s(2)
    if (magic, version) != (_MAGIC, _VERSION):
        raise UnknownSlotFormatError(f"magic {magic:#x} version {version}, not {_MAGIC:#x} version {_VERSION}")
    integers: list[int] = np.frombuffer(reader.take(4 * reader.u32()), dtype="<i4").tolist()
    head, body = tuple(integers[: len(_HEAD)]), integers[len(_HEAD) :]
    if head != _HEAD or not body or len(body) != 1 + body[0] + len(_TAIL) or tuple(body[1 + body[0] :]) != _TAIL:
        raise UnknownSlotFormatError("the token list is of another structure")
    return tuple(body[1 : 1 + body[0]])


def _read_stream_counts(reader: _Reader) -> tuple[int, int, int]:
    """The number of streams, how many come behind the first one in use, and the cells of that one (0: none is)."""
    streams = reader.u32()
    for behind in range(streams - 1, -1, -1):
        cells = reader.u32()
        if cells:
            return streams, behind, cells
    return streams, 0, 0


def _check_cells(data: memoryview, cells: int) -> None:
    table = np.frombuffer(data, dtype="<i4").reshape(cells, 3)
    if not (np.array_equal(table[:, 0], np.arange(cells)) and (table[:, 1] == 1).all()):
        raise UnknownSlotFormatError("the cells are not one sequence in the order of its tokens")


def _read_planes(reader: _Reader, cells: int) -> tuple[tuple[Plane, memoryview], ...]:
    transposed, layers, *rest = reader.u32s(4)
    if transposed or any(rest):
        raise UnknownSlotFormatError("the values are transposed, or the state is of another structure")
    planes = []
    for _ in range(2 * layers):
        ggml_type, row_bytes = _PLANE_HEADER.unpack(reader.take(_PLANE_HEADER.size))
        planes.append((Plane(ggml_type, row_bytes), reader.take(cells * row_bytes)))
    return tuple(planes)


def _check_blocks(layout: KvLayout, token_count: int, blocks: Sequence[tuple[int, Buffer]]) -> None:
    for count, payload in blocks:
        if len(payload) != count * layout.token_bytes:
            raise PayloadSizeError(f"{len(payload)} bytes for {count} tokens of {layout.token_bytes} bytes each")
    if sum(count for count, _ in blocks) != token_count:
        raise PayloadSizeError(f"blocks of {sum(count for count, _ in blocks)} tokens for {token_count} tokens")
