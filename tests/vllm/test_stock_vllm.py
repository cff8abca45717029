"""Stock vLLM as P, RLD and MD behind the gateway: every answer equals one instance alone. Run by `make test-vllm`."""

import asyncio

import pytest
import pytest_asyncio

from tests.gateways import ONE_SHOT
from tests.vllm.cases import PLANS, TOGETHER
from tests.vllm.fleet import vllm_fleet
from tests.vllm.install import UnavailableError, ensure_vllm
from tests.vllm.smoke import leave, overlapping, two_turns

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="module")]

CASES = [(name, case) for name, (_, cases) in PLANS.items() for case in cases]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory):
    try:
        ensure_vllm()
    except UnavailableError as error:
        pytest.skip(str(error))
    async with vllm_fleet(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case.tokens}" for name, case in CASES])
async def test_an_answer_equals_one_instance_alone(fleet, name, case):
    await fleet.configure(PLANS[name][0])
    outcome = await fleet.run(case, 1000 + CASES.index((name, case)))
    assert outcome.is_exact, outcome
    assert outcome.explained["pipeline"] == ("direct" if name == "direct" else "relay")
    assert outcome.explained["eager_tokens"] >= min(case.eager_tokens, len(outcome.ids))
    if name != "direct" and not case.ends_itself and not case.has_stop:
        assert outcome.explained["handoff_mode"] == name
    if name == "catch_up":
        assert outcome.explained["handoff_batches"] >= 1
    assert fleet.gateway.state.token_mismatches == 0


async def test_answers_at_the_same_time_are_exact(fleet):
    await fleet.configure(ONE_SHOT)
    outcomes = await asyncio.gather(*(fleet.run(case, 2000 + at) for at, case in enumerate(TOGETHER)))
    assert [outcome for outcome in outcomes if not outcome.is_exact] == []
    assert await fleet.is_at_rest()


async def test_two_requests_with_one_prompt_pull_it_once(fleet):
    await fleet.configure(ONE_SHOT)
    (single_bytes, both_bytes), outcomes = await overlapping(fleet)
    assert all(outcome.is_exact for outcome in outcomes)
    assert both_bytes < 1.2 * single_bytes


async def test_a_second_turn_pulls_only_what_is_new(fleet):
    await fleet.configure(ONE_SHOT)
    (first_bytes, second_bytes), outcomes = await two_turns(fleet)
    assert all(outcome.is_exact for outcome in outcomes)
    assert second_bytes < 0.5 * first_bytes


async def test_a_client_that_leaves_frees_every_instance(fleet):
    await fleet.configure(ONE_SHOT)
    assert await leave(fleet)
