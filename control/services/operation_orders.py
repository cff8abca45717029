"""The orders by which a site's agent takes part in a step."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlmodel import Session

from control.domain.operations import Stage, Step
from control.domain.topology import Gateway, Node
from control.errors import NotFoundError
from control.orders import (
    ASSIGN_NODE,
    OBSERVE_GATEWAY,
    OBSERVE_NODE,
    PROBE_LINK,
    RESTART_NODE,
    WARM_NODE,
    Order,
    site_queue,
)
from control.services.fleet import find, load_gateways, load_links, load_nodes
from control.services.operation_store import Stored

_NODE_TASKS = {Stage.ASSIGN: ASSIGN_NODE, Stage.WARM: WARM_NODE, Stage.RESTART: RESTART_NODE}


@dataclass(frozen=True, slots=True)
class StepOrder:
    """An order, and the name under which its report comes back."""

    source: str
    order: Order


def orders_of(session: Session, stored: Stored, step: Step, position: int) -> list[StepOrder]:
    """What to send for a claimed step.

    Raises:
        NotFoundError: its node or link has left the fleet.
    """
    header = {"operation_id": stored.id, "position": position, "token": step.token, "fence": step.fence}
    if step.plan.stage is Stage.PROBE:
        link = find(load_links(session), "link", step.plan.subject)
        probe = {
            "relay": {"host": link.relay_host, "port": link.relay_port},
            "link": link.name,
            "size_bytes": step.plan.arguments["size_bytes"],
        }
        return [_order(PROBE_LINK, link.target, link.name, header, probe)]
    node = find(load_nodes(session), "node", step.plan.subject)
    if step.plan.stage is Stage.EMPTY:
        return [
            _order(OBSERVE_NODE, node.site, node.name, header, {"node": asdict(node)}),
            *(_gateway_order(gateway, node, header) for gateway in load_gateways(session)),
        ]
    arguments = {"node": asdict(node), **_arguments(stored, step)}
    return [_order(_NODE_TASKS[step.plan.stage], node.site, node.name, header, arguments)]


def order_again(orders: Sequence[StepOrder], source: str) -> Order:
    """The one order whose report came from this source.

    Raises:
        NotFoundError: none did.
    """
    for known in orders:
        if known.source == source:
            return known.order
    raise NotFoundError(f"{source} has no part in this step.")


def _gateway_order(gateway: Gateway, node: Node, header: dict[str, Any]) -> StepOrder:
    arguments = {"gateway": asdict(gateway), "node": node.name}
    return _order(OBSERVE_GATEWAY, gateway.site, gateway.name, header, arguments)


def _arguments(stored: Stored, step: Step) -> dict[str, Any]:
    """What a node's task needs beside the node; a restart names the incarnation that is to end, so no other does."""
    if step.plan.stage is Stage.ASSIGN:
        return {"role": step.plan.arguments["role"], "draining": step.plan.arguments["draining"]}
    if step.plan.stage is Stage.RESTART:
        seen: dict[str, Any] = {}
        for other in stored.operation.steps:
            if other.plan.stage is Stage.EMPTY and other.plan.subject == step.plan.subject:
                seen = other.progress.get("seen", {}).get(step.plan.subject, {})
        return {"incarnation": seen.get("incarnation")}
    return {}


def _order(task: str, site: str, source: str, header: dict[str, Any], arguments: dict[str, Any]) -> StepOrder:
    return StepOrder(source, Order(task, site_queue(site), {**header, "source": source, **arguments}))
