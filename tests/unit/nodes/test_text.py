"""Text that can be sent: whole characters, no part of a stop string."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.nodes.text import StopScanner, TextStream


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.text(max_size=60), st.lists(st.integers(0, 300), max_size=20))
def test_text_comes_out_whole_and_only_on_character_boundaries(text, cuts):
    stream, seen, sent = TextStream(), b"", ""
    for piece in pieces_of(text.encode(), cuts):
        seen += piece
        out = stream.feed(piece)
        sent += out
        if out:
            assert sent == seen.decode()
    assert sent + stream.feed(b"", final=True) == text


@given(st.binary(max_size=80), st.lists(st.integers(0, 300), max_size=20))
def test_invalid_bytes_become_replacement_characters_however_they_are_cut(data, cuts):
    stream = TextStream()
    sent = "".join(stream.feed(piece) for piece in pieces_of(data, cuts)) + stream.feed(b"", final=True)
    assert sent == data.decode(errors="replace")


def test_complete_characters_wait_with_an_incomplete_one_behind_them():
    stream = TextStream()
    assert stream.feed(b"ab\xe2\x82") == ""
    assert stream.feed(b"\xac") == "ab\u20ac"


def test_an_unfinished_character_at_the_end_becomes_a_replacement_character():
    stream = TextStream()
    assert stream.feed(b"a\xf0\x9f", final=True) == "a\ufffd"


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)
)
def test_the_scanner_sends_what_stands_before_the_first_stop(parts, stops):
    scanner, sent = StopScanner(stops), ""
    for part in parts:
        sent += scanner.feed(part)
        if scanner.found:
            break
    if not scanner.found:
        sent += scanner.feed("", final=True)
    text = "".join(parts)
    if scanner.found is None:
        assert sent == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(sent + scanner.found)
        assert not any(stop in sent for stop in stops)


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_nothing_is_held_back(stops):
    assert StopScanner(stops).feed("abc") == "abc"
