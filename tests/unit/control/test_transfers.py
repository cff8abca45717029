"""Transfers on a link over REST and `pdd`: seen, paused, cut, and by whom."""

import json
from dataclasses import replace

import httpx
import msgspec
import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.transfers import SeenTransfer, SeenTransfers, TransferAction
from control.services.access import Role
from control.services.audit import load_events
from control.services.credentials import ensure_token
from control.settings import Settings
from control.telemetry.records import LinkSample, SampleBatch, TransferSample
from control.telemetry.sightings import read_transfers
from control.telemetry.windows import LiveWindows
from engine_agents.tasks.links import tell_relay
from tests.unit.control.served_plane import pdd_on

ONE = SeenTransfer("5f1c", "relay", "gold", "running", 4, 1000, 50, 2.5, 0.5)
URL = "/api/v1/links/ams-fra/transfers"
T0 = 1_800_000_000.0


@pytest.fixture
def seen():
    """What telemetry says, by link; a test may change it."""
    return {"ams-fra": SeenTransfers(1.0, is_reachable=True, transfers=(ONE,))}


@pytest.fixture
def watched(seeded, seen):
    return replace(seeded, transfers=seen.get)


@pytest.fixture
def client_of(watched):
    def make(role):
        ensure_token(watched, role.value, role, f"{role.value} secret")
        api = create_api(Settings.from_environment({}), watched)
        return TestClient(api, headers={"Authorization": f"Bearer {role.value} secret"})

    return make


def events(plane):
    with plane.database.reading() as session:
        return [
            (event.actor, event.action, event.target, event.before, event.reason)
            for event in load_events(session, 10)
            if event.action.startswith("transfer.")
        ]


def test_a_transfer_is_listed_paused_resumed_and_cut_by_an_order_to_its_links_source(client_of, orders, seeded):
    client = client_of(Role.OPERATOR)
    listed = client.get(URL).json()
    assert (listed["age_s"], [one["transfer_id"] for one in listed["items"]]) == (1.0, ["5f1c"])
    assert listed["items"][0]["waited_s"] == 0.5
    answers = [
        client.put(f"{URL}/5f1c", json={"paused": True, "reason": "let the others go first"}),
        client.put(f"{URL}/5f1c", json={"paused": False, "reason": "they are through"}),
        client.delete(f"{URL}/5f1c", params={"reason": "it is stuck"}),
    ]
    assert {(answer.status_code, answer.headers["location"]) for answer in answers} == {(202, URL)}
    assert {answer.json()["state"] for answer in answers} == {"running"}
    sent = [(order.task, order.queue, order.arguments) for order in orders if order.task == "links.transfer"]
    assert [arguments.pop("action") for _, _, arguments in sent] == ["pause", "resume", "cut"]
    where = {"link": "ams-fra", "admin_url": "http://127.0.0.1:9101", "transfer_id": "5f1c"}
    assert sent == [("links.transfer", "site.ams", where)] * 3
    target = "link/ams-fra/transfer/5f1c"
    assert events(seeded) == [
        ("token:operator", "transfer.cut", target, {"state": "running"}, "it is stuck"),
        ("token:operator", "transfer.resume", target, {"state": "running"}, "they are through"),
        ("token:operator", "transfer.pause", target, {"state": "running"}, "let the others go first"),
    ]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (("PUT", f"{URL}/gone", {"paused": True, "reason": "x"}), 404),
        (("PUT", "/api/v1/links/nowhere/transfers/5f1c", {"paused": True, "reason": "x"}), 404),
        (("PUT", f"{URL}/5f1c", {"paused": True}), 422),
        (("PUT", f"{URL}/5f1c", {"paused": "perhaps", "reason": "x"}), 422),
        (("DELETE", f"{URL}/5f1c", None), 422),
    ],
)
def test_what_makes_no_sense_is_refused_and_orders_nothing(client_of, orders, seeded, change, status):
    method, url, body = change
    assert client_of(Role.OPERATOR).request(method, url, json=body).status_code == status
    assert not [order for order in orders if order.task == "links.transfer"]
    assert events(seeded) == []


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (None, "no observer"),
        (SeenTransfers(60.0, is_reachable=True, transfers=(ONE,)), "last seen 60 s ago"),
        (SeenTransfers(1.0, is_reachable=False), "does not answer"),
    ],
)
def test_nothing_is_done_on_what_is_not_known(client_of, orders, seen, known, words):
    seen["ams-fra"] = known
    client = client_of(Role.OPERATOR)
    for answer in (client.get(URL), client.put(f"{URL}/5f1c", json={"paused": True, "reason": "x"})):
        assert answer.status_code == 409
        assert words in answer.json()["detail"]
    assert not [order for order in orders if order.task == "links.transfer"]


