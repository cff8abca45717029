"""Which requests are kept, and how well their weights stand for all."""

import pytest

from control.domain.sampling import NOTABLE_PORTION, ORDINARY_PORTION, Sampler

SPAN = (1_800_000_000, "ams", False)


def weights(sampler, count, span=SPAN):
    first = [f"request {number}" for number in range(count // 2)]
    return sampler.weights(first, span) + sampler.weights([f"request {n}" for n in range(count // 2, count)], span)


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
        sampler.weights(["r"], (number, "ams", False))
        sampler.forget()
    assert len(sampler._seen) == 3
