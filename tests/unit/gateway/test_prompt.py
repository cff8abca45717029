"""A prompt's three forms say the same, wherever they come from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.prefix import block_hashes
from engine_agents.gateway.prompt import Prompt

ids = st.integers(0, (1 << 31) - 1)


@given(st.lists(ids, min_size=1), st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (" ,\n", ":")]))
def test_json_is_read_as_it_was_meant(tokens, indent, separators):
    prompt = Prompt.from_json(json.dumps(tokens, indent=indent, separators=separators).encode())
    assert prompt is not None
    assert prompt.ids == tuple(tokens)
    assert json.loads(b"".join(prompt.json_parts)) == tokens


@pytest.mark.parametrize(
    "raw",
    ["[]", '"text"', "[[1]]", "[1.0]", "[-1]", "[1e3]", '["1"]', "[null]", "{}", "12", "[2147483648]", f"[{'9' * 30}]"],
)
def test_anything_but_ids_is_left_to_others(raw):
    assert Prompt.from_json(raw.encode()) is None


@given(st.lists(ids, min_size=1), st.lists(ids), st.lists(ids), st.integers(1, 4), st.binary(max_size=3))
def test_extending_is_joining(first, second, third, block_tokens, salt):
    prompt = Prompt(first)
    prompt.block_hashes(block_tokens, salt)
    longer = prompt.extended(second)
    longer.block_hashes(block_tokens, b"another")
    longest = longer.extended(third)
    tokens = first + second + third
    assert longest.ids == tuple(tokens)
    assert json.loads(b"".join(longest.json_parts)) == tokens
    assert list(longest.block_hashes(block_tokens, salt)) == block_hashes(tokens, block_tokens, salt)
    assert prompt.ids == tuple(first)
    assert list(prompt.block_hashes(block_tokens, salt)) == block_hashes(first, block_tokens, salt)


@pytest.mark.parametrize(("size", "added"), [(0, 5), (64, 0), (70, 3), (70, 58), (70, 200)])
def test_blocks_with_an_answer_are_those_of_the_longer_prompt(size, added):
    ids, more = tuple(range(1, size + 2)), tuple(range(500, 500 + added))
    longer = Prompt(ids).extended(more)
    hashes, rest = Prompt(ids).blocks_with(more, 64, b"salt")
    assert hashes == longer.block_hashes(64, b"salt")
    assert rest.tolist() == longer.block(len(hashes), 64).tolist()
