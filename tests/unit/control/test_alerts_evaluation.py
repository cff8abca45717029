"""Evaluations against the store: episodes, history, silences, notices, and two replicas at once."""

import pytest
from sqlmodel import select

from control.domain.alert_rules import AlertRule, Severity
from control.domain.alerts import AlertState
from control.domain.silences import Matcher, Operator
from control.domain.versions import ANY_VERSION
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from control.orders import DELIVER_WEBHOOKS
from control.services.access import Principal, Role
from control.services.alert_evaluation import KEPT, evaluate_alerts
from control.services.alert_rules import create_rule, delete_rule, load_rule, load_rules, replace_rule
from control.services.alerts import AlertFilter, acknowledge_alert, close_alert, load_alerts, load_history
from control.services.audit import load_events
from control.services.rollout import Report, record_report
from control.services.silences import create_silence, end_silence
from control.services.webhooks import WebhookDraft, create_webhook
from control.store.tables import AlertEventRow, AlertRow, WebhookDeliveryRow
from tests.unit.control.rollup_writers import consume, hear, write_link, write_requests, write_site

OLGA, VERA = Principal("olga", Role.OPERATOR), Principal("vera", Role.VIEWER)
SLOW = AlertRule("slow", "ttft_p99_s", 5.0, window_s=60, for_s=0, clear_for_s=0, severity=Severity.CRITICAL)


class Days:
    """Ten seconds of a fleet at a time, each followed by an evaluation."""

    def __init__(self, plane, clock):
        self.plane = plane
        self.clock = clock

    def pass_(self, *, ttft_s=None, rounds=1, seconds=10):
        found = None
        for _ in range(rounds):
            self.clock.advance(seconds=seconds)
            hear(self.plane)
            hear(self.plane, name="fra-gw", site="fra")
            if ttft_s is not None:
                write_requests(self.plane, 5, age_s=1, ttft_s=ttft_s, tpot_s=None)
            found = evaluate_alerts(self.plane)
        return found

    def alerts(self, **wanted):
        with self.plane.database.reading() as session:
            return [seen.row for seen in load_alerts(session, self.plane.now(), AlertFilter(**wanted), 50)]

    def history(self, alert_id):
        with self.plane.database.reading() as session:
            return [event.kind for event in load_history(session, alert_id)]

    def messages(self):
        with self.plane.database.reading() as session:
            return [row.body for row in session.exec(select(WebhookDeliveryRow).order_by(WebhookDeliveryRow.id))]


@pytest.fixture
def days(seeded, clock):
    return Days(seeded, clock)


@pytest.fixture
def slow(seeded):
    return create_rule(seeded, OLGA, SLOW)


def test_an_alert_fires_and_resolves_with_its_history(days, slow):
    days.pass_(ttft_s=1.0)
    assert days.alerts() == []
    assert len(days.pass_(ttft_s=9.0).fired) == 1
    [alert] = days.alerts()
    assert (alert.rule, alert.labels, alert.severity) == (
        "slow",
        {"site": "ams", "service_class": "default"},
        "critical",
    )
    assert alert.value == pytest.approx(9.0, rel=0.02)
    days.pass_(ttft_s=9.0, rounds=3)
    assert len(days.alerts()) == 1
    days.pass_(ttft_s=1.0, rounds=7)
    [alert] = days.alerts()
    assert (alert.state, alert.resolution, alert.open_key) == ("resolved", "cleared", None)
    assert days.history(alert.id) == ["fired", "resolved"]
    days.pass_(ttft_s=9.0)
    assert [row.state for row in days.alerts()] == ["firing", "resolved"]


def test_when_data_goes_away_an_alert_is_kept_and_says_so(days, slow):
    days.pass_(ttft_s=9.0)
    days.pass_(rounds=12)
    [alert] = days.alerts(rule="slow")
    assert (alert.state, alert.is_unknown) == ("firing", True)
    days.pass_(ttft_s=1.0)
    [alert] = days.alerts(rule="slow")
    assert (alert.state, days.history(alert.id)) == ("resolved", ["fired", "unknown", "known", "resolved"])


