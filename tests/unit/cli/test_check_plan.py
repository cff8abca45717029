import pytest

from control.cli.check_plan import (
    FIRST_SIZES,
    SHARES,
    Aim,
    Seen,
    Size,
    adjusted,
    first_difference,
    next_aim,
    outcome_of,
)

ONE_SHOT, CATCH_UP, DIRECT = Seen("relay", "one_shot"), Seen("relay", "catch_up"), Seen("direct", "")
NO_HANDOFF = Seen("relay", "")


@pytest.mark.parametrize(
    ("seen", "aim"),
    [(ONE_SHOT, Aim.ONE_SHOT), (CATCH_UP, Aim.CATCH_UP), (DIRECT, Aim.DIRECT), (NO_HANDOFF, None)],
)
def test_outcome_is_what_a_request_went_through(seen, aim):
    assert outcome_of(seen) is aim


def test_aims_follow_their_shares():
    seen = dict.fromkeys(Aim, 0)
    for _ in range(100):
        seen[next_aim(seen, {})] += 1
    assert seen == {aim: round(share * 100) for aim, share in SHARES.items()}


def test_an_aim_never_met_is_tried_again():
    assert next_aim({Aim.DIRECT: 30, Aim.ONE_SHOT: 9}, {}) is Aim.CATCH_UP


def test_requests_under_way_count_towards_their_aim():
    assert next_aim({}, {Aim.DIRECT: 1, Aim.ONE_SHOT: 1}) is Aim.CATCH_UP


@pytest.mark.parametrize(("aim", "seen"), [(Aim.ONE_SHOT, ONE_SHOT), (Aim.CATCH_UP, CATCH_UP), (Aim.DIRECT, ONE_SHOT)])
def test_a_size_that_meets_its_aim_stays(aim, seen):
    assert adjusted(aim, FIRST_SIZES[aim], seen) == FIRST_SIZES[aim]


@pytest.mark.parametrize(
    ("aim", "seen", "more_input", "more_output"),
    [
        (Aim.CATCH_UP, ONE_SHOT, 1, 1),
        (Aim.CATCH_UP, DIRECT, 1, 1),
        (Aim.ONE_SHOT, DIRECT, 1, 1),
        (Aim.ONE_SHOT, CATCH_UP, -1, 0),
        (Aim.ONE_SHOT, NO_HANDOFF, 0, 1),
        (Aim.CATCH_UP, NO_HANDOFF, 0, 1),
    ],
)
def test_a_size_moves_towards_its_aim(aim, seen, more_input, more_output):
    def sign(number):
        return (number > 0) - (number < 0)

    before = Size(100, 100)
    after = adjusted(aim, before, seen)
    assert sign(after.new_tokens - before.new_tokens) == more_input
    assert sign(after.max_output_tokens - before.max_output_tokens) == more_output


@pytest.mark.parametrize("seen", [ONE_SHOT, CATCH_UP, DIRECT, NO_HANDOFF])
@pytest.mark.parametrize("aim", list(Aim))
def test_sizes_stay_within_what_a_small_model_takes(aim, seen):
    size = FIRST_SIZES[aim]
    for _ in range(50):
        size = adjusted(aim, size, seen)
    assert 2 <= size.new_tokens <= 640
    assert 24 <= size.max_output_tokens <= 400


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [5], 0), ([], [], None)],
)
def test_finds_the_first_token_that_differs(left, right, index):
    assert first_difference(left, right) == index
