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
    """One task to send: its name, its queue, and its JSON arguments."""

    task: str
    queue: str
    arguments: dict[str, Any]


Send = Callable[[Order], None]


def site_queue(site: str) -> str:
    """The queue that a site's agent consumes."""
    return f"site.{site}"
