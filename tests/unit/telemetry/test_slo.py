import pytest

from control.domain.slo import HIT_RATE_BUCKET_EDGES, HIT_RATE_BUCKETS, Objectives, hit_rate_bucket, meets_objectives

PROMISED = Objectives(ttft_p90_s=1.0, ttft_p99_s=2.0, tpot_p90_s=0.05)


@pytest.mark.parametrize(
    ("rate", "bucket"),
    [(0.0, 0), (0.899, 0), (0.90, 1), (0.93, 2), (0.949, 2), (0.95, 3), (0.97, 4), (0.98, 5), (0.99, 6), (1.0, 6)],
)
def test_a_bucket_holds_its_lower_edge_and_the_last_one_both(rate, bucket):
    assert hit_rate_bucket(rate) == bucket


def test_there_are_seven_buckets():
    assert HIT_RATE_BUCKETS == 7
    assert list(HIT_RATE_BUCKET_EDGES) == sorted(HIT_RATE_BUCKET_EDGES)


@pytest.mark.parametrize("rate", [-0.01, 1.01, float("nan")])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError):
        hit_rate_bucket(rate)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "good"),
    [(1.5, 0.05, True), (2.0, None, True), (2.01, 0.01, False), (0.1, 0.06, False), (None, 0.01, False)],
)
def test_goodput_holds_a_request_against_the_loosest_bounds(ttft_s, tpot_s, good):
    assert meets_objectives(ttft_s, tpot_s, PROMISED) is good
