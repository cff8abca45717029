import pytest

from engine_agents.nodes.engine import Sampling
from engine_agents.nodes.llama.sampling import completion_options, step_seed


def test_greedy_sends_no_sampler_settings() -> None:
    assert completion_options(Sampling(seed=5), 5, 10) == {"ignore_eos": False, "temperature": 0.0}


def test_sampling_passes_top_p_and_top_k_and_never_an_empty_sampler_list() -> None:
    options = completion_options(Sampling(temperature=0.7, top_p=0.9, top_k=40, ignore_eos=True), 5, 10)
    assert (options["temperature"], options["top_p"], options["top_k"], options["min_p"]) == (0.7, 0.9, 40, 0.0)
    assert options["samplers"] == ["penalties", "temperature", "min_p", "top_k", "top_p"]
    assert options["ignore_eos"] is True


def test_an_unlimited_top_k_is_zero() -> None:
    assert completion_options(Sampling(temperature=1.0, top_k=-1), 5, 10)["top_k"] == 0


def test_each_position_has_its_own_seed_and_always_the_same() -> None:
    seeds = [step_seed(7, position) for position in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [step_seed(7, position) for position in range(100)]
    assert step_seed(8, 0) != step_seed(7, 0)


def test_presence_and_frequency_penalties_count_the_output_and_nothing_else() -> None:
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((7, 2.0), (9, -1.0)))
    assert completion_options(sampling, 5, 10)["logit_bias"] == [[7, 2.0], [9, -1.0]]
    options = completion_options(sampling, 5, 10, [7, 7, 3])
    assert options["logit_bias"] == [[7, 1.0], [9, -1.0], [3, -0.75]]


def test_the_repetition_penalty_counts_all_tokens_so_that_a_cut_does_not_show() -> None:
    options = completion_options(Sampling(repetition_penalty=1.2), 5, 10, [7])
    assert (options["repeat_penalty"], options["repeat_last_n"]) == (1.2, 10)
    assert "logit_bias" not in options


@pytest.mark.parametrize(("wanted", "sent"), [(None, None), (0, 1), (5, 5)])
def test_log_probabilities_are_asked_for_where_they_are_wanted(wanted: int | None, sent: int | None) -> None:
    assert completion_options(Sampling(logprobs=wanted), 5, 10).get("n_probs") == sent


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**200])
def test_any_seed_gives_one_that_does_not_mean_random(seed: int) -> None:
    assert all(0 <= step_seed(seed, position) < 0xFFFF_FFFF for position in range(50))
