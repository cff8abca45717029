import pytest

from benchmarks.ttft_scenario import (
    BUCKETS,
    MAX_PROMPT_TOKENS,
    MIN_PROMPT_TOKENS,
    SESSIONS_AT_A_TIME,
    bucket_shares,
    mean_hit_rate,
    plan_sessions,
)

MODEL_TOKENS = 2048


def test_the_same_seed_gives_the_same_sessions_and_another_seed_others():
    assert plan_sessions(1, 40) == plan_sessions(1, 40)
    assert plan_sessions(1, 40) != plan_sessions(2, 40)


@pytest.mark.parametrize("requests", [1, 2, 3, 16, 80, 333])
def test_every_request_that_was_asked_for_is_planned(requests):
    sessions = plan_sessions(1, requests)
    assert sum(len(session.turns) for session in sessions) == requests
    assert len(sessions) >= SESSIONS_AT_A_TIME


def test_fewer_requests_than_sessions_are_refused():
    with pytest.raises(ValueError, match="at least"):
        plan_sessions(1, SESSIONS_AT_A_TIME - 1)


@pytest.mark.parametrize("seed", range(5))
def test_hits_are_skewed_as_in_the_trace(seed):
    sessions = plan_sessions(seed, 80)
    shares = bucket_shares([turn.hit_rate for session in sessions for turn in session.turns])
    # Whole tokens of short prompts move a few requests into the neighbouring bucket.
    assert shares == pytest.approx([share for _, _, share in BUCKETS], abs=0.03)
    assert mean_hit_rate(sessions) == pytest.approx(0.926, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_prompts_grow_turn_by_turn_and_fit_the_model_with_their_answers(seed):
    for session in plan_sessions(seed, 80):
        lengths = [turn.prompt_tokens for turn in session.turns]
        assert lengths == sorted(set(lengths))
        assert lengths[0] >= MIN_PROMPT_TOKENS
        assert lengths[-1] <= 1.1 * MAX_PROMPT_TOKENS
        assert all(turn.prompt_tokens + turn.output_tokens <= MODEL_TOKENS for turn in session.turns)
        for before, turn in zip(session.turns, session.turns[1:], strict=False):
            assert turn.prompt_tokens == before.prompt_tokens + turn.new_tokens


def test_hit_rates_are_counted_in_their_buckets():
    assert bucket_shares([0.0, 0.89, 0.9, 0.94, 0.96, 0.975, 0.98, 1.0]) == [2 / 8, *[1 / 8] * 6]
