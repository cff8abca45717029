"""Batch keys against the plain set they stand for."""

from hypothesis import given
from hypothesis import strategies as st

from control.telemetry.batch_keys import MAX_EPOCHS, MAX_RUNS, BatchKeys

batches = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=200)


@given(batches=batches)
def test_a_batch_is_new_exactly_once_in_whatever_order_it_comes(batches):
    keys, seen = BatchKeys(), set()
    for batch in batches:
        assert keys.add(*batch) is (batch not in seen)
        seen.add(batch)
        keys = BatchKeys.from_document(keys.to_document())


def test_a_long_history_in_order_is_one_run():
    keys = BatchKeys()
    assert all(keys.add(7, sequence) for sequence in range(5000))
    assert keys.to_document() == [[7, [[0, 4999]]]]


def test_what_cannot_be_told_any_more_is_not_counted_again():
    keys = BatchKeys()
    for sequence in range(0, 4 * MAX_RUNS, 2):
        assert keys.add(1, sequence)
    assert len(keys.epochs[1]) == MAX_RUNS
    assert not keys.add(1, 1)
    for epoch in range(2, 3 + MAX_EPOCHS):
        assert keys.add(epoch, 1)
    assert not keys.add(1, 10_001)


def test_knows_what_comes_behind_a_later_batch():
    keys = BatchKeys()
    assert not keys.is_behind(1, 5)
    keys.add(1, 5)
    assert keys.is_behind(1, 4)
    assert not keys.is_behind(1, 6)
    keys.add(2, 1)
    assert keys.is_behind(1, 6)
