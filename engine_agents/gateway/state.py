"""What the gateway knows of the moment: load of nodes and links, prefixes, leases and the tasks it must end."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple

from control.domain.output_bound import OutputHistory
from control.domain.prefix import PrefixIndex
from control.domain.topology import Node
from engine_agents.gateway.breaker import Breakers
from engine_agents.gateway.cache_lag import CacheLag
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.link_load import LinkLoad
from engine_agents.gateway.link_places import LinkPlaces
from engine_agents.gateway.node_errors import NodeUnreachableError
from engine_agents.gateway.pair_breaker import PairBreakers

INDEX_CAPACITY_BLOCKS = 1_000_000
DEFAULT_PREFILL_S_PER_TOKEN = 0.0
PREFILL_SMOOTHING = 0.2
FIRST_RELAY_HOLD_S = 2.0
RELAY_HOLD_SMOOTHING = 0.1


RelayPool = tuple[str, str, int]
"""Relay nodes that stand in for each other: their site and model, and the policy revision whose ceiling they have."""

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
        self.places = LinkPlaces()
        self.cache_lag = CacheLag()
        self.breakers = Breakers(now)
        self.pairs = PairBreakers(now)
        self.pools_at_ceiling: set[RelayPool] = set()
        self.relay_hold_s = FIRST_RELAY_HOLD_S
        self.outputs = OutputHistory()
        self.requests_in_flight = 0
        self.transfers_in_background = 0
        self.token_mismatches = 0
        self.max_model_lens: dict[str, int] = {}
        self.leases: set[object] = set()
        self.stranded: dict[str, StrandedKv] = {}
        self.fingerprints: dict[str, str] = {}
        self.ends_of_transfers: dict[str, asyncio.Event] = {}
        self.prefill_s_per_token = DEFAULT_PREFILL_S_PER_TOKEN
        self._whole_token_ids: dict[str, set[int]] = {}
        self._assigned: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        self._known_nodes: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def running(self, node: str) -> int:
        """Generations, prefills and pulls of this gateway on a node."""
        return self._work[node]

    def load(self, node: str) -> int:
        """Requests that a node works on or will soon: those in prefill count for the nodes they were planned to use."""
        return max(self._work[node], self._assigned[node])

    def assigned(self, node: Node) -> "_Count":
        """Count a request for a node from its plan on, so that equal requests do not all choose the same one."""
        return _Count(self._assigned, node.name)

    def work_on(self, node: Node) -> "_Work":
        """Count one piece of work on a node for as long as the context lasts, and learn whether the node lives."""
        return _Work(self, node.name)

    def begin_work(self, node: str) -> None:
        """One more piece of work is under way there."""
        self._work[node] += 1

    def end_work(self, node: str, error: BaseException | None) -> None:
        """It has ended, which says whether the node lives."""
        self._work[node] -= 1
        if error is None:
            self.breakers.succeeded(node)
        elif isinstance(error, NodeUnreachableError):
            self.lost(node)

    def lost(self, node: str) -> None:
        """The node makes no progress: leave it alone, and trust in nothing that it held."""
        self.breakers.failed(node)
        self.index.drop_node(node)

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
        """Forget what was known of nodes that left the fleet or moved, and obey the limits of links."""
        links = config.fleet.links
        self.places.set_limits({link.name: config.policy.link(link.name).max_transfers for link in links})
        nodes = {node.name: node.url for node in config.fleet.nodes}
        for name, url in self._known_nodes.items():
            if nodes.get(name) != url:
                self.index.drop_node(name)
                self.breakers.succeeded(name)
                self.pairs.forget(name)
                self.stranded.pop(name, None)
                self.fingerprints.pop(name, None)
        self._known_nodes = nodes
        revisions = {config.revision, config.canary.revision if config.canary else config.revision}
        self.pools_at_ceiling = {pool for pool in self.pools_at_ceiling if pool[2] in revisions}

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
            "link_places": self.places.taken,
            "transfers_in_background": self.transfers_in_background,
            "tasks": len(self._tasks),
            "index_resident_blocks": {name: self.index.resident_blocks(name) for name in self._known_nodes},
            "pools_at_ceiling": sorted({f"{site}/{model}" for site, model, _ in self.pools_at_ceiling}),
            "open_breakers": self.breakers.open_nodes(),
            "open_pairs": self.pairs.snapshot(),
        }


class _Count:
    """Counts one for as long as the context lasts; a class, because a generator would cost several times as much."""

    __slots__ = ("_counter", "_key")

    def __init__(self, counter: Counter[str], key: str) -> None:
        self._counter = counter
        self._key = key

    def __enter__(self) -> None:
        self._counter[self._key] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._counter[self._key] -= 1


class _Work:
    """One piece of work on a node."""

    __slots__ = ("_node", "_state")

    def __init__(self, state: GatewayState, node: str) -> None:
        self._state = state
        self._node = node

    def __enter__(self) -> None:
        self._state.begin_work(self._node)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._state.end_work(self._node, error)
