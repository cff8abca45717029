"""Leases that prefill nodes still hold: who has them, and giving back those that nobody reads."""

import asyncio
import logging
from typing import Any

import msgspec

from control.domain.topology import Node, NodeState, Role
from engine_agents.gateway.errors import RefusalError
from engine_agents.gateway.gateway import Gateway
from engine_agents.gateway.node_errors import NodeError
from engine_agents.gateway.node_replies import NodeLease

log = logging.getLogger(__name__)


async def list_leases(gateway: Gateway, name: str) -> dict[str, Any]:
    """All leases of one prefill node, or of all; nodes that do not answer are named.

    Raises:
        RefusalError: 404, there is no such prefill node.
    """
    held, silent = await _ask(gateway, _prefill_nodes(gateway, name))
    rows = [{"node": node.name, **msgspec.to_builtins(lease)} for node, leases in held for lease in leases]
    return {"leases": rows, "silent_nodes": silent}


async def release_stranded(gateway: Gateway, name: str, older_than_s: float) -> dict[str, Any]:
    """Give back leases of at least that age that nobody reads, and say how many bytes that frees at most.

    Raises:
        RefusalError: 404, there is no such prefill node.
    """
    held, silent = await _ask(gateway, _prefill_nodes(gateway, name))
    released = released_bytes = 0
    for node, leases in held:
        for lease in leases:
            if lease.attached or lease.age_s < older_than_s:
                continue
            try:
                await gateway.client.release(node, lease.id)
            except NodeError as error:
                log.warning("a stranded lease stays: %s", error)
                continue
            released += 1
            released_bytes += lease.size_bytes
    return {"released": released, "released_bytes": released_bytes, "silent_nodes": silent}


async def _ask(gateway: Gateway, nodes: list[Node]) -> tuple[list[tuple[Node, tuple[NodeLease, ...]]], list[str]]:
    answers = await asyncio.gather(*(gateway.client.list_leases(node) for node in nodes), return_exceptions=True)
    held, silent = [], []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, NodeError):
            silent.append(node.name)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            held.append((node, answer))
    return held, silent


def _prefill_nodes(gateway: Gateway, name: str) -> list[Node]:
    nodes = gateway.running_config().fleet.nodes_of(Role.PREFILL)
    found = [node for node in nodes if node.state is not NodeState.DISABLED and name in {"", node.name}]
    if name and not found:
        raise RefusalError(404, f"There is no prefill node `{name}` here.", param="node", code="not_found")
    return found
