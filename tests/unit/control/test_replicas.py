"""Replicas of the control plane that change things at the same moment do so one after the other, and nothing twice."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlmodel import select

from control.errors import ConflictError, StaleRevisionError
from control.services.access import Principal, Role
from control.services.fleet_revision import load_fleet_revision, raise_fleet_revision
from control.services.plane import ControlPlane
from control.services.policies import RevisionDraft, create_revision
from control.services.site_secret import start_rotation
from control.store.session import open_database
from control.store.tables import PolicyRevisionRow

REPLICAS = 4


@pytest.fixture
def planes(seeded, database_url, clock):
    """Replicas on one database, whose SQLite writers have the patience of a busy machine."""
    databases = [open_database(database_url, busy_timeout_s=60.0) for _ in range(REPLICAS)]
    yield [ControlPlane(database, seeded.send, clock) for database in databases]
    for database in databases:
        database.engine.dispose()


def at_once(planes, action):
    """What each replica gets from the same action, begun at the same moment; a refusal is a result as well."""
    start = Barrier(len(planes))

    def act(plane):
        start.wait(60)
        try:
            return action(plane)
        except (ConflictError, StaleRevisionError) as refusal:
            return refusal

    with ThreadPoolExecutor(len(planes)) as workers:
        return list(workers.map(act, planes))


def test_the_first_changes_of_a_fresh_fleet_get_a_revision_each(seeded, planes):
    def change(plane):
        with plane.database.unit_of_work(plane.send) as work:
            return raise_fleet_revision(work.session, plane.now(), "test")

    with seeded.database.reading() as session:
        assert load_fleet_revision(session) == 0
    assert sorted(at_once(planes, change)) == [1, 2, 3, 4]
    with seeded.database.reading() as session:
        assert load_fleet_revision(session) == REPLICAS


def test_of_policies_made_against_the_same_revision_one_is_applied(seeded, planes, orders):
    draft = RevisionDraft("why", 1, changes={"routing.direct_hit_rate": 0.9}, apply=True)
    results = at_once(planes, lambda plane: create_revision(plane, Principal("olga", Role.OPERATOR), draft))
    assert sum(isinstance(result, StaleRevisionError) for result in results) == REPLICAS - 1
    with seeded.database.reading() as session:
        assert sorted(session.exec(select(PolicyRevisionRow.number))) == [1, 2]
    assert [order.arguments["revision"] for order in orders if order.task == "policies.push"] == [2]


def test_of_rotations_begun_at_once_one_gives_out_a_secret(planes, orders):
    results = at_once(
        planes, lambda plane: start_rotation(plane, Principal("ada", Role.ADMIN), timedelta(seconds=600), "why")
    )
    assert sum(isinstance(result, ConflictError) for result in results) == REPLICAS - 1
    assert len({order.arguments["secret"] for order in orders}) == 1