def test_a_pending_alert_that_comes_to_nothing_leaves_no_trace(days, seeded):
    create_rule(seeded, OLGA, AlertRule("slow", "ttft_p99_s", 5.0, window_s=60, for_s=300))
    days.pass_(ttft_s=9.0)
    assert [row.state for row in days.alerts()] == ["pending"]
    days.pass_(ttft_s=1.0, rounds=8)
    assert days.alerts() == []


def test_an_alert_whose_rule_or_subject_is_gone_ends_and_says_why(days, seeded, slow):
    days.pass_(ttft_s=9.0)
    replace_rule(seeded, OLGA, AlertRule("slow", "ttft_p99_s", 5.0, enabled=False), {slow.version})
    days.pass_(ttft_s=9.0)
    [alert] = days.alerts()
    assert (alert.state, alert.resolution) == ("resolved", "the rule was deleted or switched off")


def test_one_that_comes_and_goes_is_called_flapping_and_kept(days, slow):
    for _ in range(3):
        days.pass_(ttft_s=9.0)
        days.pass_(ttft_s=1.0, rounds=7)
    days.pass_(ttft_s=9.0)
    days.pass_(ttft_s=1.0, rounds=10)
    newest, *others = days.alerts()
    assert (newest.state, newest.is_flapping, len(others)) == ("firing", True, 3)
    days.pass_(ttft_s=1.0, rounds=16, seconds=60)
    assert days.alerts()[0].state == "resolved"


def test_a_site_that_falls_silent_is_an_alert_and_one_that_telemetry_cannot_see_is_not(seeded, clock):
    hear(seeded, name="fra-gw", site="fra")
    for _ in range(4):
        clock.advance(seconds=10)
        hear(seeded)
        evaluate_alerts(seeded)
    with seeded.database.reading() as session:
        [stale] = session.exec(select(AlertRow)).all()
    assert (stale.rule, stale.labels, stale.state) == ("stale-site", {"site": "fra"}, "firing")
    clock.advance(seconds=90)  # the consumer stands still
    evaluate_alerts(seeded)
    with seeded.database.reading() as session:
        found = {row.rule: (row.state, row.is_unknown) for row in session.exec(select(AlertRow))}
    assert found == {"stale-site": ("firing", True), "telemetry-stalled": ("firing", False)}


def test_the_built_in_rules_find_a_burning_objective_and_stranded_kv(days, seeded, clock):
    for _ in range(8):
        write_site(seeded, age_s=1, observer_batches=10, stranded_bytes=10**9)
        days.pass_(ttft_s=60.0)
    assert {(row.rule, row.labels.get("slo")) for row in days.alerts(states=[AlertState.FIRING])} == {
        ("slo-burn-fast", "default-ttft-p99"),
        ("slo-burn-slow", "default-ttft-p99"),
        ("slo-burn-slow", "default-ttft-p90"),
        ("stranded-kv", None),
    }


def test_the_built_in_rules_find_the_valley_flapping_links_and_drifting_gateways(days, seeded, clock):
    for round_ in range(33):
        record_report(seeded, Report("o", "ams-gw-01", "ams", 7, "applied", "", seeded.now()))
        write_requests(seeded, 4, age_s=1, cached_tokens=500, tpot_s=None)
        write_link(seeded, age_s=1, samples=10, flaps=round_ % 2)
        days.pass_()
    assert {(row.rule, *row.labels.values()) for row in days.alerts(states=[AlertState.FIRING])} == {
        ("valley", "ams"),
        ("link-flapping", "ams-fra"),
        ("policy-drift", "ams"),
    }


