"""Taking tokens out of a payload and joining them again, against the rows that a payload is made of."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.nodes.kv_layout import PartSizeError, PayloadLayout

LAYOUTS = st.builds(PayloadLayout, st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))


def rows_of(layout: PayloadLayout, token_count: int, seed: int = 0) -> list[list[bytes]]:
    """For each plane the row of each token."""
    draw = random.Random(seed)
    return [[draw.randbytes(size) for _ in range(token_count)] for size in layout.row_bytes]


def payload(rows: list[list[bytes]], start: int = 0, end: int | None = None) -> bytes:
    return b"".join(b"".join(plane[start:end]) for plane in rows)


@given(LAYOUTS, st.integers(0, 30), st.data())
def test_a_part_is_the_rows_of_its_tokens(layout, token_count, data):
    start = data.draw(st.integers(0, token_count))
    end = data.draw(st.integers(start, token_count))
    rows = rows_of(layout, token_count)
    assert layout.part(payload(rows), token_count, start, end) == payload(rows, start, end)
    assert layout.token_bytes * token_count == len(payload(rows))


@given(LAYOUTS, st.lists(st.integers(0, 12), max_size=4))
def test_parts_joined_are_the_payload_that_they_were_cut_from(layout, sizes):
    rows, parts, at = rows_of(layout, sum(sizes)), [], 0
    for size in sizes:
        parts.append((size, memoryview(payload(rows, at, at + size))))
        at += size
    assert layout.joined(parts) == payload(rows)


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_payload_of_another_size_is_refused(size):
    layout = PayloadLayout((1, 2))
    with pytest.raises(PartSizeError):
        layout.part(bytes(size), 4, 0, 4)
    with pytest.raises(PartSizeError):
        layout.joined([(4, bytes(12)), (4, bytes(size))])


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 5)])
def test_a_range_outside_the_block_is_refused(start, end):
    with pytest.raises(IndexError):
        PayloadLayout((1, 2)).part(bytes(12), 4, start, end)
