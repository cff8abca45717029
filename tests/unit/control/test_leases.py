"""Leases in SQL, and the beat that runs under one."""

from datetime import timedelta

import pytest

from control.errors import DatabaseUnavailableError
from control.leader_beat import LEASE_DURATION, LOOK_AGAIN_S, RENEW_EVERY_S, Leadership
from control.store.leases import hold_lease, release_lease

LONG = timedelta(seconds=10)


def test_a_lease_has_one_holder_until_it_expires_and_its_fence_rises_with_the_holder(plane, clock):
    database = plane.database
    assert hold_lease(database, "beat", "a", clock(), LONG) == 1
    assert hold_lease(database, "beat", "b", clock(), LONG) is None
    clock.advance(seconds=9)
    assert hold_lease(database, "beat", "a", clock(), LONG) == 1
    clock.advance(seconds=9)
    assert hold_lease(database, "beat", "b", clock(), LONG) is None
    clock.advance(seconds=1)
    assert hold_lease(database, "beat", "b", clock(), LONG) == 2
    assert hold_lease(database, "beat", "a", clock(), LONG) is None


def test_a_released_lease_is_free_at_once_and_nobody_releases_anothers(plane, clock):
    database = plane.database
    hold_lease(database, "beat", "a", clock(), LONG)
    release_lease(database, "beat", "b", clock())
    assert hold_lease(database, "beat", "b", clock(), LONG) is None
    release_lease(database, "beat", "a", clock())
    assert hold_lease(database, "beat", "b", clock(), LONG) == 2


def test_of_two_workers_one_beats_and_the_other_takes_over_when_it_is_gone(plane, clock):
    a, b = Leadership(plane.database, "a"), Leadership(plane.database, "b")
    assert a.check(0.0, clock())
    assert not b.check(0.0, clock())
    clock.advance(seconds=RENEW_EVERY_S)
    assert a.check(RENEW_EVERY_S, clock())
    clock.advance(seconds=LEASE_DURATION.total_seconds() - 1)
    assert not b.check(10.0, clock()), "it was renewed"
    clock.advance(seconds=1)
    assert b.check(20.0, clock())
    assert not a.check(20.0, clock())


def test_a_leader_that_ends_hands_over_at_once(plane, clock):
    a, b = Leadership(plane.database, "a"), Leadership(plane.database, "b")
    assert a.check(0.0, clock())
    a.resign(clock())
    assert not a.is_leader
    assert b.check(0.0, clock())


def test_the_database_is_asked_every_few_seconds_only(plane, clock, monkeypatch):
    asked = []

    def hold(*arguments):
        asked.append(arguments)
        return 1

    monkeypatch.setattr("control.leader_beat.hold_lease", hold)
    leadership = Leadership(plane.database, "a")
    for tenth in range(40):
        assert leadership.check(tenth / 10, clock())
    assert len(asked) == 2


@pytest.mark.parametrize("was_leader", [True, False])
def test_without_a_database_nobody_leads(plane, clock, monkeypatch, was_leader):
    leadership = Leadership(plane.database, "a")
    if was_leader:
        assert leadership.check(0.0, clock())

    def unavailable(*_):
        raise DatabaseUnavailableError

    monkeypatch.setattr("control.leader_beat.hold_lease", unavailable)
    assert not leadership.check(max(RENEW_EVERY_S, LOOK_AGAIN_S), clock())
