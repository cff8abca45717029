"""How a site's agent drives an engine, whatever its kind."""

from typing import Any

import httpx

from control.domain.topology import Node, NodeState, Role
from engine_agents.drivers.driver import Driver
from engine_agents.drivers.own_node import OwnNodeDriver
from engine_agents.drivers.stock_vllm import StockVllmDriver


def driver_of(node: Node, client: httpx.Client) -> Driver:
    """The driver of a node; `client` has the node's URL as its base and carries the site's secret."""
    return StockVllmDriver(node, client) if node.is_stock else OwnNodeDriver(node, client)


def node_of_document(document: dict[str, Any]) -> Node:
    """The node that an order names.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    return Node(**{**document, "role": Role(document["role"]), "state": NodeState(document["state"])})
