"""The tests' own PostgreSQL outlives no test run that is killed, and its databases no test."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.postgresql import postgresql_folder
from tests.processes import ROOT, session_members, wait_until

STARTER = """
import time
from tests.postgresql import running_postgresql
with running_postgresql() as server:
    print(server.pid, server.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.full
@pytest.mark.faults
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


def test_the_databases_of_a_test_are_dropped_whoever_is_connected(postgresql_server):
    url = postgresql_server.new_database()
    name = make_url(url).database
    names = text("select datname from pg_database")
    user, watcher = create_engine(url), create_engine(postgresql_server.url("postgres"))
    with user.connect() as connection, watcher.connect() as other:
        connection.execute(text("select 1"))
        before = other.execute(names).scalars().all()
        postgresql_server.drop_databases()
        after = other.execute(names).scalars().all()
        connection.invalidate()
    user.dispose()
    watcher.dispose()
    assert name in before
    assert name not in after
