import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.histogram import MAX_S, MIN_S, Histogram

durations = st.lists(st.floats(min_value=MIN_S, max_value=MAX_S), min_size=1, max_size=300)
ranks = st.floats(min_value=0, max_value=1)


@given(values=durations, rank=ranks)
def test_every_quantile_is_within_one_percent_of_the_exact_one(values, rank):
    exact = np.quantile(values, rank, method="inverted_cdf")
    assert Histogram.of(values).quantile(rank) == pytest.approx(exact, rel=0.01)


@given(first=durations, second=durations)
def test_merging_is_the_same_as_counting_together(first, second):
    together = Histogram.of(first + second)
    assert Histogram.of(first) + Histogram.of(second) == together
    assert Histogram.merged([Histogram.of(first), Histogram.of(second)]) == together
    assert together - Histogram.of(second) == Histogram.of(first)


@given(values=durations)
def test_adding_one_by_one_is_the_same_as_all_at_once(values):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert histogram == Histogram.of(values)
    assert histogram.count == len(values)


def test_an_empty_histogram_has_no_quantiles():
    assert Histogram().quantiles(0.5, 0.99) is None
    assert Histogram().quantile(0.5) is None


def test_values_beyond_the_range_count_as_its_ends():
    assert Histogram.of([0.0]).quantile(0.5) == MIN_S
    assert Histogram.of([1e6]).quantile(0.5) == MAX_S


def test_an_edge_of_the_range_is_not_off_by_more_than_the_rest():
    assert Histogram.of([MAX_S]).quantile(1) == pytest.approx(MAX_S, rel=0.01)
    assert Histogram.of([MIN_S]).quantile(0) == MIN_S


@given(values=st.lists(st.floats(min_value=0, max_value=1000), max_size=300))
def test_what_is_stored_comes_back_and_merges_as_before(values):
    histogram = Histogram.of(values)
    raw = histogram.to_bytes()
    assert Histogram.from_bytes(raw) == histogram
    assert len(raw) <= 10 * len(values)
    twice = Histogram.from_bytes(raw)
    twice.include(Histogram.from_bytes(raw))
    assert twice == histogram + histogram


@given(values=durations, bound_s=st.floats(min_value=MIN_S, max_value=MAX_S))
def test_what_is_longer_than_a_bound_is_counted_to_within_its_bucket(values, bound_s):
    counted = Histogram.of(values).count_above(bound_s)
    assert sum(value > bound_s * 1.0201 for value in values) <= counted <= sum(value > bound_s for value in values)


@pytest.mark.parametrize("raw", [b"x", b"\xff\xff" + bytes(8)])
def test_bytes_of_something_else_are_refused(raw):
    with pytest.raises(ValueError):
        Histogram.from_bytes(raw)
