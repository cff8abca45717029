from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from control.domain.burn_rate import FAST, SLOW, PairBurn, Tally, slo_state
from control.domain.slo import Indicator, Slo
from control.services.slos import SloStatus, StatedSlo
from control.store.tables import AlertEventRow, AlertRow
from webapp.alert_view import TIMELINE_SPANS, matchers_text, parse_matchers, slo_card, timeline, timeline_span

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
SLO = StatedSlo(Slo("default-ttft-p99", Indicator.TTFT, 0.99, 15.0, "default"))


def alert(state="firing", minutes=10, **fields):
    at = NOW - timedelta(minutes=minutes)
    usual = {
        "rule": "valley",
        "labels": {"site": "ams"},
        "severity": "warning",
        "summary": "Too many.",
        "state": state,
        "threshold": 0.3,
        "value": 0.5,
        "pending_at": at,
        "fired_at": None if state == "pending" else at + timedelta(minutes=1),
        "evaluated_at": NOW,
        "resolved_at": NOW if state == "resolved" else None,
    }
    return AlertRow(**{**usual, **fields})


def status(fast, slow, left, bad=1):
    pairs = (PairBurn(FAST, *fast), PairBurn(SLOW, *slow))
    return SloStatus(slo_state(pairs, left), pairs, Tally(99, bad), left)


@pytest.mark.parametrize(
    ("kept", "state"),
    [
        (status((0.0, 0.0), (0.1, 0.1), 0.9), "ok"),
        (status((20.0, 15.0), (7.0, 7.0), -2.0), "burning"),
        (status((20.0, 1.0), (1.0, 1.0), 0.5), "ok"),
        (status((None, None), (None, None), None), "unknown"),
        (status((1.0, 1.0), (1.0, 1.0), -0.4), "exhausted"),
    ],
)
def test_an_objective_burns_only_where_both_windows_do(kept, state):
    card = slo_card(SLO, kept)
    assert card.state == state
    assert [window.seconds for window in card.pairs[0].windows] == [300, 3600]


def test_matchers_are_lines_and_come_back_the_same():
    text = "site=ams\nseverity!=info\nalertname~slo-*"
    matchers, wrong = parse_matchers(text)
    assert wrong == []
    assert matchers_text([one.to_document() for one in matchers]) == text
    assert parse_matchers("site, =x")[1] == ["site", "=x"]


def test_a_timeline_tells_waiting_from_firing_and_covers_no_more_than_it_must():
    rows = [alert(), alert("resolved", 50), alert("pending", 2, rule="other")]
    span = timeline_span(rows, NOW)
    assert span == TIMELINE_SPANS[0]
    first, second = timeline(rows, NOW, span)
    assert (first.rule, [one.state for one in first.spans]) == ("other", ["pending"])
    assert [one.state for one in second.spans] == ["pending", "warning"] * 2
    assert all(0 <= one.x <= 1000 and one.x + one.width <= 1002 for one in second.spans)
    assert timeline_span([alert(minutes=600)], NOW) == TIMELINE_SPANS[2]
    assert timeline_span([], NOW) == TIMELINE_SPANS[0]


@dataclass
class Shown:
    words: tuple[str, ...]
    fields: dict


@pytest.mark.parametrize(
    "shown",
    [
        Shown(("Pending",), {"state": "pending"}),
        Shown(("Firing", "valley", "site=ams"), {}),
        Shown(("No data",), {"is_unknown": True}),
        Shown(("Flapping",), {"is_flapping": True}),
        Shown(("olga looks after it",), {"acknowledged_by": "olga", "acknowledged_at": NOW}),
    ],
)
async def test_every_state_of_an_alert_is_said_in_words(admin, plane, shown):
    with plane.database.unit_of_work(plane.send) as work:
        row = alert(**shown.fields)
        work.session.add(row)
        work.session.flush()
        work.session.add(AlertEventRow(alert_id=row.id, at=NOW, kind="fired", value=0.5))
        number = row.id
    page = (await admin.get("/alerts/now")).text
    for word in shown.words:
        assert word in page
    detail = (await admin.get(f"/alerts/{number}")).text
    assert "Fired" in detail
    empty = await admin.post(f"/alerts/{number}/acknowledge", data={"comment": ""})
    assert empty.status_code == 422
