"""What is simulated: a fleet, its policy, its physics, load and faults; and how that becomes the kernel's arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from control.domain.handoff import HandoffKnobs, HandoffMode
from control.domain.policy import Policy
from control.domain.policy_fields import DEFAULT_CLASS
from control.domain.routing import HIT_RULE_OFF, NodeKnobs, RouteKnobs
from control.domain.topology import Role
from control.twin import state
from control.twin.state import NONE, WAYS, FaultKind, NodeRole, Physics, Rules, World

_ROLES = {Role.PREFILL: NodeRole.PREFILL, Role.RELAY: NodeRole.RELAY, Role.MAIN: NodeRole.MAIN}


class Workload(NamedTuple):
    """Sessions in the order of their starts; `turns` of session i are those from `first_turn[i]` up to the next's."""

    starts_s: npt.NDArray[np.float64]
    first_turn: npt.NDArray[np.int64]
    turns: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TwinNode:
    """One node. P has a prefill speed, the other two a decode step τ0 + τ1·B; capacity is KV, in tokens.

    `lanes` are engines of a P node that share its queue and its prefix cache.
    """

    role: Role
    site: str
    slots: int = 64
    lanes: int = 1
    capacity_tokens: int = 10_000_000
    tokens_per_s: float = 15_000.0
    attention_tokens: float = 1e9
    chunk_tokens: int = 8192
    tail_chunk_min_tokens: int = 512
    floor_s: float = 0.0
    tau0_s: float = 0.02
    tau1_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TwinLink:
    """One directed link under a policy; a flow cap of 0 is none."""

    source: str
    target: str
    capacity_bytes_per_s: float
    rtt_s: float
    flow_cap_bytes_per_s: float = 0.0
    streams: int = 1
    max_transfers: int = 64


@dataclass(frozen=True, slots=True)
class Fault:
    """A node (by its place in the scenario) that goes or comes back, or a link that carries a share of its rate."""

    at_s: float
    kind: FaultKind
    target: int
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run depends on. The two flags make the twin worse than the product, to show what they are for."""

    nodes: tuple[TwinNode, ...]
    links: tuple[TwinLink, ...]
    policy: Policy
    physics: Physics
    workload: Workload
    faults: tuple[Fault, ...] = ()
    service_class: str = DEFAULT_CLASS
    counts_in_flight: bool = True
    finishes_transfers: bool = True
    until_s: float = math.inf
    labels: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def site_names(self) -> list[str]:
        """All sites, in the order in which nodes name them."""
        return list(dict.fromkeys(node.site for node in self.nodes))


def rules_of(scenario: Scenario) -> Rules:
    """The policy as the kernel obeys it."""
    policy = scenario.policy
    routing, outlier, handoff = policy.routing, policy.outlier, policy.handoff
    return Rules(
        route=RouteKnobs(
            relay_when_transfer_exceeds_s=float(routing.relay_when_transfer_exceeds_s),
            direct_hit_rate=float(HIT_RULE_OFF if routing.direct_hit_rate is None else routing.direct_hit_rate),
            relay_load_ceiling=float(routing.relay_load_ceiling),
            ttft_limit_s=float(policy.service_class(scenario.service_class).ttft_p99_s),
            outlier_enabled=outlier.enabled,
            outlier_min_uncached_tokens=outlier.min_uncached_tokens,
            outlier_max_output_tokens=outlier.max_output_tokens,
            relay_may_serve_alone=routing.relay_may_serve_alone,
        ),
        nodes=NodeKnobs(float(routing.affinity_weight), float(routing.max_load_skew)),
        handoff=HandoffKnobs(
            HandoffMode[handoff.mode.name], handoff.one_shot_max_tokens, handoff.catch_up_batch_tokens
        ),
        physics=scenario.physics,
        relay_max_tokens=handoff.relay_max_tokens,
        counts_in_flight=scenario.counts_in_flight,
        finishes_transfers=scenario.finishes_transfers,
        until_s=float(scenario.until_s),
    )


def in_kernel_order(nodes: Sequence[TwinNode]) -> list[int]:
    """The scenario's nodes by role, as the kernel numbers them."""
    return sorted(range(len(nodes)), key=lambda place: (_ROLES[nodes[place].role], place))


