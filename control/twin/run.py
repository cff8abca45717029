"""Runs a scenario in the compiled kernel. The first call of a process compiles it, or reads it from disk."""

from typing import Any

import numpy.typing as npt

from control.twin.kernel import simulate
from control.twin.scenario import Scenario, build_world, rules_of


def run(scenario: Scenario) -> npt.NDArray[Any]:
    """What becomes of each turn."""
    return run_counted(scenario)[0]


def run_counted(scenario: Scenario) -> tuple[npt.NDArray[Any], int]:
    """What becomes of each turn, and how many events that took."""
    world = build_world(scenario)
    events = simulate(world, rules_of(scenario))
    return world.results, events
