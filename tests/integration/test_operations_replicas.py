"""Two workers of control on one database: one beats, and the other takes over when it is killed."""

import os
import signal
from contextlib import ExitStack

import pytest

from control.domain.topology import FleetSnapshot, Site
from control.services.bootstrap import prepare
from control.settings import Settings
from tests.processes import running_valkey, running_worker, wait_until

pytestmark = [pytest.mark.full, pytest.mark.faults]

BEAT = "Sending due task"


def beats(log):
    return log.read_text().count(BEAT) if log.exists() else 0


def test_of_two_control_workers_one_beats_until_it_is_killed(tmp_path):
    with ExitStack() as stack:
        environment = {
            "PDD_DATA_DIR": str(tmp_path),
            "PDD_REDIS_URL": stack.enter_context(running_valkey(tmp_path)),
            "PDD_DATABASE_URL": f"sqlite:///{tmp_path / 'control.sqlite3'}",
            "PDD_SITE_SECRET": "s",
        }
        fleet = FleetSnapshot(sites=(Site("ams"),), model="m", kv_bytes_per_token=1)
        prepare(Settings.from_environment(environment), fleet.to_document())
        logs = [tmp_path / "first.log", tmp_path / "second.log"]
        workers = [
            stack.enter_context(running_worker("control.worker", "control", log, environment, "-B")) for log in logs
        ]
        wait_until(lambda: all("ready." in log.read_text() for log in logs))
        wait_until(lambda: sum(beats(log) for log in logs) >= 3)
        assert sorted(beats(log) > 0 for log in logs) == [False, True]
        leader = 0 if beats(logs[0]) else 1
        os.kill(workers[leader].pid, signal.SIGKILL)
        wait_until(lambda: beats(logs[1 - leader]) >= 2)
