"""The data folder of an embedded fleet: who runs it, its secrets, and what it remembers between starts."""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from control.cli.errors import CommandError
from control.site_secret import ROTATED_FILE, SiteSecret


@dataclass(frozen=True, slots=True)
class Running:
    """Who runs a fleet from a data folder, and where it listens."""

    pid: int
    web_url: str
    gateway_url: str


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the processes of one fleet share and nobody else may read."""

    site_secret: str
    session_secret: str
    redis_password: str
    operator_token: str

    @classmethod
    def fresh(cls) -> Self:
        """Four new secrets of 256 random bits each."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(4)))


class DataFolder:
    """A folder that only its owner can enter, held by one fleet at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.operator_token = self.path / "operator-token"
        self._running = self.path / "running.json"
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Create the folder where needed and hold it until this process ends.

        Raises:
            CommandError: another fleet runs from it; the text says which process and where.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.logs.mkdir(exist_ok=True)
        lock = (self.path / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise CommandError(self._held_by()) from None
        self._lock = lock
        self._running.unlink(missing_ok=True)

    def release(self) -> None:
        """Take the announcement back and let another fleet have the folder."""
        self._running.unlink(missing_ok=True)
        if self._lock:
            self._lock.close()

    def _held_by(self) -> str:
        running = self.running()
        if running is None:
            return f"A fleet is already starting from {self.path}. Give this one its own folder: --data DIR"
        return (
            f"A fleet already runs from {self.path}: process {running.pid}, dashboard {running.web_url}, "
            f"gateway {running.gateway_url}. Stop it with Ctrl-C or `kill {running.pid}`, "
            "or give this one its own folder: --data DIR"
        )

    def running(self) -> Running | None:
        """The fleet last announced here; it may be gone unless the folder is held."""
        document = _read_json(self._running)
        return Running(**document) if document else None

    def announce(self, running: Running) -> None:
        """Let other commands find this fleet."""
        write_private(self._running, json.dumps(asdict(running)))

    def secrets(self) -> Secrets:
        """The fleet's secrets, made on the first call ever. The operator token also gets a file of its own."""
        path = self.path / "secrets.json"
        document = _read_json(path)
        known = Secrets(**document) if document else Secrets.fresh()
        if not document:
            write_private(path, json.dumps(asdict(known)))
        write_private(self.operator_token, known.operator_token + "\n")
        return known

    @property
    def site_secret(self) -> str:
        """What the fleet's programs accept now, which a rotation may have changed."""
        return SiteSecret(self.secrets().site_secret, self.path / ROTATED_FILE).current

    def remembered_ports(self) -> dict[str, int]:
        """Internal ports of the last start, by name."""
        return {str(name): int(port) for name, port in (_read_json(self.path / "ports.json") or {}).items()}

    def remember_ports(self, ports: dict[str, int]) -> None:
        """Keep internal ports for the next start."""
        write_private(self.path / "ports.json", json.dumps(ports))


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only the owner can read it, from its first byte on."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    fresh.replace(path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return document if isinstance(document, dict) else None