def test_a_viewer_may_look_and_change_nothing(client_of, orders):
    client = client_of(Role.VIEWER)
    assert client.get(URL).status_code == 200
    assert client.put(f"{URL}/5f1c", json={"paused": True, "reason": "x"}).status_code == 403
    assert client.delete(f"{URL}/5f1c", params={"reason": "x"}).status_code == 403
    assert not [order for order in orders if order.task == "links.transfer"]


def test_the_command_line_does_the_same(watched, orders, tmp_path):
    with pdd_on(watched, tmp_path) as pdd:
        assert "5f1c  running  relay/gold  4 streams  1000 bytes sent" in pdd("link", "transfers", "ams-fra")
        assert json.loads(pdd("link", "transfers", "ams-fra", "--json"))["items"][0]["transfer_id"] == "5f1c"
        for verb in ("pause", "resume", "cut"):
            assert pdd("link", verb, "ams-fra", "5f1c") == f"ordered: {verb} 5f1c, which was running\n"
        assert "no transfer gone" in pdd("link", "cut", "ams-fra", "gone", fails=1)
    actions = [order.arguments["action"] for order in orders if order.task == "links.transfer"]
    assert actions == ["pause", "resume", "cut"]


def test_a_snapshot_tells_what_is_under_way_and_how_old_that_is():
    windows = LiveWindows()
    transfer = TransferSample("5f1c", "relay", "gold", "running", 4, 1000, 50, 2.5, 0.5)
    link = LinkSample("ams-fra", "ams", "fra", 1e6, 0.03, transfers=(transfer,))
    windows.take_samples(SampleBatch("obs", "ams", 1, 1, T0, (), (link,)), T0)
    raw = msgspec.json.encode(windows.snapshot(T0 + 1))
    assert read_transfers(raw, "ams-fra", T0 + 3) == SeenTransfers(3.0, is_reachable=True, transfers=(ONE,))
    assert read_transfers(raw, "fra-ams", T0 + 3) is None
    assert read_transfers(None, "ams-fra", T0 + 3) is None
    assert "transfers" not in windows.tick(T0 + 1), "a browser is not sent them every second"


@pytest.mark.parametrize(
    ("action", "status", "request_", "outcome"),
    [
        (TransferAction.PAUSE, 200, ("PUT", {"paused": True}), "done"),
        (TransferAction.RESUME, 200, ("PUT", {"paused": False}), "done"),
        (TransferAction.CUT, 200, ("DELETE", None), "done"),
        (TransferAction.CUT, 404, ("DELETE", None), "it has ended"),
        (TransferAction.PAUSE, 401, ("PUT", {"paused": True}), "the relay refused with 401"),
    ],
)
def test_the_agent_tells_the_relay(action, status, request_, outcome):
    asked = []

    def answer(request):
        asked.append((request.method, json.loads(request.content) if request.content else None))
        assert request.url.path == "/links/ams-fra/transfers/5f1c"
        return httpx.Response(status, json={})

    with httpx.Client(base_url="http://relay", transport=httpx.MockTransport(answer)) as client:
        assert tell_relay(client, "ams-fra", "5f1c", action) == outcome
    assert asked == [request_]
