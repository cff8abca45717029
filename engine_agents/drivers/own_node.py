"""Drives our own nodes, llama and emulated alike: the stock dialect and the extensions below /pdd/v1."""

import time

import httpx

from control.domain.topology import Node, Role
from engine_agents.drivers.driver import DriverError, Effect, Fence, NodeObservation
from engine_agents.drivers.exchange import exchange
from engine_agents.drivers.stock_vllm import warm_up


class OwnNodeDriver:
    """One node of our own dialect server."""

    def __init__(self, node: Node, client: httpx.Client) -> None:
        self._node = node
        self._client = client

    def observe(self) -> NodeObservation:
        """What it says of itself."""
        info = exchange(self._client, "GET", "pdd/v1/node")
        try:
            return NodeObservation(
                running=int(info["running"]),
                waiting=int(info["waiting"]),
                pulling=int(info["pulling"]),
                leases=int(info["store"]["leases"]),
                incarnation=str(info["engine_id"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DriverError(f"the node's document lacks {error}") from error

    def assign(self, role: Role, fence: Fence, *, draining: bool) -> Effect:
        """Tell it; the node ignores what it knows, and refuses what is older than what it was told last."""
        body = {"role": role.value, "draining": draining}
        answer = exchange(self._client, "PUT", "pdd/v1/duty", json=body, headers=fence.headers())
        return Effect(answer["effect"])

    def warm(self) -> float:
        """One small completion."""
        began_s = time.monotonic()
        warm_up(self._client, self._node)
        return time.monotonic() - began_s

    def restart(self, incarnation: str | None, fence: Fence) -> Effect:
        """Ask it to end; only the incarnation that is meant does."""
        if incarnation is None:
            raise DriverError("it is not known which incarnation should end")
        if self.observe().incarnation != incarnation:
            return Effect.UNCHANGED
        body = {"incarnation": incarnation}
        answer = exchange(self._client, "POST", "pdd/v1/restart", json=body, headers=fence.headers())
        return Effect(answer["effect"])
