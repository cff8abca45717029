"""Places on a link: never too many, never taken from who holds one, and by rank for who waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.wan.admission import Standing, admit
from engine_agents.wan.flow import Flow
from engine_agents.wan.transfer import IDLE_S, Transfer
from engine_agents.wan.waits import BOUNDS_S, WaitHistogram

standings = st.lists(
    st.builds(Standing, st.booleans(), st.booleans(), st.integers(-2, 2), st.integers(0, 10**6)),
    max_size=30,
    unique_by=lambda standing: standing.order,
)
limits = st.none() | st.integers(0, 30)


@given(standings, limits)
def test_gives_as_many_places_as_there_are_and_as_are_wanted(transfers, limit):
    asking = sum(transfer.holds or transfer.wants for transfer in transfers)
    assert sum(admit(transfers, limit)) == (asking if limit is None else min(asking, limit))


@given(standings, limits)
def test_only_who_wants_or_holds_gets_a_place(transfers, limit):
    granted = admit(transfers, limit)
    assert all(
        transfer.holds or transfer.wants for transfer, admitted in zip(transfers, granted, strict=True) if admitted
    )


@given(standings, limits)
def test_nobody_who_waits_is_passed_over_for_a_lower_rank(transfers, limit):
    outcome = list(zip(transfers, admit(transfers, limit), strict=True))
    new = [transfer for transfer, admitted in outcome if admitted and not transfer.holds]
    waiting = [transfer for transfer, admitted in outcome if not admitted and transfer.wants and not transfer.holds]
    for left_out in waiting:
        assert all((-let_in.priority, let_in.order) < (-left_out.priority, left_out.order) for let_in in new)


@given(standings, limits)
def test_a_place_is_lost_only_where_fewer_places_than_holders_are_left(transfers, limit):
    holders = sum(transfer.holds for transfer in transfers)
    lost = [
        transfer
        for transfer, admitted in zip(transfers, admit(transfers, limit), strict=True)
        if transfer.holds and not admitted
    ]
    assert len(lost) == (0 if limit is None else max(0, holders - limit))


class QueuedFlow(Flow):
    """A stream that has bytes as long as it is told so."""

    def __init__(self):
        self.bytes = 1

    @property
    def queued_bytes(self):
        return self.bytes


@pytest.fixture
def flow():
    return QueuedFlow()


@pytest.fixture
def transfer(flow):
    made = Transfer("t", "relay", "default", 1, 100.0)
    made.flows[flow] = None
    return made


def test_a_transfer_that_is_let_in_at_once_has_waited_nothing_once(transfer):
    assert transfer.settle(admitted=True, now_s=100.0) == 0.0
    assert transfer.settle(admitted=True, now_s=101.0) is None
    assert transfer.settle(admitted=False, now_s=102.0) is None


def test_a_wait_is_measured_from_the_first_byte_to_the_place(transfer):
    assert transfer.settle(admitted=False, now_s=100.0) is None
    assert transfer.is_waiting
    assert transfer.settle(admitted=False, now_s=103.0) is None
    assert transfer.settle(admitted=True, now_s=104.0) == 4.0
    assert not transfer.is_waiting
    assert transfer.state(105.0)["waited_s"] == 4.0


def test_a_transfer_without_bytes_gives_its_place_back_after_a_while(transfer, flow):
    transfer.settle(admitted=True, now_s=100.0)
    assert transfer.keeps_place(200.0)
    flow.bytes = 0
    assert transfer.keeps_place(200.0 + IDLE_S / 2)
    assert not transfer.keeps_place(200.0 + IDLE_S)


def test_a_paused_transfer_holds_no_place_and_does_not_wait(transfer):
    transfer.settle(admitted=True, now_s=100.0)
    transfer.is_paused = True
    assert not transfer.keeps_place(100.0)
    assert not transfer.wants_place()
    transfer.settle(admitted=False, now_s=100.0)
    assert not transfer.is_waiting
    assert transfer.state(101.0)["state"] == "paused"


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_every_wait_is_counted_under_its_bound(waits):
    histogram = WaitHistogram()
    for wait_s in waits:
        histogram.add(wait_s)
    for bound, count in histogram.cumulative():
        assert count == sum(wait_s <= float(bound) for wait_s in waits)
    assert len(histogram.counts) == len(BOUNDS_S) + 1
    assert histogram.state()["count"] == len(waits)
