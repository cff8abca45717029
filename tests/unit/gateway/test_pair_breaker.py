from hypothesis import given
from hypothesis import strategies as st

from control.domain.routing import NodeKnobs, NodeView, choose_nodes
from engine_agents.gateway.pair_breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, PairBreakers, PairState

PAIR = ("p1", "md1")


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def broken(clock, failures=2):
    breakers = PairBreakers(clock)
    for _ in range(failures):
        breakers.failed(PAIR)
    return breakers


def test_one_failure_closes_nothing_and_two_in_a_row_open_one_pair_only():
    breakers = broken(Clock(), 1)
    assert (breakers.state(PAIR), breakers.blocked()) == (PairState.CLOSED, set())
    breakers.failed(PAIR)
    assert (breakers.state(PAIR), breakers.blocked()) == (PairState.OPEN, {PAIR})
    assert breakers.snapshot() == {"p1>md1": "open"}
    assert breakers.state(("p1", "md2")) is PairState.CLOSED


def test_a_success_between_failures_starts_the_count_again():
    breakers = broken(Clock(), 1)
    breakers.succeeded(PAIR)
    breakers.failed(PAIR)
    assert breakers.state(PAIR) is PairState.CLOSED


def test_after_the_pause_one_transfer_finds_out_and_its_success_closes():
    clock = Clock()
    breakers = broken(clock)
    clock.now_s = FIRST_PAUSE_S
    assert (breakers.state(PAIR), breakers.blocked()) == (PairState.HALF_OPEN, set())
    breakers.begin(PAIR, "probe")
    assert breakers.blocked() == {PAIR}
    breakers.begin(PAIR, "another")
    breakers.ended(PAIR, "another")
    assert breakers.blocked() == {PAIR}, "the probe goes on"
    breakers.succeeded(PAIR)
    assert (breakers.state(PAIR), breakers.blocked()) == (PairState.CLOSED, ())


def test_a_failed_probe_opens_for_longer_and_an_abandoned_one_lets_the_next_find_out():
    clock = Clock()
    breakers = broken(clock)
    clock.now_s = FIRST_PAUSE_S
    breakers.begin(PAIR, "probe")
    breakers.ended(PAIR, "probe")
    assert breakers.blocked() == set()
    breakers.begin(PAIR, "second")
    breakers.failed(PAIR)
    clock.now_s += FIRST_PAUSE_S
    assert breakers.state(PAIR) is PairState.OPEN
    clock.now_s += FIRST_PAUSE_S
    assert breakers.state(PAIR) is PairState.HALF_OPEN


@given(st.integers(2, 200))
def test_the_pause_is_bounded(failures):
    clock = Clock()
    breakers = broken(clock, failures)
    clock.now_s = LONGEST_PAUSE_S
    assert breakers.state(PAIR) is PairState.HALF_OPEN


def test_a_node_that_moved_is_another_one():
    breakers = broken(Clock())
    breakers.forget("md1")
    assert breakers.blocked() == ()


KNOBS = NodeKnobs(1.0, 1.5)
P = [NodeView("p1", "ams", True, 0, 4, 0)]
MAINS = [NodeView("md1", "fra", True, 0, 4, 100), NodeView("md2", "fra", True, 3, 4, 0)]


def test_a_blocked_pairs_main_is_not_chosen_while_there_is_another():
    assert choose_nodes(100, P, (), MAINS, KNOBS).main == "md1"
    assert choose_nodes(100, P, (), MAINS, KNOBS, blocked={PAIR}).main == "md2"
    assert choose_nodes(100, P, (), MAINS, KNOBS, blocked={("p2", "md1")}).main == "md1"


def test_where_all_pairs_are_blocked_the_best_is_tried_all_the_same():
    assert choose_nodes(100, P, (), MAINS, KNOBS, blocked={PAIR, ("p1", "md2")}).main == "md1"