def test_the_collapse_that_ttft_hides_is_an_alert_and_stays_one_when_users_feel_it_too(days, seeded, clock):
    relayed = {"pipeline": "relay", "tpot_s": None, "ttft_s": 0.5}
    for _ in range(6):
        write_requests(seeded, 20, age_s=1, eager_tokens=3, transfer_s=0.3, uncached_tokens=100, **relayed)
        days.pass_(seconds=600)
    assert days.alerts(rule="collapse-warning") == []
    for _ in range(8):
        write_requests(seeded, 10, age_s=1, eager_tokens=40, transfer_s=9.0, uncached_tokens=900, **relayed)
        days.pass_()
    [alert] = days.alerts(rule="collapse-warning")
    assert (alert.state, alert.severity, alert.labels) == ("firing", "critical", {"site": "ams"})
    relayed["ttft_s"] = 12.0
    for _ in range(3):
        write_requests(seeded, 10, age_s=1, eager_tokens=40, transfer_s=9.0, uncached_tokens=900, **relayed)
        days.pass_()
    assert days.alerts(rule="collapse-warning")[0].state == "firing"
    relayed["ttft_s"] = 0.5
    for _ in range(20):
        write_requests(seeded, 10, age_s=1, eager_tokens=3, transfer_s=0.3, uncached_tokens=100, **relayed)
        days.pass_(seconds=25)
    assert days.alerts(rule="collapse-warning")[0].state == "resolved"


def test_receivers_are_told_once_of_what_fires_and_once_of_its_end(days, seeded, slow, orders):
    create_webhook(seeded, OLGA, WebhookDraft("all", "https://example.com/"))
    create_webhook(seeded, OLGA, WebhookDraft("fra", "https://example.com/", [Matcher("site", Operator.EQUAL, "fra")]))
    days.pass_(ttft_s=9.0, rounds=4)
    days.pass_(ttft_s=1.0, rounds=8)
    fired, resolved = days.messages()
    assert (fired["receiver"], fired["status"], resolved["status"]) == ("all", "firing", "resolved")
    assert fired["groupLabels"] == {"alertname": "slow"}
    assert fired["alerts"][0]["labels"] == {
        "alertname": "slow",
        "severity": "critical",
        "site": "ams",
        "service_class": "default",
    }
    assert fired["alerts"][0]["endsAt"].startswith("0001")
    assert resolved["alerts"][0]["startsAt"] == fired["alerts"][0]["startsAt"] < resolved["alerts"][0]["endsAt"]
    assert resolved["alerts"][0]["fingerprint"] == fired["alerts"][0]["fingerprint"]
    assert [order.task for order in orders].count(DELIVER_WEBHOOKS) == 2
    [alert] = days.alerts()
    assert days.history(alert.id) == ["fired", "notified", "resolved", "notified"]


def test_a_silence_holds_back_what_fires_until_it_ends(days, seeded, clock, slow):
    create_webhook(seeded, OLGA, WebhookDraft("all", "https://example.com/"))
    silence = create_silence(
        seeded,
        OLGA,
        [Matcher("alertname", Operator.LIKE, "sl*"), Matcher("site", Operator.EQUAL, "ams")],
        ends_at=seeded.now().replace(hour=5),
        comment="maintenance",
    )
    days.pass_(ttft_s=9.0, rounds=2)
    assert days.messages() == []
    with seeded.database.reading() as session:
        [seen] = load_alerts(session, seeded.now(), AlertFilter(), 5)
    assert (seen.row.state, seen.silenced_by) == ("firing", (silence.id,))
    end_silence(seeded, OLGA, silence.id, ANY_VERSION)
    days.pass_(ttft_s=9.0)
    assert [body["status"] for body in days.messages()] == ["firing"]


def test_silences_end_and_never_hide_everything(seeded, clock):
    at = seeded.now()
    site = [Matcher("site", Operator.EQUAL, "ams")]
    for matchers, ends_at in ((site, at), (site, at.replace(year=2031)), ([], at.replace(hour=5))):
        with pytest.raises(InvalidError):
            create_silence(seeded, OLGA, matchers, ends_at=ends_at, comment="x")
    silence = create_silence(seeded, OLGA, site, ends_at=at.replace(hour=5), comment="x")
    clock.advance(hours=3)
    with pytest.raises(ConflictError, match="over"):
        end_silence(seeded, OLGA, silence.id, ANY_VERSION)
    with pytest.raises(NotFoundError):
        end_silence(seeded, OLGA, 99, ANY_VERSION)


