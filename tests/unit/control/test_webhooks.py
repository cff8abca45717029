"""Receivers of alerts: signed, retried, bounded, and never inside our own networks unless named."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import select

from control.domain.webhook_targets import first_allowed, is_allowed, parse_networks, parse_target
from control.errors import ConflictError, InvalidError, NotFoundError, StaleRevisionError
from control.services import alert_notices, webhook_delivery, webhook_sending
from control.services.access import Principal, Role
from control.services.alert_notices import _put_in_line
from control.services.audit import load_events
from control.services.webhook_delivery import MAX_ATTEMPTS, deliver_waiting, pause_s
from control.services.webhook_sending import Message, Receipt, post_message
from control.services.webhooks import (
    WebhookDraft,
    create_webhook,
    delete_webhook,
    load_deliveries,
    load_webhook,
    renew_secret,
    replace_webhook,
    try_webhook,
    webhook_version,
)
from control.store.tables import WebhookDeliveryRow
from tests.unit.control.webhook_receiver import running_receiver

OLGA = Principal("olga", Role.OPERATOR)
LOOPBACK = parse_networks("127.0.0.0/8")


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """On a busy machine a receiver of ours may take longer than one in earnest."""
    monkeypatch.setattr(webhook_sending, "TIMEOUT_S", 60.0)


@pytest.fixture
def receiver():
    with running_receiver() as running:
        yield running


@pytest.fixture
def local(plane):
    """A plane that may send to this machine."""
    return replace(plane, webhook_networks=LOOPBACK)


def put_in_line(plane, name, *bodies):
    with plane.database.unit_of_work(plane.send) as work:
        row = load_webhook(work.session, name)
        return sum(_put_in_line(work.session, row, body, plane.now()) for body in bodies)


def deliveries(plane, name="hook"):
    with plane.database.reading() as session:
        return [(row.state, row.attempts, row.error) for row in load_deliveries(session, name, 1000)]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
        *("169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:53aa:64c:0:0:80ff:fffe"),
    ],
)
def test_private_local_and_translated_addresses_are_refused(address):
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_allowed(address):
    assert is_allowed(ip_address(address), ())


def test_named_networks_are_allowed_and_no_more():
    networks = parse_networks("10.1.0.0/16, fd00::/8")
    assert [
        is_allowed(ip_address(one), networks) for one in ("10.1.2.3", "fd12::1", "::ffff:10.1.2.3", "10.2.0.1")
    ] == [
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError):
        parse_networks("10.0.0.0/8 everything")


def test_a_name_with_one_private_address_beside_a_public_one_is_refused():
    assert str(first_allowed(["8.8.8.8", "1.1.1.1"], ())) == "8.8.8.8"
    for addresses in (["8.8.8.8", "10.0.0.1"], ["fe80::1%eth0"], []):
        with pytest.raises(ValueError):
            first_allowed(addresses, ())


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "example.com", "//example.com/x", "http://", "http:///x", "file:///etc/passwd"),
        *("https://user:word@example.com/", "https://user@example.com/", "https://example.com/#part"),
        *("https://example.com:99999/", "https://exa mple.com/", "https://example.com/\r\nX: y", "https://[::1"),
        *("https://example.com\\@10.0.0.1/", "https://ex\u00e4mple.com/", "https://example.com/" + "x" * 2000),
        *("https://example.com:0/", "https://" + "a" * 300 + ".com/"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url):
    with pytest.raises(ValueError):
        parse_target(url)


def test_urls_are_taken_apart():
    target = parse_target("https://example.com/a/b?c=d")
    assert (target.host, target.port, target.path, target.authority) == ("example.com", 443, "/a/b?c=d", "example.com")
    assert parse_target("http://[2606:4700::1]:8080").authority == "[2606:4700::1]:8080"


@given(failures=st.integers(1, 10_000))
def test_pauses_grow_and_stay_bounded(failures):
    assert 5.0 <= pause_s(failures) <= pause_s(failures + 1) <= 900.0


def test_a_message_is_signed_over_time_and_body(local, receiver):
    row, secret = create_webhook(local, OLGA, WebhookDraft("hook", receiver.url))
    put_in_line(local, "hook", {"n": 1}, {"n": 2})
    assert deliver_waiting(local) == [("hook", Receipt(200)), ("hook", Receipt(200))]
    assert [body["n"] for body in receiver.bodies] == [1, 2]
    assert receiver.is_signed(0, secret)
    assert not receiver.is_signed(0, "another")
    headers = receiver.requests[0][0]
    assert int(headers["X-PDD-Timestamp"]) == int(local.now().timestamp())
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == row.url.split("/")[2]
    assert len({request[0]["X-PDD-Delivery"] for request in receiver.requests}) == 2
    assert deliveries(local) == [("delivered", 1, ""), ("delivered", 1, "")]
    assert deliver_waiting(local) == []


def test_a_receiver_that_fails_is_tried_again_in_order_after_growing_pauses(local, receiver, clock):
    create_webhook(local, OLGA, WebhookDraft("hook", receiver.url))
    put_in_line(local, "hook", {"n": 1}, {"n": 2})
    receiver.statuses = [500, 503, 200]
    assert deliver_waiting(local) == [("hook", Receipt(500, "answered 500"))]
    assert deliver_waiting(local) == []
    clock.advance(seconds=5)
    assert len(deliver_waiting(local)) == 1
    clock.advance(seconds=5)
    assert deliver_waiting(local) == []
    clock.advance(seconds=5)
    assert [receipt.status for _, receipt in deliver_waiting(local)] == [200, 200]
    assert [body["n"] for body in receiver.bodies] == [1, 1, 1, 2]
    assert deliveries(local) == [("delivered", 1, ""), ("delivered", 3, "")]


def test_what_is_never_taken_is_given_up_and_only_so_much_of_it_kept(local, clock, monkeypatch):
    monkeypatch.setattr(webhook_delivery, "MAX_DEAD", 3)
    create_webhook(local, OLGA, WebhookDraft("hook", "http://127.0.0.1:9/"))
    put_in_line(local, "hook", *({"n": n} for n in range(5)))

    def refuse(message):
        return Receipt(None, "ConnectError")

    for _ in range(5 * MAX_ATTEMPTS):
        clock.advance(seconds=900)
        assert len(deliver_waiting(local, refuse)) == 1
    assert deliveries(local) == [("dead", MAX_ATTEMPTS, "ConnectError")] * 3
    assert deliver_waiting(local, refuse) == []


def test_what_waits_is_bounded_and_the_rest_counted(local, monkeypatch):
    monkeypatch.setattr(alert_notices, "MAX_WAITING", 4)
    create_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/"))
    assert put_in_line(local, "hook", *({"n": n} for n in range(7))) == 4
    with local.database.reading() as session:
        assert load_webhook(session, "hook").dropped == 3


def test_one_receiver_that_hangs_does_not_keep_others_from_being_told(local, receiver, monkeypatch):
    with running_receiver() as hanging:
        hanging.hold.clear()
        create_webhook(local, OLGA, WebhookDraft("a-hangs", hanging.url))
        create_webhook(local, OLGA, WebhookDraft("b-works", receiver.url))
        for name in ("a-hangs", "b-works"):
            put_in_line(local, name, {"n": 1})

        def post(message):
            monkeypatch.setattr(webhook_sending, "TIMEOUT_S", 0.3 if message.url == hanging.url else 60.0)
            return post_message(message, LOOPBACK, 0.0)

        receipts = dict(deliver_waiting(local, post, elapsed=lambda: 0.0))
    assert receipts == {"a-hangs": Receipt(None, "took longer than 0.3 s"), "b-works": Receipt(200)}


def test_what_is_left_when_time_is_up_waits_for_the_next_run(local):
    seconds = iter(range(100))
    for name in ("a", "b", "c"):
        create_webhook(local, OLGA, WebhookDraft(name, "https://example.com/"))
        put_in_line(local, name, {"n": 1})

    def take(_):
        return Receipt(200)

    first = deliver_waiting(local, take, elapsed=lambda: float(next(seconds)))
    second = deliver_waiting(local, take, elapsed=lambda: 0.0)
    assert 0 < len(first) < 3
    assert sorted(name for name, _ in [*first, *second]) == ["a", "b", "c"]


def test_a_receiver_is_at_one_worker_only_and_a_late_receipt_is_dropped(local, receiver, clock):
    create_webhook(local, OLGA, WebhookDraft("hook", receiver.url))
    put_in_line(local, "hook", {"n": 1})
    seen = []

    def slow_post(message):
        assert deliver_waiting(local) == []  # another worker finds nothing to do
        clock.advance(seconds=31)  # … until the lease is over
        seen.extend(deliver_waiting(local))
        return Receipt(500, "late")

    assert deliver_waiting(local, slow_post) == []
    assert seen == [("hook", Receipt(200))]
    assert deliveries(local) == [("delivered", 1, "")]


@pytest.mark.parametrize("networks", ["", "10.0.0.0/8"])
def test_nothing_is_sent_into_our_own_networks(plane, receiver, networks):
    create_webhook(plane, OLGA, WebhookDraft("hook", receiver.url.replace("127.0.0.1", "localhost")))
    barred = replace(plane, webhook_networks=parse_networks(networks))
    receipt = try_webhook(barred, OLGA, "hook")
    assert (receipt.is_delivered, "PDD_WEBHOOK_NETWORKS" in receipt.error) == (False, True)
    assert receiver.requests == []


def test_a_redirect_is_not_followed(local, receiver):
    create_webhook(local, OLGA, WebhookDraft("hook", receiver.url))
    receiver.statuses, receiver.headers = [307], {"Location": receiver.url}
    assert try_webhook(local, OLGA, "hook") == Receipt(307, "answered 307")
    assert len(receiver.requests) == 1


def test_the_address_that_was_checked_is_the_one_that_is_called(receiver, monkeypatch):
    port = int(receiver.url.split(":")[2].split("/")[0])
    asked = []

    def look_up(host, port):
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(webhook_sending, "_look_up", look_up)
    message = Message(f"http://alerts.example.com:{port}/x", "s", "1", {})
    assert post_message(message, LOOPBACK, 0.0).is_delivered
    assert asked == ["alerts.example.com"]
    assert receiver.requests[0][0]["Host"] == f"alerts.example.com:{port}"


def test_a_test_message_says_what_it_is_and_leaves_a_trace(local, receiver):
    create_webhook(local, OLGA, WebhookDraft("hook", receiver.url, enabled=False))
    assert try_webhook(local, OLGA, "hook").is_delivered
    [body] = receiver.bodies
    assert (body["alerts"][0]["labels"]["alertname"], body["version"]) == ("test", "4")
    with local.database.reading() as session:
        assert load_events(session, 1)[0].action == "webhook.test"
    with pytest.raises(NotFoundError):
        try_webhook(local, OLGA, "other")


def test_secrets_are_nowhere_but_in_the_answer_that_made_them(local):
    _, secret = create_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/services/T0KEN"))
    renewed = renew_secret(local, OLGA, "hook")
    assert renewed != secret
    with local.database.reading() as session:
        events = str([event.model_dump() for event in load_events(session, 50)])
        stored = load_webhook(session, "hook")
    assert stored.secret == renewed
    for hidden in (secret, renewed, "T0KEN"):
        assert hidden not in events
    assert renewed not in repr(stored)


def test_changes_are_made_against_a_version_and_deleting_forgets_what_waits(local):
    row, _ = create_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/a"))
    put_in_line(local, "hook", {"n": 1})
    version = webhook_version(row)
    changed = replace_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/b"), {version})
    with pytest.raises(StaleRevisionError):
        replace_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/c"), {version})
    with pytest.raises(ConflictError):
        create_webhook(local, OLGA, WebhookDraft("hook", "https://example.com/"))
    with pytest.raises(InvalidError):
        create_webhook(local, OLGA, WebhookDraft("other", "ftp://example.com/"))
    delete_webhook(local, OLGA, "hook", {webhook_version(changed)})
    with local.database.reading() as session:
        assert session.exec(select(WebhookDeliveryRow)).all() == []
