from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy.exc import IntegrityError, StatementError
from sqlmodel import select

from control.errors import DatabaseUnavailableError
from control.orders import Order
from control.services.audit import record_event
from control.store.session import open_database
from control.store.tables import AuditEventRow, ImmutableRowError, NodeRow, SettingRow

NOON = datetime(2030, 6, 1, 12, 0, 0, 123456, UTC)


def setting(key, at=NOON):
    return SettingRow(key=key, value={"a": [1, None]}, updated_at=at)


def test_a_moment_comes_back_equal_and_with_its_zone(plane):
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    with plane.database.unit_of_work(plane.send) as work:
        work.session.add(setting("x", elsewhere))
    with plane.database.reading() as session:
        stored = session.get_one(SettingRow, "x")
    assert stored.updated_at == NOON
    assert stored.updated_at.utcoffset() == timedelta(0)
    assert stored.value == {"a": [1, None]}


def test_a_moment_without_a_zone_is_refused(plane):
    with (
        pytest.raises(StatementError, match="time zone"),
        plane.database.unit_of_work(plane.send) as work,
    ):
        work.session.add(setting("x", NOON.replace(tzinfo=None)))


def test_orders_leave_only_after_the_commit(plane, orders):
    order = Order("policies.push", "site.ams", {})
    with plane.database.unit_of_work(plane.send) as work:
        work.session.add(setting("x"))
        work.enqueue(order)
        assert orders == []
    assert orders == [order]


def test_a_failed_unit_changes_and_sends_nothing(plane, orders):
    def fail():
        with plane.database.unit_of_work(plane.send) as work:
            work.session.add(setting("x"))
            work.session.flush()
            work.enqueue(Order("policies.push", "site.ams", {}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert orders == []
    with plane.database.reading() as session:
        assert session.get(SettingRow, "x") is None


def test_a_commit_that_fails_sends_nothing(plane, orders):
    def refer_to_nothing():
        node = NodeRow(name="n", site="nowhere", role="main", url="", engine="", model="", slots=1, state="")
        with plane.database.unit_of_work(plane.send) as work:
            work.enqueue(Order("policies.push", "site.ams", {}))
            work.session.add(node)

    with pytest.raises(IntegrityError):
        refer_to_nothing()
    assert orders == []


def test_a_unit_of_work_holds_the_write_lock_from_its_start(plane):
    if plane.database.engine.name != "sqlite":
        pytest.skip("only SQLite has one write lock for all")
    other = open_database(str(plane.database.engine.url), busy_timeout_s=0.01)
    try:
        with plane.database.unit_of_work(plane.send) as work:
            work.session.exec(select(SettingRow)).all()
            with other.reading() as session:
                assert session.exec(select(SettingRow)).all() == []
            with pytest.raises(DatabaseUnavailableError), other.unit_of_work(plane.send) as second:
                second.session.exec(select(SettingRow)).all()
    finally:
        other.engine.dispose()


def test_an_audit_event_can_be_neither_changed_nor_deleted(plane):
    with plane.database.unit_of_work(plane.send) as work:
        record_event(work.session, NOON, "a", "b", "c")
    with pytest.raises(ImmutableRowError), plane.database.unit_of_work(plane.send) as work:
        work.session.exec(select(AuditEventRow)).one().actor = "somebody else"
    with pytest.raises(ImmutableRowError), plane.database.unit_of_work(plane.send) as work:
        work.session.delete(work.session.exec(select(AuditEventRow)).one())
    with plane.database.reading() as session:
        assert session.exec(select(AuditEventRow)).one().actor == "a"
