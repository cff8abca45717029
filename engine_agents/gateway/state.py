"""What the gateway knows of the moment: load of nodes and links, prefixes, leases and the tasks it must end."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from control.domain.output_bound import OutputHistory
from control.domain.prefix import PrefixIndex
from control.domain.topology import Node
from engine_agents.gateway.breaker import Breakers
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.link_load import LinkLoad
from engine_agents.gateway.node_client import NodeUnreachableError

INDEX_CAPACITY_BLOCKS = 1_000_000
DEFAULT_PREFILL_S_PER_TOKEN = 0.0
PREFILL_SMOOTHING = 0.2
FIRST_RELAY_HOLD_S = 2.0
RELAY_HOLD_SMOOTHING = 0.1


RelayPool = tuple[str, str]
"""Relay nodes that stand in for each other: their site and model."""

TransferListener = Callable[[str, str, float, int, float | None], None]
"""Told of each transfer that arrived: link, pipeline, seconds, bytes, and the seconds foretold where they were."""


def _ignore_transfer(_link: str, _pipeline: str, _seconds: float, _size_bytes: int, _predicted_s: float | None) -> None:
    """Where nobody counts."""


class StrandedKv(NamedTuple):
    """KV that a node holds for consumers who do not read it, and the age of the oldest such lease."""

    size_bytes: int
    age_s: float


class GatewayState:
    """Live state of one gateway. One event loop owns it, so nothing is locked."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, on_transfer: TransferListener = _ignore_transfer
    ) -> None:
        self.now = now
        self.on_transfer = on_transfer
        self.index = PrefixIndex(INDEX_CAPACITY_BLOCKS)
        self.links = LinkLoad(now)
        self.breakers = Breakers(now)
        self.pools_at_ceiling: set[RelayPool] = set()
        self.relay_hold_s = FIRST_RELAY_HOLD_S
        self.outputs = OutputHistory()
        self.requests_in_flight = 0
        self.transfers_in_background = 0
        self.token_mismatches = 0
        self.max_model_lens: dict[str, int] = {}
        self.leases: set[str] = set()
        self.stranded: dict[str, StrandedKv] = {}
        self.ends_of_transfers: dict[str, asyncio.Event] = {}
        self.prefill_s_per_token = DEFAULT_PREFILL_S_PER_TOKEN
        self._whole_token_ids: dict[str, set[int]] = {}
        self._assigned: Counter[str] = Counter()
        self._work: dict[str, set[asyncio.Timeout]] = {}
        self._known_nodes: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def running(self, node: str) -> int:
        """Generations, prefills and pulls of this gateway on a node."""
        return len(self._work.get(node, ()))

    def load(self, node: str) -> int:
        """Requests that a node works on or will soon: those in prefill count for the nodes they were planned to use."""
        return max(self.running(node), self._assigned[node])

    @contextmanager
    def assigned(self, node: Node) -> Iterator[None]:
        """Count a request for a node from its plan on, so that equal requests do not all choose the same one."""
        self._assigned[node.name] += 1
        try:
            yield
        finally:
            self._assigned[node.name] -= 1

    def work_on(self, node: Node) -> "_Work":
        """Count one piece of work on a node for as long as the context lasts, and learn whether the node lives.

        Raises:
            NodeUnreachableError: the node was found lost meanwhile, and the work was ended.
        """
        return _Work(self, node.name, self._work.setdefault(node.name, set()))

    def lost(self, node: str) -> None:
        """The node makes no progress: leave it alone, and end what it was working on, which goes on elsewhere."""
        self.breakers.failed(node)
        self.index.drop_node(node)
        for scope in self._work.get(node, ()):
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    def measured_prefill(self, uncached_tokens: int, seconds: float) -> None:
        """Learn from one prefill how long a token takes, queueing included."""
        if uncached_tokens <= 0:
            return
        sample = seconds / uncached_tokens
        known = self.prefill_s_per_token
        self.prefill_s_per_token = sample if known == 0.0 else known + PREFILL_SMOOTHING * (sample - known)

    def relay_held(self, seconds: float) -> None:
        """Learn from one relay generation how long a slot is held."""
        self.relay_hold_s += RELAY_HOLD_SMOOTHING * (seconds - self.relay_hold_s)

    def judge_ceiling(self, pool: RelayPool, *, is_at_ceiling: bool) -> None:
        """Keep whether a pool takes no more, for the hysteresis of the next decision."""
        if is_at_ceiling:
            self.pools_at_ceiling.add(pool)
        else:
            self.pools_at_ceiling.discard(pool)

    def whole_token_ids(self, model: str) -> set[int]:
        """Tokens known to be made of whole characters; each stream of the model adds to them."""
        return self._whole_token_ids.setdefault(model, set())

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task that outlives the request it serves; `close` ends it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def adopt(self, config: RunningConfig) -> None:
        """Forget what was known of nodes that left the fleet or moved."""
        nodes = {node.name: node.url for node in config.fleet.nodes}
        for name, url in self._known_nodes.items():
            if nodes.get(name) != url:
                self.index.drop_node(name)
                self.breakers.succeeded(name)
                self.stranded.pop(name, None)
        self._known_nodes = nodes

    async def close(self) -> None:
        """End all tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshot(self) -> dict[str, Any]:
        """Plain figures for GET /admin/v1/state: all zero when nothing is under way."""
        return {
            "requests_in_flight": self.requests_in_flight,
            "nodes": {name: self.load(name) for name in self._known_nodes},
            "leases": len(self.leases),
            "transfers": self.index.transfers,
            "link_transfers": self.links.count,
            "link_queued_bytes": self.links.left_bytes(),
            "transfers_in_background": self.transfers_in_background,
            "tasks": len(self._tasks),
            "index_resident_blocks": {name: self.index.resident_blocks(name) for name in self._known_nodes},
            "pools_at_ceiling": sorted(f"{site}/{model}" for site, model in self.pools_at_ceiling),
            "open_breakers": self.breakers.open_nodes(),
        }


class _Work:
    """One piece of work on a node; a class, because a generator would cost several times as much."""

    __slots__ = ("_node", "_scope", "_scopes", "_state")

    def __init__(self, state: GatewayState, node: str, scopes: set[asyncio.Timeout]) -> None:
        self._state = state
        self._node = node
        self._scopes = scopes
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        self._scopes.add(self._scope)
        await self._scope.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scopes.discard(self._scope)
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError as timeout:
            raise NodeUnreachableError(self._node, "makes no progress") from timeout
        if error is None:
            self._state.breakers.succeeded(self._node)
        elif isinstance(error, NodeUnreachableError):
            self._state.breakers.failed(self._node)
            self._state.index.drop_node(self._node)
