import json
import logging

import httpx
import pytest
from kombu.exceptions import OperationalError

from control.celery_app import (
    TASK_TIME_LIMIT_S,
    VISIBILITY_TIMEOUT_S,
    create_celery,
    log_quietly,
    send_order,
    waiting_orders,
)
from control.orders import CONTROL_QUEUE, PUSH_POLICY, REPORT_POLICY, SWEEP, Order, site_queue
from control.settings import Settings
from engine_agents.tasks.celery import app as agent
from engine_agents.tasks.policies import Observation, apply_policy
from engine_agents.tasks.site_client import REQUEST_TIMEOUT_S
from tests.services import free_port

BODY = {"revision": 3, "policy": {}, "fleet": {}}


class FakeGateway:
    """What a gateway may answer; the true one is in the integration test."""

    def __init__(self, put=200, message="", running=3, **more):
        self.put, self.message, self.running, self.more = put, message, running, more
        self.seen = []

    def __call__(self, request):
        self.seen.append((request.method, request.url.raw_path.decode()))
        if request.method == "PUT":
            assert json.loads(request.content) == BODY
            return httpx.Response(self.put, json={"error": {"message": self.message}} if self.message else {})
        if isinstance(self.running, Exception):
            raise self.running
        return httpx.Response(200, json={"revision": self.running, **self.more})


def push(gateway, *, force=False):
    with httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(gateway)) as client:
        return apply_policy(client, BODY, force=force)


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        (FakeGateway(), Observation(3, "")),
        (FakeGateway(fleet_revision=7, canary_revision=4), Observation(3, "", 7, 4)),
        (FakeGateway(put=409, message="older", running=4), Observation(4, "")),
        (FakeGateway(put=409, message="odd", running=2), Observation(2, "the gateway still runs revision 2")),
        (FakeGateway(put=401, message="who?", running=2), Observation(2, "the gateway refused with 401: who?")),
        (FakeGateway(put=500, running=3), Observation(3, "the gateway refused with 500: {}")),
        (FakeGateway(running=httpx.ConnectError("gone")), Observation(None, "ConnectError: gone")),
        (FakeGateway(put=422, message="no", running=None), Observation(None, "the gateway refused with 422: no")),
    ],
)
def test_a_report_says_what_the_gateway_itself_says(gateway, expected):
    assert push(gateway) == expected
    assert gateway.seen == [("PUT", "/admin/v1/config"), ("GET", "/admin/v1/config")]


def test_only_a_forced_order_asks_for_force():
    gateway = FakeGateway()
    push(gateway, force=True)
    assert gateway.seen[0] == ("PUT", "/admin/v1/config?force=true")


def test_a_long_error_is_cut():
    assert len(push(FakeGateway(put=500, message="x" * 10_000)).error) == 300


@pytest.fixture
def unreachable():
    """An application whose broker does not exist."""
    return create_celery(Settings.from_environment({"PDD_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}), "test")


def test_an_order_that_cannot_be_sent_is_no_error(unreachable):
    assert send_order(unreachable, Order(SWEEP, CONTROL_QUEUE, {})) is False


def test_the_length_of_a_queue_that_cannot_be_read_is_an_error(unreachable):
    with pytest.raises((OperationalError, OSError)):
        waiting_orders(unreachable, CONTROL_QUEUE)


def test_tasks_end_well_before_they_are_given_to_another_worker():
    assert TASK_TIME_LIMIT_S <= VISIBILITY_TIMEOUT_S / 2
    assert 2 * REQUEST_TIMEOUT_S < TASK_TIME_LIMIT_S


def test_every_order_has_a_task_that_takes_it():
    from control.worker import app as control  # noqa: PLC0415 - the worker reads its settings when imported

    agent.loader.import_default_modules()
    assert PUSH_POLICY in agent.tasks
    assert {REPORT_POLICY, SWEEP} <= set(control.tasks)
    assert control.conf.beat_schedule["sweep"]["task"] == SWEEP
    assert site_queue("ams") == "site.ams"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("task_acks_late", True),
        ("task_reject_on_worker_lost", True),
        ("worker_prefetch_multiplier", 1),
        ("accept_content", ["json"]),
        ("result_backend", None),
    ],
)
def test_orders_survive_the_death_of_a_worker_and_hold_only_data(option, value):
    assert agent.conf[option] == value


def test_a_task_of_every_second_is_logged_only_when_it_fails(caplog):
    log_quietly("every.second")
    logger = logging.getLogger("celery.app.trace")
    caplog.set_level(logging.INFO)
    for task in ("every.second", "now.and.then"):
        logger.info("Task %(name)s succeeded", {"name": task, "id": "1"})
        logger.error("Task %(name)s failed", {"name": task, "id": "1"})
    logging.getLogger("celery.beat").info("Sending due task %s (%s)", "sweep", "every.second")
    logging.getLogger("celery.beat").info("beat: Starting...")
    assert caplog.messages == [
        "Task every.second failed",
        "Task now.and.then succeeded",
        "Task now.and.then failed",
        "beat: Starting...",
    ]
