"""Operations on a fleet of real processes, under traffic whose every answer is counted and compared."""

from datetime import timedelta

import httpx
import pytest

from control.domain.operations import Kind, OperationState, Stage
from control.domain.topology import NodeState, Role
from control.services.access import Principal
from control.services.access import Role as AccessRole
from control.services.operations import load_probes
from control.services.site_secret import RotationState, start_rotation
from tests.operation_rig import (
    DUTY,
    SECRET,
    VICTIM,
    Traffic,
    assert_switched_once,
    operation_rig,
    restart_agent,
    switch_back,
    switch_held_at,
)
from tests.processes import wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with operation_rig(tmp_path_factory.mktemp("operations")) as rig:
        yield rig


def assert_done(rig, number):
    stored = rig.wait_over(number)
    assert (stored.operation.state, stored.row.error) == (OperationState.DONE, "")
    return stored


@pytest.mark.full
def test_a_restart_ends_one_incarnation_once_and_loses_nothing(rig):
    with Traffic(rig.gateway_url, clients=2) as traffic:
        traffic.wait_for(2)
        number = rig.open(Kind.RESTART, node=VICTIM)
        assert_done(rig, number)
        traffic.wait_for(2)
    assert traffic.faults == []
    log = (rig.folder / "victim.log").read_text()
    assert log.count("ready http") == 2
    told = [line for line in log.splitlines() if f"order restart of step {number}." in line]
    assert [line.rpartition(": ")[2] for line in told].count("applied") == 1
    rig.assert_fleet_is_legal()


@pytest.mark.faults
@pytest.mark.full
def test_an_agent_killed_before_it_told_the_node_is_replaced_and_the_node_told_once(rig):
    with Traffic(rig.gateway_url, clients=1) as traffic:
        number = switch_held_at(rig, DUTY, Stage.ASSIGN)
        restart_agent(rig)
        stored = assert_switched_once(rig, number)
    assert traffic.faults == []
    [assign] = [step for step in stored.operation.steps if step.plan.stage is Stage.ASSIGN]
    assert assign.attempt > 1
    switch_back(rig)


def test_a_role_switch_and_a_rebalance_lose_no_request_and_break_no_stream(rig):
    with Traffic(rig.gateway_url) as traffic:
        traffic.wait_for(6)
        switch = rig.open(Kind.SWITCH_ROLE, node=VICTIM, role="relay")
        assert rig.open(Kind.SWITCH_ROLE, node=VICTIM, role="relay") == switch
        assert_done(rig, switch)
        assert (rig.node(VICTIM).role, rig.node(VICTIM).state) == (Role.RELAY, NodeState.READY)
        assert rig.effects(VICTIM, switch) == ["applied"]
        traffic.wait_for(3)
        rebalance = rig.open(Kind.REBALANCE, site="ams", target="3:1:0")
        stored = assert_done(rig, rebalance)
        assert [move["to"] for move in stored.row.result["moves"]] == ["prefill"]
        traffic.wait_for(6)
    assert traffic.faults == []
    assert traffic.counts["sent"] == traffic.counts["whole"] > 15
    rig.assert_fleet_is_legal()


@pytest.mark.full
def test_a_new_secret_reaches_every_program_under_traffic_and_stands_in_no_log(rig):
    with Traffic(rig.gateway_url, clients=2) as traffic:
        traffic.wait_for(2)
        administrator = Principal("ada", AccessRole.ADMIN)
        _, secret = start_rotation(rig.plane, administrator, timedelta(seconds=600), "a test")
        wait_until(lambda: rig.rotation().state is not RotationState.OPEN)
        assert (rig.rotation().waiting_for, rig.rotation().failed) == ((), {})
        for known in (SECRET, secret):
            headers = {"Authorization": f"Bearer {known}"}
            config = f"{rig.gateway_url}/admin/v1/config"
            assert httpx.get(config, headers=headers, trust_env=False).status_code == 200
        assert_done(rig, rig.open(Kind.DRAIN, node=VICTIM))
        assert_done(rig, rig.open(Kind.UNDRAIN, node=VICTIM))
        traffic.wait_for(2)
    assert traffic.faults == []
    assert [path.name for path in rig.folder.glob("*.log") if secret in path.read_text()] == []
    rig.assert_fleet_is_legal()


@pytest.mark.full
def test_a_link_is_measured_and_shaped(rig):
    probe = rig.open(Kind.PROBE_LINK, link="ams-fra", size_bytes=1_000_000)
    assert_done(rig, probe)
    with rig.plane.database.reading() as session:
        [row] = load_probes(session, "ams-fra", 10)
    assert row.size_bytes == 875_000
    assert 0 < row.bandwidth_bytes_per_s < 1.3 * 4e6
    assert row.rtt_s >= 0.02
    shape = rig.open(Kind.SHAPE_LINK, link="ams-fra", shape={"rate_cap_bytes_per_s": 2e6})
    assert_done(rig, shape)


@pytest.mark.full
def test_observers_follow_a_nodes_new_role(rig):
    number = rig.open(Kind.SWITCH_ROLE, node="ams-p-02", role="relay")
    assert_done(rig, number)
    wait_until((rig.folder / "watched-ams.json").exists)
    wait_until(lambda: '"role": "relay"' in _entry((rig.folder / "watched-ams.json").read_text(), "ams-p-02"))
    assert_done(rig, rig.open(Kind.SWITCH_ROLE, node="ams-p-02", role="prefill"))


def _entry(document, node):
    return document[document.index(f'"name": "{node}"') :][:200]
