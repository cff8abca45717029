"""How our sampling reads in llama.cpp's words; pure."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine_agents.nodes.engine import Sampling

_SEED_MASK = 0x7FFF_FFFF  # llama.cpp takes 0xFFFFFFFF for "random"
GREEDY_OPTIONS: Mapping[str, Any] = MappingProxyType({"temperature": 0.0, "ignore_eos": True})
_SEED_RANGE = 0xFFFF_FFFF_FFFF_FFFF


def step_seed(seed: int, position: int) -> int:
    """The seed of one step, from the request's seed and the token's position in prompt and output together.

    One seed for all steps would draw the same random number again and again. Counting from the prompt's start
    makes a generation that another node continues draw what the first node would have drawn.
    """
    material = (seed & _SEED_RANGE).to_bytes(8, "little") + position.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(material, digest_size=4).digest(), "little") & _SEED_MASK


def completion_options(sampling: Sampling, seed: int, position: int, output: Sequence[int] = ()) -> dict[str, Any]:
    """The sampling part of a completion request for the token at `position`, behind the `output` made so far."""
    options: dict[str, Any] = {"ignore_eos": sampling.ignore_eos, "temperature": max(sampling.temperature, 0.0)}
    if sampling.temperature > 0:
        options |= {
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": sampling.min_p,
            "seed": step_seed(seed, position),
            # OpenAI's order; llama.cpp's own applies the temperature last. Never empty: that means "at random".
            "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        }
    if sampling.repetition_penalty != 1.0:
        options |= {"repeat_penalty": sampling.repetition_penalty, "repeat_last_n": position}
    if bias := _biases(sampling, output):
        options["logit_bias"] = bias
    if sampling.logprobs is not None:
        options["n_probs"] = max(1, sampling.logprobs)
    return options


def _biases(sampling: Sampling, output: Sequence[int]) -> list[list[float]]:
    """What each token's logit is changed by.

    Presence and frequency penalties are such changes, from the tokens made so far; llama.cpp's own penalties of these
    names would count the prompt too, since each of our steps sends all tokens as its prompt.
    """
    bias: defaultdict[int, float] = defaultdict(float, sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(output).items():
            bias[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return [[token, change] for token, change in bias.items() if change]
