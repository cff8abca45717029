"""Replicas of the control plane that evaluate and deliver at the same time do nothing twice."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlmodel import select

from control.domain.alert_rules import AlertRule
from control.domain.webhook_targets import parse_networks
from control.services import webhook_sending
from control.services.access import Principal, Role
from control.services.alert_evaluation import evaluate_alerts
from control.services.alert_rules import create_rule
from control.services.plane import ControlPlane
from control.services.webhook_delivery import deliver_waiting
from control.services.webhooks import WebhookDraft, create_webhook
from control.store.session import open_database
from control.store.tables import AlertEventRow, AlertRow, WebhookDeliveryRow
from tests.unit.control.rollup_writers import hear, write_requests
from tests.unit.control.webhook_receiver import running_receiver

OLGA = Principal("olga", Role.OPERATOR)
SLOW = AlertRule("slow", "ttft_p99_s", 5.0, window_s=60, for_s=0, clear_for_s=0)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """On a busy machine a receiver of ours may take longer than one in earnest."""
    monkeypatch.setattr(webhook_sending, "TIMEOUT_S", 60.0)


@pytest.fixture
def planes(seeded, database_url, clock):
    """Replicas on one database."""
    databases = [open_database(database_url) for _ in range(4)]
    yield [
        ControlPlane(database, seeded.send, clock, webhook_networks=parse_networks("127.0.0.0/8"))
        for database in databases
    ]
    for database in databases:
        database.engine.dispose()


def at_once(planes, action):
    with ThreadPoolExecutor(len(planes)) as workers:
        return list(workers.map(action, planes))


def test_each_evaluation_counts_once_and_each_message_is_sent_once(seeded, planes, clock):
    with running_receiver() as receiver:
        create_rule(seeded, OLGA, SLOW)
        create_webhook(seeded, OLGA, WebhookDraft("hook", receiver.url))
        for ttft_s in (9.0, 9.0, 1.0):
            clock.advance(seconds=10)
            hear(seeded)
            hear(seeded, name="fra-gw", site="fra")
            write_requests(seeded, 5, age_s=1, ttft_s=ttft_s)
            assert [one is not None for one in at_once(planes, evaluate_alerts)].count(True) == 1
            at_once(planes, deliver_waiting)
        assert len(receiver.requests) == 1
    with seeded.database.reading() as session:
        [alert] = session.exec(select(AlertRow)).all()
        events = [row.kind for row in session.exec(select(AlertEventRow).order_by(AlertEventRow.id))]
        [delivery] = session.exec(select(WebhookDeliveryRow)).all()
    assert (alert.state, events) == ("firing", ["fired", "notified"])
    assert (delivery.state, delivery.attempts) == ("delivered", 1)
