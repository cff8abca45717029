"""Starts a fleet's processes side by side, keeps them running, and stops them all."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from control.cli.concurrency import together
from control.cli.errors import CommandError
from control.cli.log_files import bound_log, last_lines, open_log
from control.cli.process_spec import ProcessSpec, restart_delay_s
from control.cli.readiness import is_ready
from control.processes import die_with_parent

_POLL_S = 0.1
_STABLE_AFTER_S = 60.0
_BOUND_LOGS_EVERY_S = 10.0
_PATIENCE_S = 3.5


async def spawn(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path, stdout: int, *, stderr: int | None = None
) -> asyncio.subprocess.Process:
    """Start a child in a session of its own that cannot outlive this process. Call it from the main thread only."""
    parent_pid = os.getpid()
    return await asyncio.create_subprocess_exec(
        *argv,
        env=dict(environment),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stdout if stderr is None else stderr,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent_pid),
    )


class Child:
    """One supervised process and its log."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.ready = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self.log_start_bytes = 0

    @property
    def is_running(self) -> bool:
        """Whether its process exists now."""
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to all its descendants that stayed in its session's group."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


class Supervisor:
    """Keeps a set of processes alive. `say` gets one plain line per event."""

    def __init__(self, folder: Path, logs: Path, base: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._folder = folder
        self._logs = logs
        self._base = dict(base)
        self._say = say
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start all and return when each is ready.

        Raises:
            CommandError: one ended or was not ready in time; the text holds the end of its log.
        """
        added = [Child(spec, self._logs / f"{spec.name}.log") for spec in specs]
        self._children.update({child.spec.name: child for child in added})
        await together(*(self._first_start(child) for child in added))
        self._keepers += [asyncio.ensure_future(self._keep(child)) for child in added]

    async def watch(self) -> None:
        """Bound the logs until cancelled."""
        while True:
            for child in self._children.values():
                bound_log(child.log)
            await asyncio.sleep(_BOUND_LOGS_EVERY_S)

    async def stop(self) -> None:
        """End every process, wave by wave: first asked, then killed. Takes a few seconds at most."""
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        waves = sorted({child.spec.stop_wave for child in self._children.values()}, reverse=True)
        for wave in waves:
            children = [child for child in self._children.values() if child.spec.stop_wave == wave]
            await self._stop_wave(children)

    def kill(self) -> None:
        """End every process at once, without asking."""
        for child in self._children.values():
            child.signal(signal.SIGKILL, group=True)

    async def _stop_wave(self, children: list[Child]) -> None:
        running = [child for child in children if child.is_running]
        for child in running:
            child.signal(signal.SIGTERM)
        ends = [asyncio.ensure_future(child.process.wait()) for child in running if child.process]
        if ends:
            await asyncio.wait(ends, timeout=_PATIENCE_S)
        for child in children:
            if child.is_running:
                self._say(f"{child.spec.name} did not stop when asked; killed")
            child.signal(signal.SIGKILL, group=True)
        await asyncio.gather(*ends)

    async def _first_start(self, child: Child) -> None:
        for need in child.spec.needs:
            await self._children[need].ready.wait()
        began_s = time.monotonic()
        await self._launch(child)
        if not await self._becomes_ready(child):
            raise CommandError(_failure_text(child))
        self._say(f"{child.spec.name} is ready ({time.monotonic() - began_s:.1f} s)")

    async def _keep(self, child: Child) -> None:
        """Start the process again each time it ends, the later the more often it ended early."""
        failures = 0
        started_s = time.monotonic()
        while child.process is not None:
            code = await child.process.wait()
            child.ready.clear()
            failures = 0 if time.monotonic() - started_s > _STABLE_AFTER_S else failures + 1
            delay_s = restart_delay_s(failures)
            self._say(f"{child.spec.name} ended ({_exit_text(code)}); starting it again in {delay_s:.1f} s")
            child.signal(signal.SIGKILL, group=True)
            await asyncio.sleep(delay_s)
            started_s = time.monotonic()
            await self._launch(child)
            if await self._becomes_ready(child):
                self._say(f"{child.spec.name} is back")

    async def _launch(self, child: Child) -> None:
        log = open_log(child.log)
        child.log_start_bytes = os.fstat(log).st_size
        try:
            environment = {**self._base, **child.spec.environment}
            child.process = await spawn(child.spec.argv, environment, self._folder, log)
        finally:
            os.close(log)

    async def _becomes_ready(self, child: Child) -> bool:
        """Wait until the process is ready; False when it ended first or the time is up."""
        give_up_s = time.monotonic() + child.spec.ready_timeout_s
        while child.is_running and time.monotonic() < give_up_s:
            if await is_ready(child.spec.probe, child.log, child.log_start_bytes):
                child.ready.set()
                return True
            await asyncio.sleep(_POLL_S)
        return False


def _exit_text(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _failure_text(child: Child) -> str:
    code = child.process.returncode if child.process else None
    happened = (
        f"was not ready within {child.spec.ready_timeout_s:.0f} s" if code is None else f"ended with {_exit_text(code)}"
    )
    tail = "\n".join(f"    {line}" for line in last_lines(child.log))
    return f"{child.spec.name} {happened}. The end of {child.log}:\n{tail}"