def test_acknowledging_and_closing_are_traced_and_only_for_what_fires(days, seeded, slow):
    days.pass_(ttft_s=9.0)
    [alert] = days.alerts()
    acknowledged = acknowledge_alert(seeded, OLGA, alert.id, "on it")
    assert (acknowledged.acknowledged_by, acknowledged.comment) == ("olga", "on it")
    close_alert(seeded, OLGA, alert.id, "gone for good")
    with pytest.raises(ConflictError):
        acknowledge_alert(seeded, OLGA, alert.id, "again")
    with pytest.raises(NotFoundError):
        close_alert(seeded, OLGA, 99, "x")
    assert days.history(alert.id) == ["fired", "acknowledged", "closed"]
    with seeded.database.reading() as session:
        actions = [(event.action, event.reason) for event in load_events(session, 2)]
    assert actions == [("alert.closed", "gone for good"), ("alert.acknowledged", "on it")]
    days.pass_(ttft_s=9.0)
    assert [row.state for row in days.alerts()] == ["firing", "resolved"]


def test_rules_are_changed_and_brought_back(seeded):
    with seeded.database.reading() as session:
        before = load_rule(session, "valley")
    changed = AlertRule("valley", "valley_share", 0.5)
    replace_rule(seeded, OLGA, changed, {before.version})
    with seeded.database.reading() as session:
        assert (load_rule(session, "valley").rule, load_rule(session, "valley").is_built_in) == (changed, True)
    with pytest.raises(InvalidError):
        replace_rule(seeded, OLGA, AlertRule("valley", "ttft_p99_s", 1.0), ANY_VERSION)
    with pytest.raises(ConflictError):
        create_rule(seeded, OLGA, changed)
    delete_rule(seeded, OLGA, "valley", ANY_VERSION)
    with pytest.raises(ConflictError, match="built in"):
        delete_rule(seeded, OLGA, "valley", ANY_VERSION)
    with seeded.database.reading() as session:
        assert load_rule(session, "valley").rule == before.rule
        assert len(load_rules(session)) == 9


def test_viewers_change_nothing(seeded):
    for attempt in (
        lambda: create_rule(seeded, VERA, SLOW),
        lambda: replace_rule(seeded, VERA, SLOW, ANY_VERSION),
        lambda: delete_rule(seeded, VERA, "valley", ANY_VERSION),
        lambda: create_silence(seeded, VERA, [], ends_at=seeded.now(), comment=""),
        lambda: end_silence(seeded, VERA, 1, ANY_VERSION),
        lambda: acknowledge_alert(seeded, VERA, 1, ""),
        lambda: close_alert(seeded, VERA, 1, ""),
        lambda: create_webhook(seeded, VERA, WebhookDraft("x", "https://example.com/")),
    ):
        with pytest.raises(ForbiddenError):
            attempt()


def test_an_evaluation_that_was_overtaken_writes_nothing(days, seeded, clock):
    days.pass_(ttft_s=1.0)
    consume(seeded)
    assert evaluate_alerts(seeded) is None
    clock.advance(seconds=10)
    assert evaluate_alerts(seeded) is not None


def test_old_alerts_are_forgotten_with_their_history(days, seeded, clock, slow):
    days.pass_(ttft_s=9.0)
    days.pass_(ttft_s=1.0, rounds=7)
    clock.advance(seconds=KEPT.total_seconds() - 100)
    days.pass_()
    assert len(days.alerts()) == 1
    clock.advance(seconds=200)
    days.pass_()
    with seeded.database.reading() as session:
        assert session.exec(select(AlertEventRow)).all() == []
    assert days.alerts() == []
