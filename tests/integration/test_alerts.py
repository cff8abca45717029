"""From a gateway's records to a receiver: Valkey, the telemetry consumer, the control worker and its beat, all real."""

import itertools
import json
import sys
import time
from contextlib import ExitStack

import msgspec
import pytest
from redis import Redis
from sqlmodel import select

from control.api.app import open_plane
from control.domain.alert_rules import AlertRule
from control.domain.silences import Matcher, Operator
from control.domain.topology import FleetSnapshot, Gateway, Site
from control.services.access import Principal, Role
from control.services.alert_rules import create_rule
from control.services.bootstrap import prepare
from control.services.webhooks import WebhookDraft, create_webhook
from control.settings import Settings
from control.store.tables import AlertRow
from control.telemetry.records import BATCH_FIELD, REQUESTS_STREAM, RequestBatch, RequestRecord
from tests.processes import running_process, running_valkey, running_worker, wait_until
from tests.unit.control.webhook_receiver import running_receiver

OLGA = Principal("olga", Role.OPERATOR)
RULE = AlertRule("slow-median", "ttft_p50_s", 5.0, window_s=300, for_s=0, clear_for_s=0, labels={"site": "ams"})

MATCHERS = [Matcher("alertname", Operator.EQUAL, RULE.name)]
PATIENCE_S = 140.0


class Rig:
    """A control plane whose telemetry and alerts run as processes, and a gateway that is only its records."""

    def __init__(self, folder, redis_url, receiver):
        self.environment = {
            "PDD_DATA_DIR": str(folder),
            "PDD_REDIS_URL": redis_url,
            "PDD_DATABASE_URL": f"sqlite:///{folder / 'control.sqlite3'}",
            "PDD_SITE_SECRET": "a site's secret",
            "PDD_WEBHOOK_NETWORKS": "127.0.0.0/8",
        }
        settings = Settings.from_environment(self.environment)
        fleet = FleetSnapshot(
            sites=(Site("ams"),),
            gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:1"),),
            model="m",
            kv_bytes_per_token=1,
        )
        prepare(settings, fleet.to_document())
        self.plane = open_plane(settings)
        self.receiver = receiver
        self._redis = Redis.from_url(redis_url)
        self._sequence = itertools.count()
        create_rule(self.plane, OLGA, RULE)
        _, self.secret = create_webhook(self.plane, OLGA, WebhookDraft("on-call", receiver.url, MATCHERS))

    def close(self):
        self._redis.close()
        self.plane.database.engine.dispose()

    def send(self, count, ttft_s):
        """One batch of equal requests, as a gateway would send it."""
        now_s = time.time()
        record = RequestRecord(
            request_id="r",
            gateway="ams-gw-01",
            site="ams",
            received_at_s=now_s - 1,
            model="m",
            pipeline="direct",
            reason="x",
            outcome="completed",
            status=200,
            policy_revision=1,
            ttft_s=ttft_s,
            e2e_s=0.5,
        )
        batch = RequestBatch("ams-gw-01", "ams", 1, next(self._sequence), now_s, (record,) * count)
        self._redis.xadd(REQUESTS_STREAM.format(site="ams"), {BATCH_FIELD: msgspec.msgpack.encode(batch)})

    def states(self):
        with self.plane.database.reading() as session:
            return [row.state for row in session.exec(select(AlertRow).where(AlertRow.rule == RULE.name))]

    def told(self):
        """What the receiver was told, each message once however often it was sent."""
        messages = {headers["X-PDD-Delivery"]: json.loads(body) for headers, body in self.receiver.requests}
        return [(body["status"], body["alerts"][0]["labels"]["site"]) for body in messages.values()]


@pytest.fixture
def rig(tmp_path):
    with ExitStack() as stack:
        receiver = stack.enter_context(running_receiver())
        rig = Rig(tmp_path, stack.enter_context(running_valkey(tmp_path)), receiver)
        stack.callback(rig.close)
        log = stack.enter_context((tmp_path / "telemetry.log").open("wb"))
        telemetry = [sys.executable, "-m", "control.telemetry.ingest", "--site", "ams"]
        stack.enter_context(running_process(telemetry, log, rig.environment))
        for name in ("first", "second"):
            path = tmp_path / f"{name}.log"
            stack.enter_context(running_worker("control.worker", "control", path, rig.environment, "-B", "-n", name))
        yield rig
        for name in ("telemetry", "first", "second"):
            sys.stdout.write(f"--- {name}\n{(tmp_path / f'{name}.log').read_text()}")


@pytest.mark.timeout(320)
@pytest.mark.full
def test_slow_requests_reach_the_receiver_once_although_two_replicas_evaluate_and_their_end_does_too(rig):
    rig.send(20, 9.0)
    rig.receiver.statuses = [500, 200]  # the first message has to be sent again
    wait_until(lambda: len(rig.receiver.requests) >= 2, PATIENCE_S)
    assert rig.told() == [("firing", "ams")]
    assert rig.states() == ["firing"]
    assert rig.receiver.is_signed(1, rig.secret)
    rig.send(200, 0.1)
    wait_until(lambda: len(rig.told()) >= 2, PATIENCE_S)
    assert rig.told() == [("firing", "ams"), ("resolved", "ams")]
    assert rig.states() == ["resolved"]
