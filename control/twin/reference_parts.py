"""The plain twin's nodes, links, transfers and sessions: what each holds, and what it can say of itself."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from control.domain.handoff import HandoffMode
from control.domain.performance import decode_step_s, flow_rate_bytes_per_s
from control.domain.routing import Pipeline
from control.domain.topology import Role
from control.twin.scenario import TwinLink, TwinNode
from control.twin.state import WAYS


class Server:
    """Jobs that share a resource evenly, in virtual time."""

    def __init__(self, number: int, job_rate: Callable[[int], float]) -> None:
        self.number, self._job_rate = number, job_rate
        self.virtual = self.updated_s = 0.0
        self.jobs: dict[Any, tuple[float, int]] = {}
        self.alarm = 0

    def advance(self, now_s: float) -> None:
        """Give every job what it has got by now."""
        if self.jobs and now_s > self.updated_s:
            self.virtual += (now_s - self.updated_s) * self._job_rate(len(self.jobs))
        self.updated_s = now_s

    def next_end_s(self) -> float:
        """When the next job ends, as things are now."""
        rate = self._job_rate(len(self.jobs)) if self.jobs else 0.0
        if rate <= 0.0:
            return math.inf
        return self.updated_s + max(0.0, min(self.jobs.values())[0] - self.virtual) / rate


@dataclass(eq=False)
class Kept:
    """A session's prefix on one node."""

    node: "Node | None" = None
    tokens: int = 0
    coming_tokens: int = 0
    transfer: "Transfer | None" = None


@dataclass(eq=False)
class Transfer:
    """KV of one prompt on its way."""

    session: "Session"
    kept: Kept | None
    link: "Link | None"
    source: "Node"
    target: "Node"
    upto_tokens: int
    size_bytes: float
    marked_s: float
    rate_bytes_per_s: float = 0.0
    began_s: float = 0.0
    after: "Transfer | None" = None
    before: "Transfer | None" = None
    is_sent: bool = False
    is_dropped: bool = False


class Node(Server):
    """P, RLD or MD."""

    def __init__(self, number: int, spec: TwinNode) -> None:
        super().__init__(number, lambda batch: 1.0 / decode_step_s(batch, spec.tau0_s, spec.tau1_s))
        self.spec = spec
        self.is_up = True
        self.load = self.reserved = self.active_tokens = self.kept_tokens = 0
        self.order: OrderedDict[int, Kept] = OrderedDict()
        self.queue: deque[Session] = deque()
        self.busy_until_s = [0.0] * spec.lanes

    def has_room(self, tokens: int) -> bool:
        """Whether one more request fits; an empty node takes any."""
        fits = self.reserved < self.spec.slots and self.active_tokens + tokens <= self.spec.capacity_tokens
        return self.reserved == 0 or fits

    def make_room(self) -> None:
        """Evict the least recently used prefixes until the rest fits."""
        while self.active_tokens + self.kept_tokens > self.spec.capacity_tokens and self.order:
            self.forget(next(iter(self.order.values())))

    def forget(self, kept: Kept) -> None:
        """Free a prefix's tokens; what is on its way stays marked."""
        self.order.pop(id(kept), None)
        self.kept_tokens -= kept.tokens
        kept.tokens = 0
        if kept.coming_tokens == 0:
            kept.node = None

    def settle(self, kept: Kept, tokens: int) -> None:
        """A prefix has so many tokens now, or what it had if that was more; it was used last."""
        more = max(0, tokens - kept.tokens)
        kept.tokens += more
        self.kept_tokens += more
        if kept.coming_tokens == 0:
            self.order[id(kept)] = kept
            self.order.move_to_end(id(kept))
        self.make_room()


class Link(Server):
    """A WAN link under a policy."""

    def __init__(self, number: int, spec: TwinLink) -> None:
        super().__init__(number, self._rate)
        self.spec, self.capacity_bytes_per_s = spec, spec.capacity_bytes_per_s
        self.flows = 0
        self.queue: deque[Transfer] = deque()

    def _rate(self, transfers: int) -> float:
        if self.capacity_bytes_per_s <= 0.0:
            return 0.0
        streams = self.spec.streams
        cap = self.spec.flow_cap_bytes_per_s
        return flow_rate_bytes_per_s(self.capacity_bytes_per_s, cap, (transfers - 1) * streams, streams)

    def expected_rate(self) -> float:
        """What one more transfer can expect, as gateways see the link."""
        spec = self.spec
        return flow_rate_bytes_per_s(spec.capacity_bytes_per_s, spec.flow_cap_bytes_per_s, self.flows, spec.streams)


@dataclass(eq=False)
class Session:
    """A session and the one request that it has at a time."""

    number: int
    turn: int
    ways: dict[Role, list[Kept]] = field(
        default_factory=lambda: {role: [Kept() for _ in range(WAYS)] for role in (Role.PREFILL, Role.MAIN)}
    )
    generation: int = 0
    stage: str = "idle"
    pipeline: Pipeline = Pipeline.NONE
    prefill: Node | None = None
    relay: Node | None = None
    main: Node | None = None
    input_tokens: int = 0
    reuse_tokens: int = 0
    output_tokens: int = 0
    made_before: int = 0
    cached_tokens: int = 0
    planned_s: float = 0.0
    transfer: Transfer | None = None
    lost_transfer: bool = False
    relay_state: str = ""
    relay_from: float = 0.0
    relay_made: int = 0
    relay_work: int = 0
    main_state: str = ""
    main_from: float = 0.0
    mode: HandoffMode | None = None
    batches: int = 0
    batch_upto: int | None = None
    caught_up: int = 0
    last_pending: int = 0

    @property
    def need_tokens(self) -> int:
        """Room that it needs on a decode node."""
        return self.input_tokens + self.output_tokens

    def kept_on(self, node: Node) -> Kept | None:
        """What a node keeps of it."""
        return next((kept for kept in self.ways.get(node.spec.role, ()) if kept.node is node), None)

    def claim(self, node: Node) -> Kept | None:
        """A place to note what a node keeps, if need be that of the smallest other one."""
        found = self.kept_on(node)
        if found is not None:
            return found
        free = [kept for kept in self.ways[node.spec.role] if kept.coming_tokens == 0]
        if not free:
            return None
        kept = min(free, key=lambda one: one.tokens)
        if kept.node is not None:
            kept.node.forget(kept)
        kept.node, kept.transfer = node, None
        return kept

    def keep(self, node: Node, tokens: int) -> None:
        """A node has so many of its tokens now."""
        kept = self.claim(node)
        if kept is not None:
            node.settle(kept, tokens)
