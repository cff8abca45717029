"""However the starter ends, it takes its fleet along; and nothing disturbs one that runs."""

import os
import shlex
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.embedded import child_named, descendants, kill_hard, living, run_pdd, running_fleet, up_arguments
from tests.processes import wait_until
from tests.services import free_port

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

PARENT = (sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)")


def test_nothing_outlives_a_starter_that_is_killed_and_its_data_can_be_used_again(tmp_path):
    with running_fleet(tmp_path / "data") as fleet:
        family = descendants(fleet.pid)
        assert len(family) > 10
        changed = fleet.pdd("policy", "set", "routing.relay_when_transfer_exceeds_s=1.5")
        assert changed.returncode == 0, changed.stderr
        kill_hard(fleet.pid)
        wait_until(lambda: not living(family))
    with running_fleet(tmp_path / "data") as fleet:
        assert "revision 2" in fleet.pdd("policy", "show").stdout
        assert "Password" not in fleet.output


@pytest.mark.full
def test_nothing_outlives_the_killed_parent_of_a_starter_that_was_told_to_die_with_it(tmp_path):
    data = tmp_path / "data"
    with running_fleet(data, wrap=lambda argv: [*PARENT, *argv], more=("--die-with-parent",)) as fleet:
        family = descendants(fleet.pid)
        assert len(family) > 10
        kill_hard(fleet.pid)
        wait_until(lambda: not living(family))


def test_ctrl_c_stops_every_process_and_frees_the_ports(tmp_path):
    with running_fleet(tmp_path / "data") as fleet:
        family = descendants(fleet.pid)
        os.kill(fleet.pid, signal.SIGINT)
        wait_until(lambda: not living(family | {fleet.pid}))
        assert fleet.output.rstrip().endswith("stopped")
        assert not fleet.is_gateway_healthy()


@pytest.mark.full
def test_an_interrupt_that_reaches_only_make_stops_the_fleet_too(tmp_path):
    makefile = tmp_path / "Makefile"
    makefile.write_text("up:\n\t@exec $(COMMAND)\n")

    def by_make(argv):
        return ["make", "-f", str(makefile), "up", f"COMMAND={shlex.join(argv)}"]

    with running_fleet(tmp_path / "data", wrap=by_make, more=("--die-with-parent",)) as fleet:
        family = descendants(fleet.pid)
        os.kill(fleet.pid, signal.SIGINT)
        wait_until(lambda: not living(family | {fleet.pid}))
        assert "stopped" in fleet.output


@pytest.mark.full
def test_ctrl_c_during_the_start_stops_it(tmp_path):
    data = tmp_path / "data"
    with running_fleet(data, until="valkey is ready") as fleet:
        family = descendants(fleet.pid)
        os.kill(fleet.pid, signal.SIGINT)
        wait_until(lambda: not living(family | {fleet.pid}))
        assert fleet.output.rstrip().endswith("stopped")


def test_a_second_start_on_the_same_data_says_who_runs_and_where(emulated_fleet):
    second = run_pdd(*up_arguments(emulated_fleet.data, "emulated", free_port(), free_port()))
    assert second.returncode == 1
    assert f"process {emulated_fleet.pid}" in second.stderr
    assert emulated_fleet.web_url in second.stderr
    assert emulated_fleet.gateway_url in second.stderr
    assert emulated_fleet.is_gateway_healthy()


@pytest.mark.parametrize(("index", "option"), [(0, "--web-port"), (1, "--gateway-port")])
def test_a_taken_port_is_named_with_the_option_that_chooses_another(tmp_path, index, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = [free_port(), free_port()]
        ports[index] = port
        refused = run_pdd(*up_arguments(tmp_path / "data", "emulated", *ports))
    assert refused.returncode == 1
    assert f"Port {port}" in refused.stderr
    assert option in refused.stderr


def test_a_killed_gateway_is_started_again_with_its_last_policy(emulated_fleet):
    gateway = child_named(emulated_fleet, "engine_agents.gateway")
    kill_hard(gateway)
    wait_until(lambda: "gateway is back" in emulated_fleet.output)
    assert emulated_fleet.is_gateway_healthy()
    assert child_named(emulated_fleet, "engine_agents.gateway") != gateway


def test_secrets_stand_on_no_command_line_and_are_readable_by_the_owner_only(emulated_fleet):
    secrets = (emulated_fleet.data / "secrets.json").read_text()
    assert (emulated_fleet.data.stat().st_mode & 0o077) == 0
    assert ((emulated_fleet.data / "secrets.json").stat().st_mode & 0o077) == 0
    for pid in descendants(emulated_fleet.pid):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert not [argument for argument in arguments if len(argument) > 30 and argument in secrets]
