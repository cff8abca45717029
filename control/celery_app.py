"""How orders travel: one Celery configuration for control and for every site's agent."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, worker_process_init
from kombu.exceptions import OperationalError

from control.orders import CONTROL_QUEUE, Order
from control.processes import die_with_parent
from control.settings import Settings

# A killed worker's order is delivered again after this long, so no task may take more than half of it.
VISIBILITY_TIMEOUT_S = 20
TASK_TIME_LIMIT_S = 10
ORDER_EXPIRES_S = 60.0
CONNECT_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


def create_celery(settings: Settings, name: str, *, include: tuple[str, ...] = ()) -> Celery:
    """An application on the broker of the settings; connects on first use."""
    app = Celery(name, broker=settings.redis_url, include=include, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_default_queue=CONTROL_QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=TASK_TIME_LIMIT_S,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        enable_utc=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=CONNECT_TIMEOUT_S,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            # Without these two a lost order came back after 65 s instead of the visibility timeout.
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
        },
        # The schedule is fixed in code: beat keeps nothing on disk.
        beat_scheduler="celery.beat:Scheduler",
    )
    return app


def send_order(app: Celery, order: Order, *, expires_s: float = ORDER_EXPIRES_S) -> bool:
    """Put an order into its queue; one not taken up within `expires_s`, or its own time, is dropped.

    Returns:
        False where the broker cannot be reached: the sweep finds out later what did not happen.
    """
    try:
        app.send_task(
            order.task,
            kwargs=order.arguments,
            queue=order.queue,
            expires=expires_s if order.expires_s is None else order.expires_s,
            retry=True,
            retry_policy={"max_retries": 1, "interval_start": 0.1},
        )
    except (OperationalError, OSError) as error:
        log.warning("could not send %s to %s: %s", order.task, order.queue, error)
        return False
    return True


def waiting_orders(app: Celery, queue: str) -> int:
    """Number of orders in a queue that no worker has taken yet.

    Raises:
        OperationalError, OSError: the broker cannot be reached.
    """
    with app.connection_for_read() as connection:
        declared = connection.default_channel.queue_declare(queue=queue, passive=False)
        return int(declared.message_count)


def count_waiting(app: Celery, queue: str) -> int | None:
    """As `waiting_orders`; None where the broker cannot be reached."""
    try:
        return waiting_orders(app, queue)
    except (OperationalError, OSError):
        return None


class _WithoutTask(logging.Filter):
    """Drops what Celery says of one task in passing."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self._task = task

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep failures, and all other tasks."""
        args = record.args
        named = args.get("name") if isinstance(args, Mapping) else (args or ("",))[-1]
        return record.levelno > logging.INFO or named != self._task


def log_quietly(task: str) -> None:
    """Say nothing of a task that runs every few seconds, unless it fails."""
    for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(_WithoutTask(task))


def tie_children_to_worker() -> None:
    """Let the kernel kill this worker's forked children with it, even when it is killed itself.

    Call it while the worker's own process loads its module: the process that calls is the parent.
    """
    parent_pid = os.getpid()

    def tie(**_: Any) -> None:
        die_with_parent(parent_pid)

    worker_process_init.connect(tie, weak=False)
    beat_embedded_init.connect(tie, weak=False)
