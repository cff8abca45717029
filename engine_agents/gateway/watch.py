"""Looks at every node once in a while: whether it makes progress, was restarted, and how much it can hold."""

import asyncio
import logging
from collections import Counter

from control.domain.topology import Node, NodeState
from engine_agents.gateway.config import ConfigStore
from engine_agents.gateway.node_client import NodeClient
from engine_agents.gateway.node_errors import NodeError
from engine_agents.gateway.state import GatewayState, StrandedKv

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
LOOKS_UNTIL_LOST = 3
"""So many failed looks in a row end the work on a node; one alone may be a busy machine."""


class NodeWatch:
    """Keeps the gateway's picture of its nodes honest, without being asked by any request."""

    def __init__(
        self, client: NodeClient, state: GatewayState, configs: ConfigStore, every_s: float = LOOK_EVERY_S
    ) -> None:
        self._client = client
        self._state = state
        self._configs = configs
        self._every_s = every_s
        self._failures: Counter[str] = Counter()
        self._engine_ids: dict[str, str] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Look at all nodes of the running configuration at once."""
        config = self._configs.running
        if config is None:
            return
        nodes = [node for node in config.fleet.nodes if node.state is not NodeState.DISABLED]
        block_tokens = config.fleet.block_tokens
        await asyncio.gather(*(self._look_at(node, block_tokens) for node in nodes))

    async def _look_at(self, node: Node, block_tokens: int) -> None:
        try:
            await self._client.check_health(node)
            info = await self._client.fetch_info(node)
        except NodeError as error:
            self._failures[node.url] += 1
            if self._failures[node.url] >= LOOKS_UNTIL_LOST:
                log.warning("%s is lost: %s", node.name, error.message)
                self._state.stranded.pop(node.name, None)
                self._state.lost(node.name)
                self._client.give_up(node)  # what it was working on goes on elsewhere
            return
        if self._failures.pop(node.url, 0) >= LOOKS_UNTIL_LOST:
            log.info("%s is back", node.name)
        self._state.breakers.succeeded(node.name)
        if info is None:
            return
        self._state.stranded[node.name] = StrandedKv(info.store.stranded_bytes, info.store.stranded_age_s)
        if self._engine_ids.get(node.url, info.engine_id) != info.engine_id:
            log.info("%s was restarted: nothing is known of its cache", node.name)
            self._state.index.drop_node(node.name)
        self._engine_ids[node.url] = info.engine_id
        self._state.fingerprints[node.name] = info.fingerprint
        if info.store.capacity_tokens:
            self._state.index.set_capacity(node.name, info.store.capacity_tokens // block_tokens)
