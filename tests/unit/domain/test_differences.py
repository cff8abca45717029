"""What tells some requests from the rest, and what does not."""

import pytest

from control.domain.differences import find_differences, prompt_band


def many(count, weight=1.0, **facts):
    return [(facts, weight)] * count


def test_what_is_commoner_comes_first_with_its_counts_and_shares():
    selected = [*many(8, site="ams", pipeline="relay"), *many(2, site="ams", pipeline="direct")]
    rest = [*many(20, site="ams", pipeline="relay"), *many(80, site="ams", pipeline="direct")]
    [only] = find_differences(selected, rest)
    assert (only.dimension, only.value, only.selected, only.rest) == ("pipeline", "relay", 8, 20)
    assert (only.selected_share, only.rest_share) == (0.8, 0.2)
    assert only.lift == pytest.approx((8.5 / 11) / (20.5 / 101))


def test_what_all_have_in_common_tells_nothing():
    assert find_differences(many(10, site="ams"), many(100, site="ams")) == ()


def test_what_the_rest_does_not_have_at_all_has_a_finite_lift_that_grows_with_the_evidence():
    few, lot = (find_differences(many(n, node="p2"), many(100, node="p1"))[0].lift for n in (2, 50))
    assert 1 < few < lot < 250


def test_one_odd_request_among_many_and_words_that_do_not_apply_are_left_out():
    selected = [*many(60, node="p1", relay=""), *many(1, node="p9", relay="")]
    assert [one.value for one in find_differences(selected, many(50, node="p2", relay="r"))] == ["p1"]
    assert find_differences(many(1, node="p1"), many(50, node="p2")) == ()


def test_a_request_counts_as_many_as_it_stands_for():
    selected = many(10, pipeline="relay")
    rest = [*many(10, pipeline="relay"), *many(10, 9.0, pipeline="direct")]
    [only] = find_differences(selected, rest)
    assert only.rest_share == 0.1


def test_without_a_rest_nothing_can_be_told():
    assert find_differences(many(10, site="ams"), []) == ()
    assert find_differences([], many(10, site="ams")) == ()


def test_prompts_are_told_apart_by_length():
    assert [prompt_band(tokens) for tokens in (0, 1024, 1025, 16_384, 65_537)] == [
        *("up to 1K", "up to 1K", "1K to 4K", "4K to 16K", "over 64K"),
    ]
