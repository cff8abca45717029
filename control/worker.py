"""The control worker: `celery -A control.worker worker -Q control -B`. Its tasks may touch SQL, agents' may not."""

import logging
from functools import cache, partial
from typing import Any

from celery.signals import worker_ready

from control.celery_app import create_celery, log_quietly, send_order, tie_children_to_worker, waiting_orders
from control.domain.webhook_targets import parse_networks
from control.metric_catalogue import Process
from control.orders import (
    ADVANCE_OPERATION,
    CONTROL_QUEUE,
    DELIVER_WEBHOOKS,
    EVALUATE_ALERTS,
    REPORT_LINK,
    REPORT_POLICY,
    REPORT_SECRET,
    REPORT_SITE,
    REPORT_STEP,
    SWEEP,
    SWEEP_OPERATIONS,
    SWEEP_ROLLOUTS,
    Order,
)
from control.services.alert_evaluation import evaluate_alerts
from control.services.fleet_push import sweep_observers
from control.services.link_rollout import LinkReport, record_link_report, sweep_links
from control.services.operation_engine import StepReport, advance_operation, record_step_report, sweep_operations
from control.services.plane import ControlPlane
from control.services.rollout import Report, record_report, sweep_gateways
from control.services.rollout_engine import sweep_rollouts
from control.services.sightings import record_agent
from control.services.site_secret import record_secret_report, sweep_secret
from control.services.webhook_delivery import deliver_waiting
from control.settings import Settings
from control.store.session import open_database
from control.task_metrics import count_tasks
from control.telemetry.sightings import sightings_reader

SWEEP_EVERY_S = 5.0
SWEEP_OPERATIONS_EVERY_S = 1.0
SWEEP_ROLLOUTS_EVERY_S = 2.0
EVALUATE_EVERY_S = 10.0

log = logging.getLogger(__name__)
settings = Settings.from_environment()
app = create_celery(settings, "control")
app.conf.beat_scheduler = "control.leader_beat:LeaderScheduler"
app.conf.beat_schedule = {
    "sweep": {
        "task": SWEEP,
        "schedule": SWEEP_EVERY_S,
        "options": {"queue": CONTROL_QUEUE, "expires": SWEEP_EVERY_S},
    },
    "sweep_operations": {
        "task": SWEEP_OPERATIONS,
        "schedule": SWEEP_OPERATIONS_EVERY_S,
        "options": {"queue": CONTROL_QUEUE, "expires": SWEEP_OPERATIONS_EVERY_S},
    },
    "sweep_rollouts": {
        "task": SWEEP_ROLLOUTS,
        "schedule": SWEEP_ROLLOUTS_EVERY_S,
        "options": {"queue": CONTROL_QUEUE, "expires": SWEEP_ROLLOUTS_EVERY_S},
    },
    "evaluate_alerts": {
        "task": EVALUATE_ALERTS,
        "schedule": EVALUATE_EVERY_S,
        "options": {"queue": CONTROL_QUEUE, "expires": EVALUATE_EVERY_S},
    },
}
tie_children_to_worker()
count_tasks(Process.WORKER, settings.metrics_address)
log_quietly(SWEEP_OPERATIONS)
log_quietly(SWEEP_ROLLOUTS)
log_quietly(REPORT_SITE)


def _send(order: Order) -> None:
    send_order(app, order)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _sweep_at_once(**_: Any) -> None:
    # The first beat is five seconds away, and a fleet that starts has gateways that wait for their policy.
    send_order(app, Order(SWEEP, CONTROL_QUEUE, {}))


@cache
def _plane() -> ControlPlane:
    # Opened by the first task, so after the fork: a connection must not be shared between processes.
    sightings = sightings_reader(settings.redis_url)
    networks = parse_networks(settings.webhook_networks)
    return ControlPlane(open_database(settings.database_url), _send, sightings=sightings, webhook_networks=networks)


@app.task(name=REPORT_POLICY)  # type: ignore[untyped-decorator]
def report_policy(**arguments: Any) -> None:
    """Keep what an agent says a gateway runs."""
    record_report(_plane(), Report.from_arguments(arguments))


@app.task(name=REPORT_LINK)  # type: ignore[untyped-decorator]
def report_link(**arguments: Any) -> None:
    """Keep what an agent says the relay of a link enforces."""
    record_link_report(_plane(), LinkReport.from_arguments(arguments))


@app.task(name=REPORT_SITE)  # type: ignore[untyped-decorator]
def report_site(*, site: str) -> None:
    """Keep that the agent of a site lives."""
    record_agent(_plane(), site)


@app.task(name=REPORT_SECRET)  # type: ignore[untyped-decorator]
def report_secret(**arguments: Any) -> None:
    """Keep which programs of a site have the new secret."""
    record_secret_report(_plane(), arguments)


@app.task(name=REPORT_STEP)  # type: ignore[untyped-decorator]
def report_step(**arguments: Any) -> None:
    """Take what an agent says of an operation's step, and move the operation on."""
    record_step_report(_plane(), StepReport.from_arguments(arguments))


@app.task(name=ADVANCE_OPERATION)  # type: ignore[untyped-decorator]
def advance(*, operation_id: int) -> None:
    """Move one operation on."""
    advance_operation(_plane(), operation_id)


@app.task(name=SWEEP_OPERATIONS)  # type: ignore[untyped-decorator]
def sweep_open_operations() -> None:
    """Move all open operations on."""
    sweep_operations(_plane())


@app.task(name=SWEEP_ROLLOUTS)  # type: ignore[untyped-decorator]
def sweep_open_rollouts() -> None:
    """Move the open roll-out on."""
    sweep_rollouts(_plane())


@app.task(name=EVALUATE_ALERTS)  # type: ignore[untyped-decorator]
def evaluate() -> None:
    """Take every alert one evaluation further, and try again what receivers have not taken."""
    evaluate_alerts(_plane())
    deliver_waiting(_plane())


@app.task(name=DELIVER_WEBHOOKS)  # type: ignore[untyped-decorator]
def deliver() -> None:
    """Send what waits for the receivers of alerts."""
    deliver_waiting(_plane())


@app.task(name=SWEEP)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Send the active policy again where it is missing; finds what a lost message missed."""
    waiting = partial(waiting_orders, app)
    pushed = [*sweep_gateways(_plane(), waiting), *sweep_links(_plane(), waiting)]
    sweep_observers(_plane(), waiting)
    sweep_secret(_plane(), waiting)
    if pushed:
        log.info("sent the active policy to %s", ", ".join(pushed))
