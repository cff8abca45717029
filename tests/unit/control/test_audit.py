import json
import threading

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import select

from control.domain.audit import GENESIS, Break, ChainHead, Fault
from control.services import audit
from control.services.audit import AuditFilter, export_events, load_events, record_event, verify_trail
from control.services.plane import ControlPlane
from control.store.audit_chain import AuditHeadMissingError
from control.store.migrate import alembic_config, upgrade_schema
from control.store.session import open_database
from control.store.tables import AuditEventRow, SettingRow

NOTHING_FORBIDDEN = {
    "sqlite": [f"drop trigger audit_{name}" for name in ("event_update", "event_delete", "head_update", "head_delete")],
    "postgresql": ["alter table audit_event disable trigger user", "alter table audit_head disable trigger user"],
}


def record(plane, *names, reason=""):
    with plane.database.unit_of_work(plane.send) as work:
        for name in names:
            record_event(
                work.session, plane.now(), "olga", f"test.{name}", f"test/{name}", after={"n": name}, reason=reason
            )


def ids(plane, wanted=audit.EVERYTHING):
    with plane.database.reading() as session:
        return [row.id for row in load_events(session, 100, wanted=wanted)]


def tamper(plane, database_kind, *statements):
    """What somebody with all rights on the database could do."""
    with plane.database.engine.begin() as connection:
        for statement in (*NOTHING_FORBIDDEN[database_kind], *statements):
            connection.execute(text(statement))


def test_events_are_chained_in_the_order_of_their_commits(plane, clock):
    record(plane, "a", "b")
    record(plane, "c")
    with plane.database.reading() as session:
        rows = session.exec(select(AuditEventRow).order_by(AuditEventRow.id)).all()
    assert [(row.id, row.action) for row in rows] == [(1, "test.a"), (2, "test.b"), (3, "test.c")]
    assert [row.previous_hash for row in rows] == [GENESIS, rows[0].hash, rows[1].hash]
    assert len({row.hash for row in rows}) == 3
    verdict = verify_trail(plane)
    assert (verdict.events, verdict.head, verdict.broken) == (3, ChainHead(3, rows[2].hash), None)


def test_a_change_that_is_rolled_back_leaves_no_event(plane):
    with pytest.raises(TypeError), plane.database.unit_of_work(plane.send) as work:  # noqa: PT012
        record_event(work.session, plane.now(), "olga", "test.a", "test")
        work.enqueue()
    with plane.database.unit_of_work(plane.send) as work:
        record_event(work.session, plane.now(), "olga", "test.b", "test")
        work.session.rollback()
    assert ids(plane) == []
    assert verify_trail(plane).broken is None


@pytest.mark.parametrize(
    "statement",
    [
        "update audit_event set reason = 'another' where id = 1",
        "delete from audit_event where id = 1",
        "delete from audit_event",
        "delete from audit_head",
        "update audit_head set event_id = 1",
        "update audit_head set hash = 'another'",
    ],
)
def test_the_database_itself_refuses_to_change_the_trail(plane, statement):
    record(plane, "a", "b")
    with pytest.raises(DBAPIError, match="only ever added to"), plane.database.engine.begin() as connection:
        connection.execute(text(statement))
    assert verify_trail(plane).broken is None


def test_postgresql_refuses_to_truncate_the_trail(plane, database_kind):
    if database_kind == "sqlite":
        pytest.skip("SQLite has no truncate")
    record(plane, "a")
    with pytest.raises(DBAPIError, match="only ever added to"), plane.database.engine.begin() as connection:
        connection.execute(text("truncate audit_event"))
    assert ids(plane) == [1]


@pytest.mark.parametrize(
    ("statements", "broken"),
    [
        (["update audit_event set reason = 'another' where id = 2"], Break(2, Fault.CHANGED)),
        (["update audit_event set \"after\" = '{}' where id = 4"], Break(4, Fault.CHANGED)),
        (["update audit_event set hash = previous_hash where id = 2"], Break(2, Fault.CHANGED)),
        (["delete from audit_event where id = 1"], Break(2, Fault.UNLINKED)),
        (["delete from audit_event where id = 3"], Break(4, Fault.UNLINKED)),
        (["delete from audit_event where id = 4"], Break(4, Fault.TRUNCATED)),
        (["delete from audit_event"], Break(4, Fault.TRUNCATED)),
        (
            [
                "update audit_event set id = 9 where id = 2",
                "update audit_event set id = 2 where id = 3",
                "update audit_event set id = 3 where id = 9",
            ],
            Break(2, Fault.CHANGED),
        ),
        (["delete from audit_head"], Break(4, Fault.TRUNCATED)),
        (["update audit_head set event_id = 3"], Break(4, Fault.OUTSIDE)),
    ],
)  # fmt: skip
def test_the_first_broken_event_is_named(plane, database_kind, statements, broken):
    record(plane, "a", "b", "c", "d")
    tamper(plane, database_kind, *statements)
    verdict = verify_trail(plane)
    assert verdict.broken == broken
    assert str(broken.id) in verdict.broken.detail


