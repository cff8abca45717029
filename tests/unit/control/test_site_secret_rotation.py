"""A new secret: made once, sent once, followed until every program has it."""

import json
from datetime import timedelta

import pytest
from sqlmodel import select

from control.errors import ConflictError, ForbiddenError
from control.services.access import Principal, Role
from control.services.reports import MAX_WAITING_ORDERS
from control.services.site_secret import (
    RotationState,
    load_rotation,
    record_secret_report,
    start_rotation,
    sweep_secret,
)
from control.store.tables import AuditEventRow, SettingRow

ADA = Principal("ada", Role.ADMIN)
GRACE = timedelta(seconds=600)
AMS = ["agent", "ams-fra", "ams-gw-01", "ams-p-01"]


def report(number=1, site="ams", told=(), failed=None):
    return {"site": site, "rotation": number, "told": list(told), "failed": failed or {}}


def newest(plane):
    with plane.database.reading() as session:
        return load_rotation(session, plane.now())


def test_every_site_is_sent_the_secret_once_and_where_its_programs_take_it(seeded, orders):
    rotation, secret = start_rotation(seeded, ADA, GRACE, "somebody left")
    assert (rotation.number, rotation.state) == (1, RotationState.OPEN)
    assert [order.queue for order in orders] == ["site.ams", "site.fra"]
    assert {order.arguments["secret"] for order in orders} == {secret}
    assert {order.expires_s for order in orders} == {600.0}
    assert orders[0].arguments["targets"] == {
        "ams-fra": "http://127.0.0.1:9101/secret",
        "ams-gw-01": "http://127.0.0.1:8000/admin/v1/secret",
        "ams-p-01": "http://127.0.0.1:9001/pdd/v1/secret",
    }


def test_neither_the_database_nor_the_audit_trail_holds_the_secret(seeded, orders):
    _, secret = start_rotation(seeded, ADA, GRACE, "somebody left")
    with seeded.database.reading() as session:
        kept = [
            row.model_dump(mode="json") for table in (SettingRow, AuditEventRow) for row in session.exec(select(table))
        ]
    assert "site_secret.rotate" in json.dumps(kept)
    assert secret not in json.dumps(kept)


def test_a_rotation_is_complete_once_every_program_of_every_site_is_told(seeded):
    start_rotation(seeded, ADA, GRACE, "why")
    assert record_secret_report(seeded, report(told=AMS[:2], failed={"ams-gw-01": "no answer"}))
    assert newest(seeded).failed == {"ams/ams-gw-01": "no answer"}
    assert "ams/agent" not in newest(seeded).waiting_for
    record_secret_report(seeded, report(told=AMS))
    assert newest(seeded).waiting_for == ("fra/agent", "fra/fra-md-01")
    record_secret_report(seeded, report(site="fra", told=["agent", "fra-md-01"]))
    assert (newest(seeded).state, newest(seeded).failed) == (RotationState.COMPLETE, {})


def test_the_sweep_asks_again_without_the_secret_those_who_lack_somebody(seeded, orders, clock):
    start_rotation(seeded, ADA, GRACE, "why")
    record_secret_report(seeded, report(told=AMS))
    orders.clear()
    assert sweep_secret(seeded, lambda _: MAX_WAITING_ORDERS) == []
    assert sweep_secret(seeded, lambda _: 0) == ["fra"]
    assert "secret" not in orders[0].arguments
    clock.advance(seconds=600)
    assert sweep_secret(seeded, lambda _: 0) == []
    assert newest(seeded).state is RotationState.INCOMPLETE


def test_the_next_one_waits_until_the_last_is_over_and_then_counts_on(seeded, clock):
    start_rotation(seeded, ADA, GRACE, "why")
    with pytest.raises(ConflictError, match="ams/agent"):
        start_rotation(seeded, ADA, GRACE, "again")
    clock.advance(seconds=600)
    rotation, _ = start_rotation(seeded, ADA, GRACE, "again")
    assert rotation.number == 2
    assert not record_secret_report(seeded, report(number=1, told=AMS))


def test_only_an_administrator_may(seeded):
    with pytest.raises(ForbiddenError):
        start_rotation(seeded, Principal("olga", Role.OPERATOR), GRACE, "why")
