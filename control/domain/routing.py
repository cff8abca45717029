"""Where a request goes: which nodes, which pipeline, and the reason in words that can be shown.

`choose_pipeline` and `node_score` take and return scalars only, so that the twin can compile them and can never
disagree with the gateway.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from control.domain.compiled import compiled


class Pipeline(IntEnum):
    """How a request is served. NONE: it is not, see the reason."""

    NONE = 0
    DIRECT = 1
    RELAY = 2
    OUTLIER = 3

    @cached_property
    def wire(self) -> str:
        """The name in records, metrics and pages."""
        return self.name.lower()


class Reason(IntEnum):
    """Why that pipeline; each is the name of the row of the decision table that applied."""

    NO_MAIN = 1
    NO_MAIN_RELAY_ALONE = 2
    OUTLIER_SHORT_OUTPUT = 3
    TRANSFER_SHORT = 4
    HIT_RATE_HIGH = 5
    RELAY_AT_CEILING = 6
    RELAY_AT_CEILING_SLO_MISSED = 7
    PARAMETER = 8
    NO_RELAY = 9
    TRANSFER_LONG = 10
    NO_PREFILL = 11

    @cached_property
    def wire(self) -> str:
        """The name in records, metrics and pages."""
        return self.name.lower()


class RouteInputs(NamedTuple):
    """What the decision looked at; kept with the request."""

    input_tokens: int
    resident_tokens: int
    in_flight_tokens: int
    max_output_tokens: int
    predicted_transfer_s: float
    predicted_direct_ttft_s: float
    relay_utilization: float
    relay_was_at_ceiling: bool
    has_main: bool
    has_relay: bool
    parameter_forces_direct: bool

    @property
    def uncached_tokens(self) -> int:
        """Tokens whose KV must cross: u = N − d − f."""
        return self.input_tokens - self.resident_tokens - self.in_flight_tokens

    @property
    def drc_hit_rate(self) -> float:
        """Share of the prompt that MD has or is getting."""
        return (self.resident_tokens + self.in_flight_tokens) / self.input_tokens if self.input_tokens else 0.0


class RouteKnobs(NamedTuple):
    """The part of a policy that the decision obeys. `direct_hit_rate` above 1 switches that rule off."""

    relay_when_transfer_exceeds_s: float
    direct_hit_rate: float
    relay_load_ceiling: float
    ttft_limit_s: float
    outlier_enabled: bool
    outlier_min_uncached_tokens: int
    outlier_max_output_tokens: int
    relay_may_serve_alone: bool


HIT_RULE_OFF = 2.0
CEILING_HYSTERESIS = 0.1


@compiled
def relay_at_ceiling(utilization: float, was_at_ceiling: bool, ceiling: float) -> bool:
    """Whether the relay pool takes no more; once it is so, it stays so until load has fallen 0.1 below."""
    if was_at_ceiling:
        return utilization > ceiling - CEILING_HYSTERESIS
    return utilization >= ceiling


@compiled
def choose_pipeline(inputs: RouteInputs, knobs: RouteKnobs) -> tuple[Pipeline, Reason]:
    """The first row of the decision table (ARCHITECTURE.md, "Which pipeline") that applies."""
    known = inputs.resident_tokens + inputs.in_flight_tokens
    uncached = inputs.input_tokens - known
    full = relay_at_ceiling(inputs.relay_utilization, inputs.relay_was_at_ceiling, knobs.relay_load_ceiling)
    if not inputs.has_main:
        if knobs.relay_may_serve_alone and inputs.has_relay and not full:
            return Pipeline.OUTLIER, Reason.NO_MAIN_RELAY_ALONE
        return Pipeline.NONE, Reason.NO_MAIN
    if (
        knobs.outlier_enabled
        and inputs.has_relay
        and not full
        and uncached >= knobs.outlier_min_uncached_tokens
        and inputs.max_output_tokens <= knobs.outlier_max_output_tokens
    ):
        return Pipeline.OUTLIER, Reason.OUTLIER_SHORT_OUTPUT
    if inputs.predicted_transfer_s <= knobs.relay_when_transfer_exceeds_s:
        return Pipeline.DIRECT, Reason.TRANSFER_SHORT
    if known >= knobs.direct_hit_rate * inputs.input_tokens:
        return Pipeline.DIRECT, Reason.HIT_RATE_HIGH
    if inputs.parameter_forces_direct:
        return Pipeline.DIRECT, Reason.PARAMETER
    if not inputs.has_relay:
        return Pipeline.DIRECT, Reason.NO_RELAY
    if full:
        if inputs.predicted_direct_ttft_s <= knobs.ttft_limit_s:
            return Pipeline.DIRECT, Reason.RELAY_AT_CEILING
        return Pipeline.NONE, Reason.RELAY_AT_CEILING_SLO_MISSED
    return Pipeline.RELAY, Reason.TRANSFER_LONG


class NodeView(NamedTuple):
    """A node as the chooser sees it now. `matched_tokens` of the prompt are on it or on their way to it.

    KV fits into nodes of the same `fingerprint` only; an empty one is not known, and fits all.
    """

    name: str
    site: str
    is_eligible: bool
    running: int
    slots: int
    matched_tokens: int
    fingerprint: str = ""


class NodeKnobs(NamedTuple):
    """How much prefix affinity counts against load, and the load skew from which it counts no more."""

    affinity_weight: float
    max_load_skew: float


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The chosen names; None where no node of that role can take the request."""

    prefill: str | None
    relay: str | None
    main: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """A routing decision: a value that is stored with the request and shown."""

    pipeline: Pipeline
    reason: Reason
    nodes: NodeChoice
    link: str
    inputs: RouteInputs


