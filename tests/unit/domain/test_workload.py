from dataclasses import replace

import pytest

from control.domain.workload import Span, WorkloadShape, hit_rates, plan_session

SHAPE = WorkloadShape()


def all_hit_rates(seed, sessions=300):
    return [rate for index in range(sessions) for rate in hit_rates(plan_session(seed, index, SHAPE))]


def test_gives_the_same_session_for_the_same_seed_and_number():
    assert plan_session(5, 17, SHAPE) == plan_session(5, 17, SHAPE)


def test_gives_other_sessions_for_another_seed_or_number():
    plans = {plan_session(seed, index, SHAPE) for seed in (1, 2) for index in range(20)}
    assert len(plans) == 40


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hit_rates_average_about_ninety_percent_and_most_are_above_ninety_five(seed):
    rates = all_hit_rates(seed)
    assert 0.87 < sum(rates) / len(rates) < 0.94
    assert sum(rate > 0.95 for rate in rates) / len(rates) > 0.55


def test_some_sessions_are_cold_and_share_nothing():
    plans = [plan_session(1, index, SHAPE) for index in range(200)]
    cold = [plan for plan in plans if plan.is_cold]
    assert 10 < len(cold) < 50
    assert len({plan.turns[0].message[:12] for plan in cold}) > len(cold) * 0.9
    assert all(rate == 0 for plan in cold for rate in hit_rates(plan))


def test_outliers_are_long_prompts_with_short_answers_and_change_no_other_session():
    shape = replace(SHAPE, outlier_share=0.1)
    pairs = [(plan_session(1, index, SHAPE), plan_session(1, index, shape)) for index in range(200)]
    outliers = [plan for _, plan in pairs if plan.name.startswith("outlier")]
    assert 5 < len(outliers) < 40
    for plan in outliers:
        (turn,) = plan.turns
        assert turn.message_tokens >= 700
        assert turn.max_output_tokens <= 24
    assert all(plain == plan for plain, plan in pairs if plan not in outliers)


def test_sessions_of_one_agent_share_its_system_prompt():
    systems = {plan_session(1, index, SHAPE).system for index in range(200)} - {""}
    assert len(systems) == SHAPE.agents


@pytest.mark.parametrize("index", range(50))
def test_context_grows_from_turn_to_turn_and_stays_in_bounds(index):
    plan = plan_session(9, index, SHAPE)
    assert plan.turns
    tokens = plan.system_tokens + sum(turn.message_tokens for turn in plan.turns)
    assert tokens < SHAPE.max_context_tokens
    assert all(turn.message and turn.max_output_tokens > 0 and turn.think_s >= 0 for turn in plan.turns)


def test_scaling_lengthens_prompts_and_leaves_answers_alone():
    shape = SHAPE.scaled(10)
    assert shape.system_tokens == Span(2600, 4200)
    assert shape.max_context_tokens == 10_000
    assert [step.output_tokens for step in shape.steps] == [step.output_tokens for step in SHAPE.steps]