def build_world(scenario: Scenario) -> World:
    """Arrays for one run; the kernel changes them, so each run needs its own."""
    order = in_kernel_order(scenario.nodes)
    sites = {name: number for number, name in enumerate(scenario.site_names)}
    nodes = [scenario.nodes[place] for place in order]
    load = scenario.workload
    sessions, turns = load.starts_s.size, load.turns.size
    servers = len(nodes) + len(scenario.links)
    deaths = sum(fault.kind is FaultKind.NODE_DOWN for fault in scenario.faults)
    width = max([1, *(node.slots for node in nodes), *(min(link.max_transfers, turns) for link in scenario.links)])
    leaves = 1 << max(1, (servers - 1).bit_length())
    kept = np.zeros(sessions * 2 * WAYS, state.KEPT)
    kept["node"] = kept["transfer"] = kept["older"] = kept["newer"] = NONE
    clock = np.zeros(1, state.CLOCK)
    clock["free_transfer"] = NONE
    requests = np.zeros(sessions, state.REQUEST)
    requests["turn"] = load.first_turn[:-1]
    requests["transfer"] = NONE
    return World(
        clock=clock,
        turns=load.turns,
        first_turn=load.first_turn,
        starts_s=load.starts_s,
        servers=_servers(nodes, scenario.links),
        jobs=np.zeros((servers, width), np.int64),
        ties=np.zeros((servers, width), np.int64),
        finishes=np.zeros((servers, width), np.float64),
        alarms=np.full(2 * leaves, np.inf),
        nodes=_nodes(nodes, sites),
        busy_until_s=np.zeros((len(nodes), max([1, *(node.lanes for node in nodes)]))),
        links=_links(scenario.links),
        link_between=_link_between(scenario.links, sites),
        sites=_sites(nodes, sites),
        pools=_pools(nodes),
        requests=requests,
        waiting=np.full((2, sessions), NONE, np.int64),
        kept=kept,
        transfers=np.zeros(turns + deaths * sessions + 1, state.TRANSFER),
        faults=_faults(scenario.faults, order),
        # Each attempt schedules at most this much; memory is taken only for what is used at a time.
        later=np.zeros(5 * (turns + deaths * sessions) + len(scenario.faults) + 1, state.LATER),
        results=np.zeros(turns, state.RESULT),
    )


def _servers(nodes: Sequence[TwinNode], links: Sequence[TwinLink]) -> npt.NDArray[Any]:
    rows = np.zeros(len(nodes) + len(links), state.SERVER)
    for row, node in zip(rows, nodes, strict=False):
        row["tau0_s"], row["tau1_s"] = node.tau0_s, node.tau1_s
    for row, link in zip(rows[len(nodes) :], links, strict=True):
        row["is_link"] = 1
        row["capacity_bytes_per_s"] = link.capacity_bytes_per_s
        row["flow_cap_bytes_per_s"] = link.flow_cap_bytes_per_s
        row["streams"] = link.streams
    return rows


def _nodes(nodes: Sequence[TwinNode], sites: dict[str, int]) -> npt.NDArray[Any]:
    rows = np.zeros(len(nodes), state.NODE)
    for row, node in zip(rows, nodes, strict=True):
        row["role"], row["site"], row["is_up"] = _ROLES[node.role], sites[node.site], 1
        row["oldest"] = row["newest"] = row["first_waiting"] = row["last_waiting"] = NONE
        for name in (
            "slots",
            "lanes",
            "capacity_tokens",
            "chunk_tokens",
            "tail_chunk_min_tokens",
            "tokens_per_s",
            "attention_tokens",
            "floor_s",
        ):
            row[name] = getattr(node, name)
    return rows


def _links(links: Sequence[TwinLink]) -> npt.NDArray[Any]:
    rows = np.zeros(len(links), state.LINK)
    for row, link in zip(rows, links, strict=True):
        row["known_bytes_per_s"] = row["nominal_bytes_per_s"] = link.capacity_bytes_per_s
        row["first_waiting"] = row["last_waiting"] = NONE
        for name in ("rtt_s", "flow_cap_bytes_per_s", "streams", "max_transfers"):
            row[name] = getattr(link, name)
    return rows


def _link_between(links: Sequence[TwinLink], sites: dict[str, int]) -> npt.NDArray[np.int64]:
    between = np.full((len(sites), len(sites)), NONE, np.int64)
    for number, link in enumerate(links):
        if link.source in sites and link.target in sites:
            between[sites[link.source], sites[link.target]] = number
    return between


def _sites(nodes: Sequence[TwinNode], sites: dict[str, int]) -> npt.NDArray[Any]:
    rows = np.zeros(len(sites), state.SITE)
    for node in nodes:
        if node.role is Role.RELAY:
            rows[sites[node.site]]["relay_slots"] += node.slots
    return rows


def _pools(nodes: Sequence[TwinNode]) -> npt.NDArray[np.int64]:
    """First node and end of each role."""
    pools = np.zeros((len(NodeRole), 2), np.int64)
    for role in NodeRole:
        places = [place for place, node in enumerate(nodes) if _ROLES[node.role] is role]
        if places:
            pools[role] = places[0], places[-1] + 1
    return pools


def _faults(faults: Sequence[Fault], order: Sequence[int]) -> npt.NDArray[Any]:
    rows = np.zeros(len(faults), state.FAULT)
    for row, fault in zip(rows, faults, strict=True):
        target = fault.target if fault.kind is FaultKind.LINK_RATE else order.index(fault.target)
        row["at_s"], row["kind"], row["target"], row["value"] = fault.at_s, fault.kind, target, fault.value
    return rows
