"""Processes that tests start and that cannot outlive them: a Valkey for a whole module, Celery workers, anything."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from control.cli.valkey_config import valkey_binary
from control.processes import die_with_parent
from tests.services import free_port

ROOT = Path(__file__).parents[1]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll until something is so; a hang of the thing under test ends as a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not so after {timeout_s} s")
        time.sleep(0.05)


@contextlib.contextmanager
def running_process(
    argv: Sequence[str], log: IO[bytes], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own; it and its descendants are gone afterwards, also if the test run is killed."""
    parent_pid = os.getpid()
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent_pid),  # noqa: PLW1509 - only two system calls
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def running_valkey(folder: Path) -> Iterator[str]:
    """An empty server that keeps nothing on disk; gives its URL."""
    port = free_port()
    argv = [str(valkey_binary()), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    with (folder / "valkey.log").open("wb") as log, running_process(argv, log):
        wait_until(lambda: _accepts(port))
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def running_worker(
    module: str, queue: str, log_path: Path, environment: Mapping[str, str], *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker of a module on one queue."""
    argv = [sys.executable, "-m", "celery", "-A", module, "worker", "-Q", queue, "-l", "INFO", "-n", f"{queue}@test"]
    with log_path.open("ab") as log, running_process([*argv, *options], log, environment) as process:
        yield process


def session_members(leader: int) -> list[int]:
    """Living processes of the session that `leader` began, also when `leader` itself is gone."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    members.append(int(entry.name))
    return members


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
