"""Which requests are kept, and how well their weights stand for all."""

import pytest

from control.domain.sampling import NOTABLE_PORTION, ORDINARY_PORTION, Sampler, is_notable
from control.domain.slo import Objectives

PROMISED = Objectives(ttft_p90_s=1.0, ttft_p99_s=2.0, tpot_p90_s=0.1)
SPAN = (1_800_000_000, "ams", False)


@pytest.mark.parametrize(
    ("outcome", "ttft_s", "tpot_s", "expected"),
    [
        ("completed", 1.0, 0.1, False),
        ("completed", 1.01, 0.05, True),
        ("completed", 0.5, 0.11, True),
        ("completed", None, None, False),
        ("client_closed", 0.5, None, False),
        ("rejected", None, None, False),
        ("failed", None, None, True),
        ("shed", None, None, True),
    ],
)
def test_what_failed_or_took_longer_than_nine_of_ten_may_is_notable(outcome, ttft_s, tpot_s, expected):
    assert is_notable(outcome, ttft_s, tpot_s, PROMISED) is expected


def weights(sampler, count, span=SPAN):
    return [sampler.weight(f"request {number}", span) for number in range(count)]


def test_with_little_traffic_every_request_is_kept():
    assert weights(Sampler(), ORDINARY_PORTION) == [1] * ORDINARY_PORTION
    assert weights(Sampler(), NOTABLE_PORTION, (*SPAN[:2], True)) == [1] * NOTABLE_PORTION


def test_with_much_traffic_few_are_kept_and_their_weights_add_up_to_all():
    found = weights(Sampler(), 100_000)
    assert sum(weight > 0 for weight in found) < 12 * ORDINARY_PORTION
    assert sum(found) == pytest.approx(100_000, rel=0.2)
    assert sum(weight > 0 for weight in weights(Sampler(), 1000)) > 2 * ORDINARY_PORTION


def test_the_same_requests_are_kept_each_time_and_spans_do_not_disturb_each_other():
    sampler = Sampler()
    first = weights(sampler, 1000)
    assert weights(sampler, 1000, (SPAN[0], "fra", False)) == first
    assert weights(sampler, 1000, (SPAN[0] + 10, "ams", False)) == first


def test_days_of_traffic_do_not_grow_the_sampler(monkeypatch):
    monkeypatch.setattr("control.domain.sampling.MAX_SPANS", 3)
    sampler = Sampler()
    for number in range(10):
        sampler.weight("r", (number, "ams", False))
        sampler.forget()
    assert len(sampler._seen) == 3
