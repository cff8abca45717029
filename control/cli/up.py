"""`pdd up`: starts a whole fleet on this machine, keeps it running, and stops it."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from control.cli.concurrency import together
from control.cli.data_folder import DataFolder, Running, Secrets, write_private
from control.cli.errors import CommandError
from control.cli.fleet_plan import (
    MODEL,
    Engine,
    FleetOptions,
    emulated_document,
    links_document,
    plan_fleet,
    port_names,
)
from control.cli.fleet_processes import (
    Commands,
    control_environment,
    control_processes,
    demo_process,
    node_processes,
    site_processes,
    store_process,
)
from control.cli.log_files import last_lines, open_log
from control.cli.parent_watch import watch_parent
from control.cli.ports import choose_ports, is_free
from control.cli.supervisor import Supervisor, spawn
from control.cli.valkey_config import valkey_binary, valkey_config
from control.domain.topology import FleetSnapshot

ROOT = Path(__file__).resolve().parents[2]

Say = Callable[[str], None]


def run_up(options: FleetOptions, say: Say) -> None:
    """Run a fleet until Ctrl-C or SIGTERM.

    Raises:
        CommandError: it cannot start; the text says why.
    """
    folder = DataFolder(options.data_dir)
    folder.acquire()
    try:
        require_free_ports(options)
        asyncio.run(EmbeddedFleet(options, folder, say).run())
    finally:
        folder.release()


def require_free_ports(options: FleetOptions) -> None:
    """See that nobody listens where this fleet wants to.

    Raises:
        CommandError: names the port and the option that chooses another.
    """
    wanted = (("dashboard", "--web-port", options.web_port), ("gateway", "--gateway-port", options.gateway_port))
    taken = [
        f"Port {port} for the {what} is taken. Stop what listens there, or choose another: {option} N"
        for what, option, port in wanted
        if not is_free(port, options.host)
    ]
    if taken:
        raise CommandError("\n".join(taken))


class EmbeddedFleet:
    """One run of a fleet: its files, its processes, its end."""

    def __init__(self, options: FleetOptions, folder: DataFolder, say: Say) -> None:
        self._options = options
        self._folder = folder
        self._say = say
        self._secrets: Secrets = folder.secrets()
        public = (options.web_port, options.gateway_port)
        self._ports = choose_ports(port_names(options.engine), folder.remembered_ports(), public)
        folder.remember_ports(self._ports)
        self._fleet: FleetSnapshot = plan_fleet(options, self._ports)
        self._commands = Commands(sys.executable, str(valkey_binary()))
        self._supervisor = Supervisor(ROOT, folder.logs, _base_environment(), say)

    async def run(self) -> None:
        """Start, wait for a signal, stop."""
        asked = _signals(self._supervisor.kill)
        parent = asyncio.ensure_future(watch_parent(asked.set)) if self._options.follow_parent else None
        began_s = time.monotonic()
        self._say(f"starting a fleet of {self._options.engine.value} nodes from {self._folder.path}")
        self._write_files()
        start = asyncio.ensure_future(self._start())
        wait_for_signal = asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait({start, wait_for_signal}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                shown = start.result()
                self._folder.announce(Running(os.getpid(), self._options.web_url, self._options.gateway_url))
                self._say(f"all is up after {time.monotonic() - began_s:.0f} s")
                print(welcome(self._options, self._folder, shown), flush=True)
                await self._watch_until(wait_for_signal)
            self._say("stopping")
        finally:
            start.cancel()
            wait_for_signal.cancel()
            if parent:
                parent.cancel()
            await asyncio.gather(start, wait_for_signal, return_exceptions=True)
            await self._supervisor.stop()
        self._say("stopped")

    async def _watch_until(self, stopped: asyncio.Future[Any]) -> None:
        watch = asyncio.ensure_future(self._supervisor.watch())
        try:
            await asyncio.wait({watch, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        finally:
            watch.cancel()

    def _write_files(self) -> None:
        """What processes read instead of being told on their command lines, which everybody can see."""
        valkey = self._folder.path / "valkey"
        valkey.mkdir(exist_ok=True)
        config = valkey_config(self._ports["valkey"], valkey, self._secrets.redis_password)
        write_private(valkey / "valkey.conf", config)
        write_private(self._folder.path / "links.json", json.dumps(links_document(self._fleet)))
        if self._options.engine is Engine.EMULATED:
            nodes = emulated_document(self._fleet, self._ports)
            write_private(self._folder.path / "nodes.json", json.dumps(nodes))
        write_private(self._folder.path / "fleet.json", json.dumps(self._fleet.to_document()))

    async def _start(self) -> dict[str, Any]:
        """Everything side by side, except that the control plane waits for its database and the demo for all."""
        parts = (self._options, self._commands, self._secrets, self._ports)
        options, commands, secrets, ports = parts
        sites = [
            store_process(options, commands),
            *node_processes(options, self._fleet, commands, secrets, ports),
            *site_processes(options, self._fleet, commands, secrets, ports),
        ]
        _, shown = await together(self._supervisor.start(sites), self._start_control())
        if options.demo:
            await self._supervisor.start([demo_process(*parts)])
        return shown or {}

    async def _start_control(self) -> dict[str, Any]:
        parts = (self._options, self._commands, self._secrets, self._ports)
        shown = await self._prepare()
        await self._supervisor.start(control_processes(*parts))
        return shown

    async def _prepare(self) -> dict[str, Any]:
        """Bring the database up to date; what the operator needs to see.

        Raises:
            CommandError: it could not be done; the text holds the end of the log.
        """
        began_s = time.monotonic()
        path = self._folder.logs / "prepare.log"
        environment = control_environment(self._options, self._secrets, self._ports)
        argv = self._commands.module("control.cli.prepare", self._folder.path / "fleet.json")
        log = open_log(path)
        try:
            process = await spawn(
                argv, {**_base_environment(), **environment}, ROOT, asyncio.subprocess.PIPE, stderr=log
            )
        finally:
            os.close(log)
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise CommandError(f"The database could not be prepared. {path}:\n" + "\n".join(last_lines(path)))
        self._say(f"database is ready ({time.monotonic() - began_s:.1f} s)")
        shown: dict[str, Any] = json.loads(output)
        if shown["admin_password"]:
            # Said at once: should the start fail later, it could never be shown again.
            self._say(f"first start: the dashboard's user is admin, the password {shown['admin_password']}")
        return shown


def welcome(options: FleetOptions, folder: DataFolder, shown: dict[str, Any]) -> str:
    """What the operator needs to go on, in one block."""
    rows = [
        ("Dashboard", options.web_url),
        ("Sign in", f"{options.web_url}/login?key={shown['login_key']}   (opens the dashboard, once)"),
        ("Password", f"admin / {shown['admin_password']}   (shown this once)" if shown["admin_password"] else ""),
        ("Gateway", f"{options.gateway_url}/v1   (OpenAI API, model {MODEL})"),
        ("Token", f"{folder.operator_token}   (for the REST API)"),
        ("Logs", str(folder.logs)),
        ("Stop", "Ctrl-C"),
    ]
    return "\n".join(["", *(f"  {name:<10} {text}" for name, text in rows if text), ""])


def _base_environment() -> dict[str, str]:
    """This process's own environment without what would leak into processes that must not have it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PDD_")}


def _signals(on_third: Callable[[], None]) -> asyncio.Event:
    """Set at the first SIGINT, SIGTERM or SIGHUP; an impatient third one kills."""
    asked = asyncio.Event()
    count = 0

    def note() -> None:
        nonlocal count
        count += 1
        asked.set()
        if count > 2:
            on_third()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):
            loop.add_signal_handler(number, note)
    return asked
