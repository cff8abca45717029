"""The compiled kernel against the plain reference, to the bit. Compiling takes half a minute of a core."""

import pytest

from control.twin.reference import simulate_plainly
from control.twin.scenario import build_world, rules_of
from tests.unit.twin.scenarios import CASES, faulty, scenario

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def compiled(case):
    from control.twin.kernel import simulate  # noqa: PLC0415 - loads a compiler

    world = build_world(case)
    simulate(world, rules_of(case))
    return world.results


@pytest.mark.parametrize("name", CASES)
def test_kernel_and_reference_agree_to_the_bit(name) -> None:
    assert compiled(CASES[name]).tobytes() == simulate_plainly(CASES[name]).tobytes()


@pytest.mark.parametrize("seed", range(20, 40))
def test_they_agree_under_other_seeds_and_faults(seed) -> None:
    for case in (scenario(seed), faulty(seed)):
        assert compiled(case).tobytes() == simulate_plainly(case).tobytes()
