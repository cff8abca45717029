"""What every task of an operation's step has in common: the order's header, and the report that ends it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from control.celery_app import send_order
from control.orders import CONTROL_QUEUE, REPORT_STEP, Order
from engine_agents.drivers.driver import DriverError, Fence
from engine_agents.tasks.celery import app

LOOK_FOR_S = 1.0
LOOK_EVERY_S = 0.1
_ERROR_LENGTH = 300

Verdict = Literal["done", "again", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task has to say of its step."""

    verdict: Verdict
    progress: dict[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepHeader:
    """By which a report finds its step, and an engine tells a new order from an old one."""

    operation_id: int
    position: int
    token: str
    fence: int
    source: str

    @property
    def engine_fence(self) -> Fence:
        """As an engine sees it."""
        return Fence(f"{self.operation_id}.{self.position}", self.fence)


def report_outcome(header: StepHeader, outcome: Outcome) -> None:
    """Send a step's outcome to control."""
    report = {
        "operation_id": header.operation_id,
        "position": header.position,
        "token": header.token,
        "source": header.source,
        "verdict": outcome.verdict,
        "progress": outcome.progress,
        "error": outcome.error[:_ERROR_LENGTH],
    }
    send_order(app, Order(REPORT_STEP, CONTROL_QUEUE, report))


def look_until(look: Callable[[], Outcome], seconds: float = LOOK_FOR_S) -> Outcome:
    """Look again and again until it is done or the time is up; an error of the driver is a reason to look again."""
    give_up_s = time.monotonic() + seconds
    while True:
        try:
            outcome = look()
        except DriverError as error:
            words = str(error)[:_ERROR_LENGTH]
            outcome = Outcome("again", {"error": words, "waiting_for": [words]})
        if outcome.verdict != "again" or time.monotonic() > give_up_s:
            return outcome
        time.sleep(LOOK_EVERY_S)
