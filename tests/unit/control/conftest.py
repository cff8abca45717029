import itertools
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from argon2 import PasswordHasher

from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Role, Site
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.store.migrate import upgrade_schema
from control.store.session import open_database
from tests.processes import wait_until

SHORT_PASS = {
    *("test_store", "test_migrations", "test_fleet", "test_policies", "test_rollout"),
    *("test_rollups_store", "test_alerts_replicas"),
}

FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"), Site("fra", "Frankfurt")),
    nodes=(
        Node("ams-p-01", "ams", Role.PREFILL, "http://127.0.0.1:9001", "emulated", "smollm2-135m"),
        Node("fra-md-01", "fra", Role.MAIN, "http://127.0.0.1:9003", "emulated", "smollm2-135m"),
    ),
    links=(Link("ams-fra", "ams", "fra", 5_000_000.0, 0.03, 1_500_000.0, "127.0.0.1", 9100, "http://127.0.0.1:9101"),),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    model="smollm2-135m",
    kv_bytes_per_token=23_040,
    block_tokens=64,
    labels={"engine": "emulated"},
)


class Clock:
    def __init__(self):
        self.now = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)

    def __call__(self):
        return self.now

    def advance(self, **duration):
        self.now += timedelta(**duration)


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch):
    """Passwords are hashed with a hundredth of the work: these tests guess none."""
    monkeypatch.setattr("control.services.access._HASHER", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def orders():
    """What was sent, in order."""
    return []


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """An SQLite file with the newest schema and no rows; copying it is quicker than migrating again."""
    path = tmp_path_factory.mktemp("schema") / "control.sqlite3"
    database = open_database(f"sqlite:///{path}")
    upgrade_schema(database)
    database.engine.dispose()
    return path


def pytest_generate_tests(metafunc):
    """Every test with a database runs on both kinds; on PostgreSQL by default only those of `SHORT_PASS`."""
    if "database_kind" in metafunc.fixturenames:
        is_short = metafunc.module.__name__.rpartition(".")[2] in SHORT_PASS
        marks = () if is_short else pytest.mark.full
        metafunc.parametrize("database_kind", ["sqlite", pytest.param("postgresql", marks=marks)])


@pytest.fixture
def new_database_url(request, tmp_path, database_kind):
    """Makes addresses of empty databases of one kind."""
    if database_kind == "postgresql":
        return request.getfixturevalue("postgresql").new_database
    numbers = itertools.count(1)
    return lambda: f"sqlite:///{tmp_path / 'folder' / f'{next(numbers)}.sqlite3'}"


@pytest.fixture
def database_url(request, tmp_path, database_kind):
    """Address of a database with the newest schema and no rows."""
    if database_kind == "postgresql":
        return request.getfixturevalue("postgresql").new_migrated_database()
    return f"sqlite:///{shutil.copy(request.getfixturevalue('migrated_file'), tmp_path)}"


@pytest.fixture
def plane(database_url, clock, orders):
    """A migrated, empty database with a clock that stands still and a broker that only listens."""
    database = open_database(database_url)
    yield ControlPlane(database, orders.append, clock)
    # A thread of a cancelled call may still give its connection back; one that comes after the end is never closed.
    wait_until(lambda: database.engine.pool.checkedout() == 0)
    database.engine.dispose()


@pytest.fixture
def fleet():
    return FLEET


@pytest.fixture
def seeded(plane):
    """A plane whose fleet and first policy are stored."""
    seed_fleet(plane, FLEET, "test")
    found_policy(plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    return plane
