import pytest

from control.cli.check_plan import (
    SHARES,
    Aim,
    Seen,
    Size,
    adjusted,
    eager_target,
    first_difference,
    first_size,
    next_aim,
    outcome_of,
    outlier_size,
    possible_aims,
)

ONE_SHOT, CATCH_UP, DIRECT = Seen("relay", "one_shot"), Seen("relay", "catch_up"), Seen("direct", "")
NO_HANDOFF, OUTLIER = Seen("relay", ""), Seen("outlier", "")
POLICY = {"outlier": {"enabled": True, "min_uncached_tokens": 600, "max_output_tokens": 64}}
SIZE, LIMIT = Size(100, 100), 64


@pytest.mark.parametrize(
    ("seen", "aim"),
    [
        (ONE_SHOT, Aim.ONE_SHOT),
        (CATCH_UP, Aim.CATCH_UP),
        (DIRECT, Aim.DIRECT),
        (NO_HANDOFF, None),
        (OUTLIER, Aim.OUTLIER),
    ],
)
def test_outcome_is_what_a_request_went_through(seen, aim):
    assert outcome_of(seen) is aim


def test_aims_follow_their_shares():
    seen = dict.fromkeys(Aim, 0)
    for _ in range(100):
        seen[next_aim(seen, {})] += 1
    assert seen == {aim: round(share * 100) for aim, share in SHARES.items()}


def test_outliers_are_aimed_at_where_the_policy_lets_a_check_make_one():
    size = outlier_size(POLICY)
    assert size.new_tokens > 600
    assert size.max_output_tokens <= 64
    assert possible_aims(POLICY) == list(Aim)
    for change in ({"enabled": False}, {"min_uncached_tokens": 32_768}):
        aims = possible_aims({"outlier": {**POLICY["outlier"], **change}})
        assert Aim.OUTLIER not in aims
        assert next_aim(dict.fromkeys(aims, 100), {}, aims) in aims


def test_a_relay_that_was_full_says_nothing_about_sizes():
    full = Seen("direct", "", reason="relay_at_ceiling_slo_met")
    assert adjusted(Aim.CATCH_UP, SIZE, full, LIMIT) == SIZE


def test_an_aim_never_met_is_tried_again():
    assert next_aim({Aim.DIRECT: 30, Aim.ONE_SHOT: 9}, {}) is Aim.CATCH_UP


def test_requests_under_way_count_towards_their_aim():
    assert next_aim({}, {Aim.DIRECT: 1, Aim.ONE_SHOT: 1}) is Aim.CATCH_UP


@pytest.mark.parametrize(
    ("aim", "transfer_s", "more_input"),
    [(Aim.ONE_SHOT, 4.0, -1), (Aim.ONE_SHOT, 0.1, 1), (Aim.CATCH_UP, 0.5, 1), (Aim.CATCH_UP, 30.0, -1)],
)
def test_a_size_moves_towards_the_eager_tokens_of_its_aim(aim, transfer_s, more_input):
    before = SIZE
    after = adjusted(aim, before, Seen("relay", aim.value, transfer_s, token_s=0.02), LIMIT)
    assert (after.new_tokens > before.new_tokens) - (after.new_tokens < before.new_tokens) == more_input
    assert after.max_output_tokens == before.max_output_tokens


@pytest.mark.parametrize(
    ("aim", "seen", "more_input"),
    [
        (Aim.ONE_SHOT, Seen("relay", "", 0.1, 1.0), -1),
        (Aim.CATCH_UP, Seen("relay", "", 0.1, 1.0), -1),
        (Aim.ONE_SHOT, Seen("relay", "catch_up", 0.1, 1.0), -1),
        (Aim.CATCH_UP, Seen("relay", "one_shot", 10.0, 0.01), 1),
    ],
)
def test_what_happened_outweighs_the_speeds(aim, seen, more_input):
    after = adjusted(aim, SIZE, seen, LIMIT)
    assert (after.new_tokens > 100) - (after.new_tokens < 100) == more_input


@pytest.mark.parametrize("aim", [Aim.ONE_SHOT, Aim.CATCH_UP])
def test_sizes_settle_where_the_aim_is_met(aim):
    token_s, transfer_s_per_token = 0.03, 0.015
    size = first_size(aim, LIMIT)
    for _ in range(12):
        size = adjusted(aim, size, Seen("relay", aim.value, size.new_tokens * transfer_s_per_token, token_s), LIMIT)
    assert size.new_tokens * transfer_s_per_token / token_s == pytest.approx(eager_target(aim, LIMIT), rel=0.1)


@pytest.mark.parametrize("aim", [Aim.ONE_SHOT, Aim.CATCH_UP])
def test_a_prompt_that_went_direct_grows(aim):
    assert adjusted(aim, SIZE, DIRECT, LIMIT).new_tokens > 100


@pytest.mark.parametrize("seen", [NO_HANDOFF, Seen("", "")])
def test_nothing_is_learnt_from_unknown_speeds(seen):
    assert adjusted(Aim.CATCH_UP, SIZE, seen, LIMIT) == SIZE


@pytest.mark.parametrize("seen", [DIRECT, Seen("relay", "", 0.001, 1.0), Seen("relay", "", 100.0, 0.001)])
@pytest.mark.parametrize("aim", list(Aim))
def test_sizes_stay_within_what_a_small_model_takes(aim, seen):
    size = first_size(aim, LIMIT)
    for _ in range(50):
        size = adjusted(aim, size, seen, LIMIT)
    assert 2 <= size.new_tokens <= 640


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [5], 0), ([], [], None)],
)
def test_finds_the_first_token_that_differs(left, right, index):
    assert first_difference(left, right) == index


@pytest.mark.parametrize("limit", [1, 24, 64, 200])
def test_targets_lie_on_either_side_of_the_policys_limit_and_answers_outlast_them(limit):
    one_shot, catch_up = (eager_target(aim, limit) for aim in (Aim.ONE_SHOT, Aim.CATCH_UP))
    assert one_shot <= max(limit, 4)
    assert catch_up > limit
    for aim in (Aim.ONE_SHOT, Aim.CATCH_UP):
        assert first_size(aim, limit).max_output_tokens > eager_target(aim, limit)