def test_writing_goes_on_after_an_event_was_added_behind_the_chains_back(plane, database_kind):
    record(plane, "a")
    stray = (
        "insert into audit_event select 7, at, actor, action, target, before, after, 'x', hash, hash from audit_event"
    )
    tamper(plane, database_kind, stray)
    record(plane, "b")
    assert ids(plane) == [8, 7, 1]
    assert verify_trail(plane).broken == Break(7, Fault.CHANGED)


def test_nothing_can_be_changed_without_a_head(plane, database_kind):
    record(plane, "a")
    tamper(plane, database_kind, "delete from audit_head")
    with pytest.raises(AuditHeadMissingError), plane.database.unit_of_work(plane.send) as work:  # noqa: PT012
        work.session.add(SettingRow(key="k", value=1, updated_at=plane.now()))
        record_event(work.session, plane.now(), "olga", "test.b", "test")
    with plane.database.reading() as session:
        assert session.get(SettingRow, "k") is None


def test_a_noted_head_shows_that_the_end_was_cut_and_written_again(plane, database_kind):
    record(plane, "a", "b")
    noted = verify_trail(plane).head
    first_hash = next(iter(export_events(plane))).hash
    cut = f"update audit_head set event_id = 1, hash = '{first_hash}'"  # noqa: S608
    tamper(plane, database_kind, "delete from audit_event where id = 2", cut)
    assert verify_trail(plane).broken is None
    assert verify_trail(plane, [noted]).broken == Break(2, Fault.TRUNCATED)
    record(plane, "forged")
    assert verify_trail(plane).broken is None
    assert verify_trail(plane, [noted]).broken == Break(2, Fault.OTHER_HISTORY)


def test_writers_at_the_same_time_make_one_chain(plane):
    threads, rounds = 4, 5
    failures = []
    together = threading.Barrier(threads)

    def write(number):
        try:
            together.wait()
            for turn in range(rounds):
                record(plane, f"{number}-{turn}", f"{number}-{turn}-again")
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    verdict = verify_trail(plane)
    assert (verdict.events, verdict.broken) == (threads * rounds * 2, None)
    assert sorted(ids(plane)) == list(range(1, threads * rounds * 2 + 1))


def test_filters_choose_events(plane, clock):
    record(plane, "a", "b_")
    middle = clock.now
    clock.advance(seconds=5)
    record(plane, "b%", "c")
    assert ids(plane) == [4, 3, 2, 1]
    for wanted, expected in [
        (AuditFilter(actor="olga"), [4, 3, 2, 1]),
        (AuditFilter(actor="nobody"), []),
        (AuditFilter(action="test.a"), [1]),
        (AuditFilter(target_prefix="test/b"), [3, 2]),
        (AuditFilter(target_prefix="test/b_"), [2]),
        (AuditFilter(target_prefix="test/%"), []),
        (AuditFilter(since=clock.now), [4, 3]),
        (AuditFilter(until=clock.now), [2, 1]),
        (AuditFilter(since=middle, until=clock.now, target_prefix="test/a"), [1]),
    ]:
        assert ids(plane, wanted) == expected, wanted
        assert [event.facts.id for event in export_events(plane, wanted)] == expected[::-1]


def test_a_long_trail_is_read_in_batches(plane, monkeypatch):
    for module in ("control.services.audit", "control.store.audit_chain"):
        monkeypatch.setattr(f"{module}.BATCH_EVENTS", 3)
    for count in range(1, 8):
        record(plane, f"{count}")
        assert [event.facts.id for event in export_events(plane)] == list(range(1, count + 1))
        assert verify_trail(plane).events == count


def test_a_trail_from_before_the_chain_is_chained_and_unchained_again(new_database_url):
    database = open_database(new_database_url())
    upgrade_schema(database, "0003")
    old = "insert into audit_event (at, actor, action, target, before, after, reason) values "
    with database.engine.begin() as connection:
        for at, before in (("2030-01-01 00:00:00.000000", "null"), ("2030-01-01 00:00:01.500000", '{"a": [1, 2.5]}')):
            value = f"('{at}', 'olga', 'é', 't', '{before}', 'null', 'why')"
            connection.execute(text((old + value).replace(":", r"\:")))
    upgrade_schema(database)
    plane = ControlPlane(database, lambda _: None)
    assert verify_trail(plane).events == 2
    record(plane, "a")
    verdict = verify_trail(plane)
    assert (verdict.events, verdict.broken) == (3, None)
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0003")
    with database.engine.connect() as connection:
        assert connection.execute(text("select count(*) from audit_event")).scalar_one() == 3
        connection.execute(text("delete from audit_event"))
    upgrade_schema(database)
    assert verify_trail(plane).events == 3
    database.engine.dispose()


def test_enums_and_tuples_are_kept_as_what_comes_back(plane):
    with plane.database.unit_of_work(plane.send) as work:
        record_event(
            work.session, plane.now(), "olga", "t", "t", before=(1, 2.5), after={1: Fault.CHANGED, "é": "\x7f"}
        )
    assert verify_trail(plane).broken is None
    [event] = export_events(plane)
    assert json.dumps([event.facts.before, event.facts.after]) == '[[1, 2.5], {"1": "changed", "\\u00e9": "\\u007f"}]'
