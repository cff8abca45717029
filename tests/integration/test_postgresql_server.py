"""The tests' own PostgreSQL does not outlive a test run that is killed."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.postgresql import postgresql_folder
from tests.processes import ROOT, session_members, wait_until

pytestmark = [pytest.mark.full, pytest.mark.faults]

STARTER = """
import time
from tests.postgresql import running_postgresql
with running_postgresql() as server:
    print(server.pid, server.folder, flush=True)
    time.sleep(600)
"""


def test_a_killed_test_run_takes_its_database_server_along():
    if postgresql_folder() is None:
        pytest.skip("PostgreSQL is not installed")
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        pid, folder = starter.stdout.readline().split()
        pid = int(pid)
        assert pid in session_members(pid)
        os.kill(starter.pid, signal.SIGKILL)
    try:
        wait_until(lambda: session_members(pid) == [])
    finally:
        shutil.rmtree(folder)