NO_LINKS: Mapping[tuple[str, str], float] = {}


def choose_nodes(
    input_tokens: int,
    prefill: Sequence[NodeView],
    relay: Sequence[NodeView],
    main: Sequence[NodeView],
    knobs: NodeKnobs,
    *,
    blocked: Collection[tuple[str, str]] = (),
    transfer_s: Mapping[tuple[str, str], float] = NO_LINKS,
) -> NodeChoice:
    """Filter, score, pick, for each role; the relay node stands at the prefill node's site, KV reaches it directly.

    `blocked` are pairs of prefill and main between which transfers break; where only such are left, they are tried.
    `transfer_s` says, by the sites of prefill and main, how long the whole prompt's KV would need now.
    """
    chosen_prefill = best_node(input_tokens, prefill, knobs)
    if chosen_prefill is None:
        return NodeChoice(None, None, None)
    site = chosen_prefill.site
    beside = [view for view in fitting(relay, chosen_prefill.fingerprint) if view.site == site]
    chosen_relay = best_node(input_tokens, beside, knobs)
    mains = fitting(main, chosen_prefill.fingerprint)
    costs = link_costs(site, mains, transfer_s)
    chosen_main = None
    if blocked:
        open_mains = [view for view in mains if (chosen_prefill.name, view.name) not in blocked]
        chosen_main = best_node(input_tokens, open_mains, knobs, costs)
    chosen_main = chosen_main or best_node(input_tokens, mains, knobs, costs)
    return NodeChoice(
        chosen_prefill.name,
        chosen_relay.name if chosen_relay else None,
        chosen_main.name if chosen_main else None,
    )


def fitting(views: Sequence[NodeView], fingerprint: str) -> Sequence[NodeView]:
    """The nodes that can read KV of a fingerprint, as far as anybody knows."""
    if not fingerprint:
        return views
    return [view for view in views if view.fingerprint in {"", fingerprint}]


def link_costs(
    source: str, views: Sequence[NodeView], transfer_s: Mapping[tuple[str, str], float]
) -> Mapping[str, float]:
    """What the way from a site counts against each node's site; nothing where all stand at one."""
    sites = {view.site for view in views if view.is_eligible}
    if len(sites) <= 1:
        return {}
    seconds = {site: transfer_s.get((source, site), 0.0) for site in sites}
    shortest_s = min(seconds.values())
    return {site: link_cost(site_s, shortest_s) for site, site_s in seconds.items()}


def best_node(
    input_tokens: int, views: Sequence[NodeView], knobs: NodeKnobs, costs: Mapping[str, float] | None = None
) -> NodeView | None:
    """The eligible node of the highest score; the earlier one of equals, so that a test can say which.

    `costs` count against nodes by their site.
    """
    eligible = [view for view in views if view.is_eligible and view.slots > 0]
    if len(eligible) <= 1:
        return eligible[0] if eligible else None
    mean_load = 0.0
    for view in eligible:
        mean_load += view.running / view.slots
    mean_load /= len(eligible)

    def score(view: NodeView) -> float:
        own = node_score(view.running / view.slots, view.matched_tokens, input_tokens, mean_load, knobs)
        return own - costs.get(view.site, 0.0) if costs else own

    return max(eligible, key=score)


@compiled
def link_cost(transfer_s: float, shortest_s: float) -> float:
    """How much slower a way is than the shortest: 0 for that itself, 0.5 where it takes twice as long, 1 at most.

    On the scale of a load: a node behind a way twice as long is chosen while it is half a pool's slots less busy.
    """
    return 1.0 - shortest_s / transfer_s if transfer_s > shortest_s else 0.0


@compiled
def node_score(load: float, matched_tokens: int, input_tokens: int, mean_load: float, knobs: NodeKnobs) -> float:
    """Affinity minus load (running / slots); a node far busier than its pool gets no affinity, so a hot one cools."""
    is_hot = load > knobs.max_load_skew * mean_load and load >= 1.0
    affinity = 0.0 if is_hot else matched_tokens / max(1, input_tokens)
    return knobs.affinity_weight * affinity - load
