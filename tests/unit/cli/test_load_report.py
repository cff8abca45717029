import pytest

from control.cli.load_report import Objectives, is_good, quantiles, render, request_times, summarise
from control.cli.stream_client import TimedAnswer


def answer(chunks, end_s, **more):
    return TimedAnswer(
        chunk_s=[at for at, _ in chunks],
        chunk_tokens=[tokens for _, tokens in chunks],
        end_s=end_s,
        finish_reason="length",
        output_tokens=sum(tokens for _, tokens in chunks),
        **more,
    )


def test_times_come_from_arrivals_of_single_tokens():
    times = request_times(answer([(1.0, 1), (1.5, 1), (3.0, 1)], 3.0))
    assert (times.ttft_s, times.ttst_s, times.tpot_s, times.itl_s) == (1.0, 1.5, 1.0, (0.5, 1.5))


def test_tokens_of_one_chunk_arrive_together():
    times = request_times(answer([(1.0, 3), (2.0, 1)], 2.0))
    assert (times.ttst_s, times.itl_s) == (1.0, (0.0, 0.0, 1.0))


def test_an_answer_without_tokens_has_no_times():
    times = request_times(answer([], 0.5))
    assert (times.ttft_s, times.ttst_s, times.tpot_s) == (None, None, None)
    assert not is_good(times, Objectives())


@pytest.mark.parametrize(("ttft_s", "tpot_s", "good"), [(1.0, 0.5, True), (0.9, 0.5, False), (1.0, 0.4, False)])
def test_a_good_request_meets_every_objective(ttft_s, tpot_s, good):
    times = request_times(answer([(1.0, 1), (1.5, 1)], 1.5))
    assert is_good(times, Objectives(ttft_s, tpot_s)) is good


def test_no_values_have_no_quantiles():
    assert quantiles([]) is None


def test_summary_counts_failures_apart_and_rates_by_elapsed_time():
    good = answer([(1.0, 1), (1.01, 1)], 1.01, input_tokens=100, cached_tokens=90)
    failed = TimedAnswer(error="HTTP 503: full", end_s=0.1)
    report = summarise([good, good, failed], 4.0, Objectives())
    assert (report["requests"], report["completed"], report["failed"]) == (3, 2, 1)
    assert (report["rps"], report["goodput_rps"]) == (0.5, 0.5)
    assert report["mean_prefix_hit_rate"] == pytest.approx(0.9)
    assert report["errors"] == ["HTTP 503: full"]
    assert "TTFT" in render(report)


def test_a_summary_of_nothing_says_no_data():
    report = summarise([], 1.0, Objectives())
    assert report["ttft_s"] is None
    assert report["mean_prefix_hit_rate"] is None
    assert "no data" in render(report)
