"""Whole fleets started by `pdd up`, for tests that need everything at once."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from control.cli.ports import choose_ports
from tests.processes import ROOT, running_process, wait_until

PDD = (sys.executable, "-m", "control.cli.main")
START_TIMEOUT_S = 110.0


@dataclass(frozen=True)
class Fleet:
    """A fleet that is up."""

    pid: int
    data: Path
    log: Path
    web_url: str
    gateway_url: str

    @property
    def output(self) -> str:
        """All that `pdd up` has printed."""
        return self.log.read_text()

    @property
    def headers(self) -> dict[str, str]:
        """What opens the REST API."""
        return {"Authorization": f"Bearer {(self.data / 'operator-token').read_text().strip()}"}

    @property
    def sign_in_url(self) -> str:
        """The link that opens the dashboard, once."""
        found = re.search(r"http://\S+/login\?key=\S+", self.output)
        assert found, self.output
        return found[0]

    def pdd(self, *arguments: str, timeout_s: float = 110.0) -> subprocess.CompletedProcess[str]:
        """Run a `pdd` command against this fleet."""
        return run_pdd(*arguments, "--data", str(self.data), timeout_s=timeout_s)

    def is_gateway_healthy(self) -> bool:
        """Whether the gateway serves."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.gateway_url}/health", trust_env=False).is_success
        return False


def run_pdd(*arguments: str, timeout_s: float = 110.0) -> subprocess.CompletedProcess[str]:
    """Run a `pdd` command to its end; a hang fails the test."""
    return subprocess.run(
        [*PDD, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def up_arguments(data: Path, engine: str, web_port: int, gateway_port: int) -> list[str]:
    """`pdd up` on ports of its own and without demo traffic."""
    ports = ["--web-port", str(web_port), "--gateway-port", str(gateway_port)]
    return ["up", "--engine", engine, "--data", str(data), *ports, "--no-demo"]


@contextlib.contextmanager
def running_fleet(
    data: Path,
    engine: str = "emulated",
    wrap: Callable[[list[str]], list[str]] = list,
    more: tuple[str, ...] = (),
    until: str = "Ctrl-C",
) -> Iterator[Fleet]:
    """A fleet that is up while the context is open.

    Args:
        data: its data folder; what `pdd up` prints goes to a file beside it.
        engine: kind of its nodes.
        wrap: makes a command line that runs the given one as a child.
        more: further arguments of `pdd up`.
        until: what `pdd up` prints when the fleet is as far as wanted.
    """
    web_port, gateway_port = choose_ports(["web", "gateway"], {}).values()
    log_path = data.with_name(f"{data.name}.out")
    argv = wrap([*PDD, *up_arguments(data, engine, web_port, gateway_port), *more])
    with log_path.open("wb") as log, running_process(argv, log) as process:
        urls = (f"http://127.0.0.1:{web_port}", f"http://127.0.0.1:{gateway_port}")
        fleet = Fleet(process.pid, data, log_path, *urls)
        wait_until(lambda: until in fleet.output or process.poll() is not None, START_TIMEOUT_S)
        if process.poll() is not None:
            pytest.fail(f"the fleet did not start:\n{fleet.output}")
        yield fleet
        # Asked first, so that it ends its children itself; what is left is killed by the context.
        if process.poll() is None:
            process.terminate()
            process.wait()


def descendants(pid: int) -> set[int]:
    """All living children of a process, their children, and so on."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def living(pids: set[int]) -> set[int]:
    """Those of some processes that still run."""
    alive = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                alive.add(pid)
    return alive


def child_named(fleet: Fleet, text: str) -> int:
    """The child of `pdd up` whose command line holds a text."""
    for pid in sorted(descendants(fleet.pid)):
        with contextlib.suppress(OSError):
            if text in (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " "):
                return pid
    raise LookupError(text)


def last_json_line(text: str) -> dict[str, object]:
    """The last line of a command's output, decoded."""
    document = json.loads(text.strip().splitlines()[-1])
    assert isinstance(document, dict)
    return document


def kill_hard(pid: int) -> None:
    """`kill -9`."""
    os.kill(pid, 9)
