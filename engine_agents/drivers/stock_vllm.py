"""Drives an unchanged vLLM: what its API does not offer is refused with the reason."""

import time

import httpx

from control.domain.topology import Node, Role
from engine_agents.drivers.driver import DriverError, Effect, Fence, NodeObservation, UnsupportedError
from engine_agents.drivers.exchange import exchange

# An engine's first request may compile kernels or read weights.
WARM_TIMEOUT_S = 8.0


class StockVllmDriver:
    """One stock engine. Its `/load` counts all requests in the house, in line or running."""

    def __init__(self, node: Node, client: httpx.Client) -> None:
        self._node = node
        self._client = client

    def observe(self) -> NodeObservation:
        """Its load; what it pulls and leases it does not say, and both are requests in the house."""
        answer = exchange(self._client, "GET", "load")
        try:
            return NodeObservation(running=int(answer["server_load"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DriverError(f"the node's load lacks {error}") from error

    def assign(self, role: Role, fence: Fence, *, draining: bool) -> Effect:
        """A stock engine has no role: gateways decide what it is used for."""
        del role, fence, draining
        return Effect.UNCHANGED

    def warm(self) -> float:
        """One small completion."""
        began_s = time.monotonic()
        warm_up(self._client, self._node)
        return time.monotonic() - began_s

    def restart(self, incarnation: str | None, fence: Fence) -> Effect:
        """Refused."""
        del incarnation, fence
        raise UnsupportedError("a stock vLLM cannot be restarted over its API; restart it where it runs")


def warm_up(client: httpx.Client, node: Node) -> None:
    """Have an engine prefill a few tokens and decode two.

    Raises:
        UnreachableError, DriverError: it did not answer.
    """
    body = {"model": node.model, "prompt": "warm up", "max_tokens": 2, "temperature": 0}
    exchange(client, "POST", "v1/completions", json=body, timeout_s=WARM_TIMEOUT_S)
