"""Predicted transfer times from what is under way, and nodes that are left alone after failures."""

from dataclasses import replace

import pytest

from control.domain.topology import Link
from engine_agents.gateway.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breakers
from engine_agents.gateway.link_load import LinkLoad

LINK = Link("ams-fra", "ams", "fra", capacity_bytes_per_s=1000.0, rtt_s=0.5, flow_cap_bytes_per_s=400.0)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def load(clock):
    return LinkLoad(clock)


def test_inside_a_site_a_transfer_takes_no_time(load):
    assert load.predict_s(None, 1e9, ()) == 0.0


def test_an_idle_link_gives_one_flow_its_cap(load):
    assert load.predict_s(LINK, 800, ()) == pytest.approx(2 * 0.5 + 800 / 400)


def test_flows_share_the_link(load):
    for number in range(4):
        load.begin(str(number), LINK, 1e6)
    assert load.predict_s(LINK, 800, ()) == pytest.approx(1.0 + 800 / 200)


def test_streams_of_one_transfer_add_up_and_count_for_the_others(load):
    wide = replace(LINK, streams_per_transfer=2)
    assert load.predict_s(wide, 800, ()) == pytest.approx(1.0 + 800 / 800)
    load.begin("wide", wide, 1e6)
    assert load.flows("ams-fra") == 2
    assert load.predict_s(LINK, 800, ()) == pytest.approx(1.0 + 800 / (1000 / 3))


def test_bytes_in_flight_of_the_same_prefix_are_waited_for(load, clock):
    load.begin("before", LINK, 1000)
    clock.now = 1.0
    assert load.predict_s(LINK, 0, ["before"]) == pytest.approx(1.0 + (1000 - 400) / 400)
    assert load.left_bytes() == {"ams-fra": 600.0}


def test_an_overdue_transfer_has_nothing_left(load, clock):
    load.begin("slow", LINK, 1000)
    clock.now = 100.0
    assert load.left_bytes() == {"ams-fra": 0.0}


def test_an_ended_transfer_is_gone_and_ending_it_twice_is_no_error(load):
    load.begin("one", LINK, 1000)
    load.end("one")
    load.end("one")
    assert (load.count, load.flows("ams-fra")) == (0, 0)


def test_a_failing_node_is_left_alone_longer_each_time(clock):
    breakers = Breakers(clock)
    pauses = []
    for _ in range(8):
        breakers.failed("n")
        start = clock.now
        while not breakers.allows("n"):
            clock.now += 0.5
        pauses.append(clock.now - start)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses) == LONGEST_PAUSE_S


def test_a_success_closes_the_breaker(clock):
    breakers = Breakers(clock)
    breakers.failed("n")
    assert breakers.open_nodes() == ["n"]
    breakers.succeeded("n")
    assert breakers.allows("n")
