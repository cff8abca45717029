"""Lower bounds: true ones hardly ever lie below them, and many samples leave little doubt."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.confidence import quantile_at_least, share_at_least
from control.domain.histogram import Histogram


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_share_is_at_least_something_below_what_was_seen(total, part):
    hits = round(part * total)
    low = share_at_least(hits, total)
    assert 0 <= low <= hits / total + 1e-12


@given(st.lists(st.floats(0.001, 600), min_size=1, max_size=200))
def test_a_quantile_is_at_least_some_sample_not_above_it(values):
    durations = Histogram.of(values)
    low = quantile_at_least(durations, 0.99)
    assert durations.quantile(0.0) <= low <= durations.quantile(0.99)


def test_nothing_is_said_of_nothing():
    assert share_at_least(0, 0) is None
    assert quantile_at_least(Histogram(), 0.99) is None


def test_many_samples_leave_little_doubt():
    assert share_at_least(100_000, 1_000_000) == pytest.approx(0.1, rel=0.02)
    chance = random.Random(1)
    durations = Histogram.of(chance.uniform(1, 2) for _ in range(100_000))
    assert quantile_at_least(durations, 0.99) == pytest.approx(1.99, rel=0.02)


@pytest.mark.parametrize("count", [20, 100, 1000])
def test_of_two_thousand_groups_that_keep_a_bound_hardly_one_is_said_to_be_beyond_it(count):
    chance = random.Random(count)
    wrong = 0
    for _ in range(2000):
        # One in a hundred is slow: P99 is not beyond the fast ones.
        slow = sum(chance.random() < 0.01 for _ in range(count))
        durations = Histogram.of([1.0] * (count - slow) + [9.0] * slow)
        wrong += quantile_at_least(durations, 0.99) > 5.0
    assert wrong <= 8
