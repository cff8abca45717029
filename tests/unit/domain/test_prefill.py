from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.prefill import ChunkRule, chunked_prefill_s, plan_chunks

RULES = st.builds(ChunkRule, st.integers(1, 500), st.integers(0, 600))


@st.composite
def prompts(draw):
    resident = draw(st.integers(0, 3000))
    return resident, resident + draw(st.integers(0, 3000))


@pytest.mark.parametrize(
    ("resident", "prompt", "minimum", "ends"),
    [
        (0, 200, 0, [64, 128, 192, 200]),
        (0, 200, 8, [64, 128, 192, 200]),
        (0, 200, 9, [64, 128, 200]),
        (10, 202, 32, [74, 138, 202]),
        (0, 65, 32, [65]),
        (0, 20, 32, [20]),
        (50, 50, 32, [50]),
        (0, 128, 64, [64, 128]),
    ],
)
def test_a_small_tail_is_joined_to_the_chunk_before_it(resident, prompt, minimum, ends):
    assert plan_chunks(resident, prompt, ChunkRule(64, minimum)) == ends


@given(prompts(), RULES)
def test_chunks_cover_what_is_not_resident_once_and_in_order(prompt, rule):
    resident, end = prompt
    ends = plan_chunks(resident, end, rule)
    assert ends[-1] == end
    assert all(first < second for first, second in pairwise([resident, *ends])) or ends == [resident]


@given(prompts(), RULES)
def test_every_chunk_but_the_last_is_whole_and_the_last_is_no_small_tail(prompt, rule):
    resident, end = prompt
    sizes = [second - first for first, second in pairwise([resident, *plan_chunks(resident, end, rule)])]
    assert all(size == rule.chunk_tokens for size in sizes[:-1])
    assert sizes[-1] < rule.chunk_tokens + max(rule.tail_chunk_min_tokens, 1)
    assert len(sizes) == 1 or sizes[-1] >= min(rule.tail_chunk_min_tokens, rule.chunk_tokens)


@given(prompts(), RULES, st.floats(0, 1))
def test_joining_never_costs_time_under_the_floor_model(prompt, rule, floor_s):
    resident, end = prompt
    apart = plan_chunks(resident, end, ChunkRule(rule.chunk_tokens))
    joined = plan_chunks(resident, end, rule)
    assert chunked_prefill_s(resident, joined, 1000.0, floor_s) <= chunked_prefill_s(
        resident, apart, 1000.0, floor_s
    ) * (1 + 1e-9)


def test_a_small_tail_costs_the_floor():
    assert chunked_prefill_s(0, [512, 520], 1000.0, 0.1) == pytest.approx(0.612)
    assert chunked_prefill_s(0, [520], 1000.0, 0.1) == pytest.approx(0.520)


@pytest.mark.parametrize(("chunk", "minimum"), [(0, 0), (64, -1)])
def test_refuses_a_rule_that_cuts_nothing(chunk, minimum):
    with pytest.raises(ValueError):
        ChunkRule(chunk, minimum)
