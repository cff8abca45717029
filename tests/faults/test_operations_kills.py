"""Workers and the broker die in the middle of operations: each ends, the fleet is legal, and no effect comes twice."""

import pytest

from control.domain.operations import Kind, OperationState, Stage
from control.domain.topology import NodeState, Role
from control.errors import ConflictError
from tests.operation_rig import (
    DUTY,
    VICTIM,
    Traffic,
    assert_switched_once,
    operation_rig,
    restart_agent,
    switch,
    switch_back,
    switch_held_at,
)
from tests.processes import wait_until

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.timeout(300)]

WARM_UP = b"warm up"
LOOK = f"GET /nodes/{VICTIM}/pdd/v1/node ".encode()


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with operation_rig(tmp_path_factory.mktemp("kills")) as rig:
        yield rig


@pytest.fixture(autouse=True)
def as_before(rig):
    """Every test begins and ends with a whole fleet whose victim is a prefill node."""
    yield
    switch_back(rig)


def test_an_agent_killed_after_the_node_obeyed_and_before_it_could_say_so(rig):
    number = switch_held_at(rig, DUTY, Stage.ASSIGN, answer=True)
    restart_agent(rig)
    assert_switched_once(rig, number)
    assert "unchanged" in rig.effects(VICTIM, number)


def test_an_agent_killed_while_the_node_comes_to_rest(rig):
    number = switch_held_at(rig, LOOK, Stage.EMPTY)
    restart_agent(rig)
    assert_switched_once(rig, number)


def test_an_agent_killed_while_the_node_warms_up(rig):
    number = switch_held_at(rig, WARM_UP, Stage.WARM)
    restart_agent(rig)
    assert_switched_once(rig, number)


def test_an_agent_that_stays_away_fails_the_operation_and_gives_the_node_back(rig):
    number = switch_held_at(rig, WARM_UP, Stage.WARM)
    rig.agents["ams"].kill()
    rig.gate.release()
    wait_until(lambda: rig.load(number).operation.state is OperationState.UNDOING, 150)
    assert (rig.node(VICTIM).role, rig.node(VICTIM).state) == (Role.PREFILL, NodeState.READY)
    stored = rig.wait_over(number, 60)
    assert stored.operation.state is OperationState.FAILED
    assert f"warm of {VICTIM} took longer than 90 s" in stored.row.error
    assert "the agent of site ams has not answered" in stored.row.error
    rig.agents["ams"].start()
    rig.assert_fleet_is_legal()


@pytest.mark.parametrize(("words", "stage"), [(DUTY, Stage.ASSIGN), (WARM_UP, Stage.WARM)])
def test_the_control_worker_killed_while_an_agent_works(rig, words, stage):
    number = switch_held_at(rig, words, stage)
    rig.control.kill()
    rig.gate.release()
    rig.control.start()
    assert_switched_once(rig, number)


def test_the_control_worker_killed_before_gateways_have_followed(rig):
    number = switch(rig)
    rig.control.kill()
    rig.control.start()
    assert_switched_once(rig, number)


@pytest.mark.parametrize(("words", "stage"), [(DUTY, Stage.ASSIGN), (WARM_UP, Stage.WARM)])
def test_a_broker_that_loses_everything(rig, words, stage):
    with Traffic(rig.gateway_url, clients=1) as traffic:
        number = switch_held_at(rig, words, stage)
        rig.valkey.kill()
        rig.gate.release()
        rig.valkey.start()
        assert_switched_once(rig, number)
    assert traffic.faults == []
    wait_until(rig.is_healthy)


@pytest.mark.parametrize("part", ["observers", "agents"])
def test_a_site_that_falls_silent_is_stale_and_nothing_is_done_to_it(rig, part):
    wait_until(rig.is_healthy)
    getattr(rig, part)["ams"].kill()
    wait_until(lambda: rig.health(VICTIM) == "stale", 90)
    with pytest.raises(ConflictError, match=f"{VICTIM} is stale"):
        rig.open(Kind.SWITCH_ROLE, node=VICTIM, role="relay")
    assert rig.health("fra-md-01") == "healthy"
    getattr(rig, part)["ams"].start()
    wait_until(rig.is_healthy, 90)
