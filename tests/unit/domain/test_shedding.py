"""When a request that is turned away may come back."""

import pytest

from control.domain.routing import relay_at_ceiling
from control.domain.shedding import direct_wait_s, relay_wait_s, retry_after_s


@pytest.mark.parametrize(
    ("running", "slots", "ceiling", "hold_s", "expected"),
    [
        (8, 8, 0.85, 4.0, 1.0),  # 6 may stay, so 2 of 8 must end, one each half second
        (4, 4, 0.1, 2.0, 2.0),
        (2, 8, 0.85, 4.0, 0.0),
        (0, 4, 0.85, 4.0, 0.0),
    ],
)
def test_a_full_pool_takes_requests_again_when_enough_have_ended(running, slots, ceiling, hold_s, expected):
    assert relay_wait_s(running, slots, ceiling, hold_s) == pytest.approx(expected)


@pytest.mark.parametrize("slots", [1, 3, 4, 16])
@pytest.mark.parametrize("ceiling", [0.1, 0.5, 0.85, 1.0])
def test_after_the_wait_the_ceiling_lets_go(slots, ceiling):
    hold_s = 3.0
    ended = round(relay_wait_s(slots, slots, ceiling, hold_s) * slots / hold_s)
    assert not relay_at_ceiling((slots - ended) / slots, was_at_ceiling=True, ceiling=ceiling + 1e-9)


def test_the_direct_way_is_waited_for_until_it_meets_the_objective():
    assert direct_wait_s(18.0, 15.0) == 3.0
    assert direct_wait_s(1.0, 15.0) == 0.0


@pytest.mark.parametrize(
    ("waits", "seconds"), [([], 1), ([0.0], 1), ([7.2, 3.1], 4), ([500.0], 60), ([float("inf")], 60)]
)
def test_retry_after_is_the_shortest_way_in_whole_seconds(waits, seconds):
    assert retry_after_s(waits) == seconds
