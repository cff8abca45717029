"""A control plane that answers over real HTTP, and `pdd` run against it."""

import os
import threading
import time
from contextlib import contextmanager

import uvicorn
from typer.testing import CliRunner

from control.api.app import create_api
from control.cli.data_folder import DataFolder, Running
from control.cli.errors import CommandError
from control.cli.main import app
from control.services.access import Role
from control.services.credentials import ensure_token
from control.settings import Settings


@contextmanager
def pdd_on(plane, path):
    """Runs `pdd` with a data folder whose control plane answers on a port of its own.

    What it yields takes the words of a command and gives its output, or with `fails` what it says as it fails.
    """
    folder = DataFolder(path)
    folder.acquire()
    ensure_token(plane, "operator", Role.OPERATOR, folder.secrets().operator_token)
    api = create_api(Settings.from_environment({}), plane)
    server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        give_up_s = time.monotonic() + 60
        while not server.started and time.monotonic() < give_up_s:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        folder.announce(Running(os.getpid(), f"http://127.0.0.1:{port}", "http://127.0.0.1:1"))
        yield lambda *words, fails=0: _run([*words, "--data", str(folder.path)], fails)
    finally:
        server.should_exit = True
        thread.join(60)
        folder.release()


def _run(words, fails):
    outcome = CliRunner().invoke(app, words)
    if fails:
        assert outcome.exit_code == fails, (outcome.output, outcome.exception)
        return str(outcome.exception) if isinstance(outcome.exception, CommandError) else outcome.output
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    return outcome.output
