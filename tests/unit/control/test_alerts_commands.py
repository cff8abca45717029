"""`pdd slo`, `alert`, `silence` and `webhook` against the REST API over real HTTP."""

import json
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import uvicorn
from typer.testing import CliRunner

from control.api.app import create_api
from control.cli.alert_client import moment_after, parse_labels, parse_matchers
from control.cli.data_folder import DataFolder, Running
from control.cli.errors import CommandError
from control.cli.main import app
from control.domain.webhook_targets import parse_networks
from control.services import webhook_sending
from control.services.access import Role
from control.services.alert_evaluation import evaluate_alerts
from control.services.credentials import ensure_token
from control.settings import Settings
from tests.unit.control.rollup_writers import hear, write_requests
from tests.unit.control.webhook_receiver import running_receiver


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """On a busy machine a receiver of ours may take longer than one in earnest."""
    monkeypatch.setattr(webhook_sending, "TIMEOUT_S", 60.0)


@pytest.fixture
def pdd(seeded, tmp_path):
    """Runs `pdd` on the data folder of a control plane that answers on a port of its own."""
    folder = DataFolder(tmp_path / "data")
    folder.acquire()
    ensure_token(seeded, "operator", Role.OPERATOR, folder.secrets().operator_token)
    plane = replace(seeded, webhook_networks=parse_networks("127.0.0.0/8"))
    api = create_api(Settings.from_environment({}), plane)
    server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    give_up_s = time.monotonic() + 60
    while not server.started and time.monotonic() < give_up_s:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    folder.announce(Running(os.getpid(), f"http://127.0.0.1:{port}", "http://127.0.0.1:1"))

    def run(*words, exits=0):
        outcome = CliRunner().invoke(app, [*words, "--data", str(folder.path)])
        if isinstance(outcome.exception, CommandError):
            raise outcome.exception
        assert outcome.exit_code == exits, (outcome.output, outcome.exception)
        return outcome.output

    yield run
    server.should_exit = True
    thread.join(60)
    folder.release()


def test_objectives_are_set_changed_shown_and_deleted(pdd):
    assert pdd("slo", "add", "mine", "ttft", "--target", "0.9", "--threshold", "2", "--class", "default")
    table = pdd("slo", "list").splitlines()
    assert table[0].split()[:3] == ["name", "state", "target"]
    assert [line.split()[:2] for line in table[1:]][-1] == ["mine", "unknown"]
    pdd("slo", "set", "mine", "--target", "0.8")
    shown = json.loads(pdd("slo", "show", "mine"))
    assert (shown["target"], shown["threshold_s"], shown["service_class"]) == (0.8, 2, "default")
    assert "deleted" in pdd("slo", "delete", "mine")
    with pytest.raises(CommandError, match="404"):
        pdd("slo", "show", "mine")
    with pytest.raises(CommandError, match="Availability has no threshold"):
        pdd("slo", "add", "other", "availability", "--target", "0.9", "--threshold", "1")


def test_an_alert_is_seen_acknowledged_silenced_and_closed(pdd, seeded, clock):
    pdd("alert", "rule", "add", "slow", "ttft_p99_s", "5", "--for", "0", "--window", "60", "--label", "site=ams")
    assert "none" in pdd("alert", "list")
    for _ in range(2):
        clock.advance(seconds=10)
        hear(seeded)
        write_requests(seeded, 5, age_s=1, ttft_s=9.0)
        evaluate_alerts(seeded)
    [alert] = json.loads(pdd("alert", "list", "--rule", "slow", "--json", "--exit-code", exits=3))
    number = str(alert["id"])
    assert "acknowledged" in pdd("alert", "ack", number, "--comment", "on it")
    assert "critical" not in pdd("alert", "list", "--rule", "slow")
    with pytest.raises(CommandError, match="30 days"):
        pdd("silence", "add", "site=ams", "--for", "9000d", "--comment", "x")
    pdd("alert", "close", number, "--comment", "over")
    assert json.loads(pdd("alert", "show", number))["resolution"] == "closed by hand"
    pdd("alert", "rule", "set", "slow", "--disable")
    assert [line.split()[1] for line in pdd("alert", "rule", "list").splitlines() if line.startswith("slow")] == [
        "false"
    ]
    pdd("alert", "rule", "delete", "slow")
    assert "collapse_growth" in pdd("alert", "metrics")


def test_a_silence_is_made_and_ended(pdd, clock):
    clock.now = datetime.now(UTC)  # the command reckons with the real time
    made = json.loads(pdd("silence", "add", "site=ams", "alertname~slo*", "--for", "2h", "--comment", "x", "--json"))
    assert made["is_active"]
    assert made["matchers"][1] == {"label": "alertname", "operator": "~", "value": "slo*"}
    assert "true" in pdd("silence", "list")
    assert "ended" in pdd("silence", "end", str(made["id"]))


def test_a_webhook_is_made_tested_and_deleted(pdd):
    with running_receiver() as receiver:
        assert "whsec_" in pdd("webhook", "add", "hook", receiver.url, "--match", "severity!=info")
        assert "delivered (200)" in pdd("webhook", "test", "hook")
        receiver.statuses = [500]
        assert "answered 500" in pdd("webhook", "test", "hook", exits=2)
        secret = json.loads(pdd("webhook", "renew-secret", "hook", "--json"))["secret"]
        receiver.statuses = [200]
        pdd("webhook", "test", "hook")
        assert receiver.is_signed(-1, secret)
    pdd("webhook", "set", "hook", "--disable")
    [listed] = json.loads(pdd("webhook", "list", "--json"))
    assert (listed["enabled"], listed["matchers"][0]["operator"]) == (False, "!=")
    assert "none" in pdd("webhook", "deliveries", "hook")
    pdd("webhook", "delete", "hook")
    assert "none" in pdd("webhook", "list")


@pytest.mark.parametrize("text", ["site", "=x", "a b=c", ""])
def test_matchers_that_are_none_are_refused(text):
    with pytest.raises(CommandError):
        parse_matchers([text])


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "2 weeks"])
def test_durations_that_are_none_are_refused(text):
    with pytest.raises(CommandError):
        moment_after(text)


def test_labels_are_read():
    assert parse_labels(["site=ams", "x="]) == {"site": "ams", "x": ""}
    with pytest.raises(CommandError):
        parse_labels(["site"])
