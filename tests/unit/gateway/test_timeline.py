"""A request's times, on a clock that the test turns."""

import pytest

from engine_agents.gateway.timeline import Stage, Timeline


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timeline(clock):
    return Timeline(clock, lambda: 1_700_000_000.0)


def send(clock, timeline, at_s, tokens):
    clock.now = 100.0 + at_s
    timeline.sent(tokens)


def test_first_second_and_later_tokens(clock, timeline):
    for at_s, tokens in ((0.5, 1), (0.75, 1), (1.75, 2)):
        send(clock, timeline, at_s, tokens)
    assert (timeline.ttft_s, timeline.ttst_s) == (0.5, 0.75)
    assert timeline.max_itl_s == 1.0
    assert timeline.tpot_s == pytest.approx((1.75 - 0.5) / 3)


def test_two_tokens_at_once_are_first_and_second(clock, timeline):
    send(clock, timeline, 0.5, 2)
    assert (timeline.ttft_s, timeline.ttst_s, timeline.max_itl_s) == (0.5, 0.5, None)


def test_one_token_has_no_time_per_token(clock, timeline):
    send(clock, timeline, 0.5, 1)
    assert (timeline.ttst_s, timeline.tpot_s) == (None, None)


def test_nothing_sent_is_no_first_token(clock, timeline):
    send(clock, timeline, 0.5, 0)
    assert timeline.ttft_s is None


def test_overhead_is_what_no_stage_covers_before_the_first_token(clock, timeline):
    timeline.add(Stage.TOKENIZE, 0.125, 0.25)
    timeline.add(Stage.PREFILL, 0.5, 1.0)
    timeline.add(Stage.KV_WAN, 0.75, 9.0)
    send(clock, timeline, 2.0, 1)
    assert timeline.overhead_s == pytest.approx(0.125 + 0.25)


def test_stages_are_in_the_order_they_began(timeline):
    timeline.add(Stage.MAIN_DECODE, 2.0, 3.0)
    timeline.add(Stage.PREFILL, 0.0, 1.0)
    assert [stage.name for stage in timeline.stages] == ["prefill", "main_decode"]
