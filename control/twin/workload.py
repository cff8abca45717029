"""Loads: seeded agent sessions, and sessions of a trace drawn again at a wanted rate. Same seed, same load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from control.twin.scenario import Workload
from control.twin.state import TURN


@dataclass(frozen=True, slots=True)
class AgentShape:
    """What agent sessions look like; spreads are the σ of a log-normal distribution around a median.

    A session begins with `system_tokens` that all share and a first message; each turn adds a message, mostly small:
    the smaller `added_spread`, the less the hit rates are skewed. Beyond `max_context_tokens` the session ends.
    """

    turns: float = 20.0
    system_tokens: int = 8000
    opening_tokens: float = 6000.0
    added_tokens: float = 500.0
    added_spread: float = 1.5
    output_tokens: float = 200.0
    output_spread: float = 1.0
    bound_tokens: int = 4096
    think_s: float = 10.0
    max_context_tokens: int = 65_536


def agent_load(shape: AgentShape, sessions: int, sessions_per_s: float, seed: int) -> Workload:
    """Sessions that arrive at random (Poisson), each with its turns."""
    rng = np.random.default_rng([seed, 1])
    planned = rng.geometric(1.0 / shape.turns, sessions)
    first = np.concatenate(([0], np.cumsum(planned)))
    added = _lognormal(rng, shape.added_tokens, shape.added_spread, first[-1])
    added[first[:-1]] = shape.system_tokens + _lognormal(rng, shape.opening_tokens, 1.0, sessions)
    output = _lognormal(rng, shape.output_tokens, shape.output_spread, first[-1])
    grown = np.cumsum(added + output)
    grown -= np.repeat(grown[first[:-1]] - (added + output)[first[:-1]], planned)
    turns = np.zeros(first[-1], TURN)
    turns["input_tokens"] = grown - output
    turns["reuse_tokens"] = np.where(added == grown - output, shape.system_tokens, grown - output - added)
    turns["shared_tokens"] = shape.system_tokens
    turns["output_tokens"] = output
    turns["bound_tokens"] = shape.bound_tokens
    turns["think_s"] = rng.exponential(shape.think_s, first[-1])
    fits = turns["input_tokens"] <= shape.max_context_tokens
    fits[first[:-1]] = True
    turns["input_tokens"] = np.minimum(turns["input_tokens"], shape.max_context_tokens)
    starts_s = np.cumsum(rng.exponential(1.0 / sessions_per_s, sessions))
    counts = np.add.reduceat(fits, first[:-1])
    return Workload(starts_s, np.concatenate(([0], np.cumsum(counts))), turns[fits])


def drawn_again(sessions: Sequence[npt.NDArray[Any]], requests_per_s: float, duration_s: float, seed: int) -> Workload:
    """Sessions of a trace drawn with replacement, arriving at random so that requests come at the wanted rate."""
    rng = np.random.default_rng([seed, 2])
    mean_turns = sum(turns.size for turns in sessions) / len(sessions)
    sessions_per_s = requests_per_s / mean_turns
    count = max(1, round(duration_s * sessions_per_s))
    drawn = [sessions[number] for number in rng.integers(0, len(sessions), count)]
    starts_s = np.sort(rng.uniform(0.0, duration_s, count))
    first = np.concatenate(([0], np.cumsum([turns.size for turns in drawn])))
    return Workload(starts_s, first, np.concatenate(drawn))


def _lognormal(rng: np.random.Generator, median: float, spread: float, size: int) -> npt.NDArray[np.int64]:
    return np.maximum(1, rng.lognormal(np.log(median), spread, size)).astype(np.int64)
