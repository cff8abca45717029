"""The orders that leave a commit: which tasks exist, on which queue each belongs, and what one order is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CONTROL_QUEUE = "control"
PUSH_POLICY = "policies.push"
REPORT_POLICY = "policies.report"
SHAPE_LINK = "links.shape"
REPORT_LINK = "links.report"
CHANGE_TRANSFER = "links.transfer"
WATCH_FLEET = "sites.watch"
REPORT_SITE = "sites.report"
OBSERVE_NODE = "nodes.observe"
ASSIGN_NODE = "nodes.assign"
WARM_NODE = "nodes.warm"
RESTART_NODE = "nodes.restart"
OBSERVE_GATEWAY = "gateways.observe"
ROTATE_SECRET = "sites.rotate_secret"  # noqa: S105 - a name, not a secret
REPORT_SECRET = "sites.report_secret"  # noqa: S105 - a name, not a secret
PROBE_LINK = "links.probe"
REPORT_STEP = "operations.report"
ADVANCE_OPERATION = "operations.advance"
SWEEP_OPERATIONS = "operations.sweep"
SWEEP_ROLLOUTS = "rollouts.sweep"
SWEEP = "control.sweep"
EVALUATE_ALERTS = "alerts.evaluate"
DELIVER_WEBHOOKS = "alerts.deliver"


@dataclass(frozen=True, slots=True)
class Order:
    """One task to send: its name, queue and JSON arguments, and after how long nobody should take it up any more."""

    task: str
    queue: str
    arguments: dict[str, Any]
    expires_s: float | None = None


Send = Callable[[Order], None]


def site_queue(site: str) -> str:
    """The queue that a site's agent consumes."""
    return f"site.{site}"
