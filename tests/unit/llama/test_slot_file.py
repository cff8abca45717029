import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.nodes.llama.slot_file import (
    KvLayout,
    PayloadSizeError,
    Plane,
    SlotFileError,
    TruncatedSlotFileError,
    UnknownSlotFormatError,
    parse_slot_file,
    slot_file_bytes,
    write_slot_file,
)


def synthetic_file(tokens: list[int], *, streams: int = 4, used: int = 2, rows: tuple[int, int] = (6, 10)) -> bytes:
    """Written from the format's description, independently of the codec; plane p of token t is full of p * 16 + t."""
    count = len(tokens)
    out = [b"qsgg", struct.pack("<I", 4), struct.pack("<I", count + 4)]
    out += [struct.pack(f"<{count + 4}i", -1, 1, count, *tokens, 0), struct.pack("<I", streams)]
    out += [bytes(4 * used), struct.pack("<I", count)]
    out += [struct.pack("<iIi", position, 1, 0) for position in range(count)]
    out += [struct.pack("<4I", 0, 2, 0, 0)]
    for plane, row_bytes in enumerate([rows[0], rows[0], rows[1], rows[1]]):
        out.append(struct.pack("<iQ", 1, row_bytes))
        out += [bytes([plane * 16 + index]) * row_bytes for index in range(count)]
    return b"".join([*out, bytes(4 * (streams - used - 1))])


def rebuilt(layout: KvLayout, streams: int, tokens: list[int], blocks: list[tuple[int, bytes]]) -> bytearray:
    data = bytearray(slot_file_bytes(layout, len(tokens), streams))
    write_slot_file(memoryview(data), layout, streams, tokens, blocks)
    return data


def test_reads_tokens_and_layout() -> None:
    file = parse_slot_file(synthetic_file([5, 6, 7]))
    assert file.tokens == (5, 6, 7)
    assert file.streams == 4
    assert file.layout == KvLayout((Plane(1, 6), Plane(1, 6), Plane(1, 10), Plane(1, 10)))
    assert file.layout.layers == 2
    assert file.layout.token_bytes == 32


def test_a_payload_is_the_rows_of_its_tokens_plane_by_plane() -> None:
    file = parse_slot_file(synthetic_file([5, 6, 7]))
    expected = bytes([0x01] * 6 + [0x02] * 6 + [0x11] * 6 + [0x12] * 6)
    expected += bytes([0x21] * 10 + [0x22] * 10 + [0x31] * 10 + [0x32] * 10)
    assert file.payload(1, 3) == expected


def test_a_payload_outside_the_slot_is_refused() -> None:
    file = parse_slot_file(synthetic_file([5, 6, 7]))
    with pytest.raises(IndexError):
        file.payload(2, 4)


def test_rebuilds_the_very_file_from_whole_and_partial_blocks() -> None:
    original = synthetic_file([5, 6, 7, 8, 9], used=0)
    file = parse_slot_file(original)
    blocks = [(2, file.payload(0, 2)), (2, file.payload(2, 4)), (1, file.payload(4, 5))]
    assert rebuilt(file.layout, file.streams, list(file.tokens), blocks) == original


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9),
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    streams=st.integers(1, 5),
    block_tokens=st.integers(1, 4),
    data=st.data(),
)
def test_blocks_survive_the_way_through_a_file(
    tokens: list[int], rows: list[int], streams: int, block_tokens: int, data: st.DataObject
) -> None:
    layout = KvLayout(tuple(Plane(1, row) for row in rows for _ in "KV"))
    ranges = [(start, min(start + block_tokens, len(tokens))) for start in range(0, len(tokens), block_tokens)]
    blocks = []
    for start, end in ranges:
        size = (end - start) * layout.token_bytes
        blocks.append((end - start, data.draw(st.binary(min_size=size, max_size=size))))
    file = parse_slot_file(rebuilt(layout, streams, tokens, blocks))
    assert (list(file.tokens), file.layout, file.streams) == (tokens, layout, streams)
    assert [(end - start, file.payload(start, end)) for start, end in ranges] == blocks


@pytest.mark.parametrize("used", [0, 3])
def test_every_truncation_is_refused(used: int) -> None:
    whole = synthetic_file([5, 6], used=used)
    for size in range(len(whole)):
        with pytest.raises(SlotFileError):
            parse_slot_file(whole[:size])


def test_a_file_cut_inside_the_rows_is_called_truncated() -> None:
    with pytest.raises(TruncatedSlotFileError):
        parse_slot_file(synthetic_file([5, 6], used=3)[:-1])


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(0, b"ggsq", id="magic"),
        pytest.param(4, struct.pack("<I", 5), id="version"),
        pytest.param(12, struct.pack("<i", 0), id="head of the token list"),
        pytest.param(20, struct.pack("<i", 1), id="token count"),
        pytest.param(20, struct.pack("<i", -3), id="negative token count"),
        pytest.param(32, struct.pack("<i", 1), id="tail of the token list"),
        pytest.param(52, struct.pack("<i", 1), id="position of a cell"),
        pytest.param(56, struct.pack("<I", 2), id="sequences of a cell"),
        pytest.param(76, struct.pack("<I", 1), id="transposed values"),
        pytest.param(84, struct.pack("<I", 1), id="unknown field"),
    ],
)
def test_what_is_not_understood_is_refused(offset: int, value: bytes) -> None:
    whole = synthetic_file([5, 6])
    changed = whole[:offset] + value + whole[offset + len(value) :]
    assert changed != whole
    parse_slot_file(whole)
    with pytest.raises(UnknownSlotFormatError):
        parse_slot_file(changed)


def test_a_second_sequence_behind_the_first_is_refused() -> None:
    with pytest.raises(UnknownSlotFormatError):
        parse_slot_file(synthetic_file([5, 6]) + b"\1\0\0\0")


def test_cells_that_do_not_match_the_tokens_are_refused() -> None:
    whole = bytearray(synthetic_file([5, 6]))
    struct.pack_into("<I", whole, 48, 1)
    with pytest.raises(UnknownSlotFormatError):
        parse_slot_file(whole)


def test_an_empty_slot_has_no_rows() -> None:
    whole = b"qsgg" + struct.pack("<2I4i", 4, 4, -1, 1, 0, 0) + struct.pack("<5I", 4, 0, 0, 0, 0)
    file = parse_slot_file(whole)
    assert (file.tokens, file.layout.planes, file.rows) == ((), (), ())


@pytest.mark.parametrize("counts", [(2, 2), (4, 0), (3, 3)])
def test_payloads_that_do_not_fit_the_tokens_are_refused(counts: tuple[int, int]) -> None:
    file = parse_slot_file(synthetic_file([5, 6, 7, 8, 9]))
    blocks = [(count, bytes(count * file.layout.token_bytes)) for count in counts]
    with pytest.raises(PayloadSizeError):
        rebuilt(file.layout, file.streams, list(file.tokens), blocks)


def test_a_payload_of_another_size_than_its_tokens_is_refused() -> None:
    file = parse_slot_file(synthetic_file([5, 6]))
    with pytest.raises(PayloadSizeError):
        rebuilt(file.layout, file.streams, [5, 6], [(2, file.payload(0, 2)[:-1])])


def test_release_frees_the_buffer() -> None:
    data = bytearray(synthetic_file([5, 6]))
    file = parse_slot_file(data)
    with pytest.raises(BufferError):
        data.clear()
    file.release()
    data.clear()
