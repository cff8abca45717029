"""From the moment's state to a routing decision: gathers what the pure rules look at, and lets them decide."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from control.domain.policy import Policy
from control.domain.prefix import PrefixIndex, PrefixMatch
from control.domain.routing import (
    HIT_RULE_OFF,
    NO_LINKS,
    NodeChoice,
    NodeKnobs,
    NodeView,
    Pipeline,
    Reason,
    Route,
    RouteInputs,
    RouteKnobs,
    best_node,
    choose_nodes,
    choose_pipeline,
    fitting,
    link_costs,
    relay_at_ceiling,
)
from control.domain.topology import Link, Node, NodeState, Role
from engine_agents.gateway.exchange import Exchange
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.state import GatewayState


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision with the nodes it names. `prompt` includes what was answered before, after a resume.

    `prefill_cached_tokens` of the prompt are on P as far as the index knows.
    """

    route: Route
    prompt: Prompt
    hashes: tuple[bytes, ...]
    prefill: Node | None
    relay: Node | None
    main: Node | None
    link: Link | None
    prefill_cached_tokens: int

    @property
    def send_tokens(self) -> int:
        """Tokens whose KV has to cross to MD."""
        return self.route.inputs.uncached_tokens


def plan_route(x: Exchange, excluded: Collection[str], *, trust_breakers: bool = True) -> Plan:
    """Decide where a request goes on, now. Nothing is awaited, so the state cannot move meanwhile."""
    prompt = x.current_prompt()
    hashes = prompt.block_hashes(x.config.fleet.block_tokens, x.salt.encode())
    matches = _Matches(x.state.index, hashes)
    prefills = _views(x, Role.PREFILL, matches, excluded, trust_breakers=trust_breakers)
    relays = _views(x, Role.RELAY, matches, excluded, trust_breakers=trust_breakers)
    mains = _views(x, Role.MAIN, matches, excluded, trust_breakers=trust_breakers)
    knobs = node_knobs(x.config.policy)
    choice = choose_nodes(
        len(prompt),
        prefills,
        relays,
        mains,
        knobs,
        blocked=x.state.pairs.blocked(),
        transfer_s=_transfer_s(x, len(prompt), mains),
    )
    if choice.prefill is None:
        return _without_prefill(x, prompt, matches, mains, knobs)
    inputs, link = _inputs(x, prompt, matches, choice)
    route_knobs = _route_knobs(x)
    pipeline, reason = choose_pipeline(inputs, route_knobs)
    x.state.judge_ceiling(
        x.relay_pool(x.config.node(choice.prefill).site),
        is_at_ceiling=relay_at_ceiling(
            inputs.relay_utilization, inputs.relay_was_at_ceiling, route_knobs.relay_load_ceiling
        ),
    )
    return _plan(x, Route(pipeline, reason, choice, link.name if link else "", inputs), prompt, matches, link)


def another_node(x: Exchange, plan: Plan, role: Role, site: str | None = None) -> Node | None:
    """A node of the role that has not failed this request, preferably with its prefix; None if there is none."""
    views = _views(x, role, _Matches(x.state.index, plan.hashes), x.excluded, trust_breakers=True)
    beside: Sequence[NodeView] = [view for view in views if site is None or view.site == site]
    tokens, costs = len(plan.prompt), None
    if plan.prefill and role is not Role.PREFILL:
        beside = fitting(beside, x.state.fingerprints.get(plan.prefill.name, ""))
        costs = link_costs(plan.prefill.site, beside, _transfer_s(x, tokens, beside))
    best = best_node(tokens, beside, node_knobs(x.config.policy), costs)
    return x.config.node(best.name) if best else None


def with_nodes(x: Exchange, plan: Plan, prefill: Node, main: Node) -> Plan:
    """The same plan with another P or MD, and what that changes in its inputs."""
    if (prefill, main) == (plan.prefill, plan.main):
        return plan
    choice = replace(plan.route.nodes, prefill=prefill.name, main=main.name)
    inputs, link = _inputs(x, plan.prompt, _Matches(x.state.index, plan.hashes), choice)
    route = replace(plan.route, nodes=choice, link=link.name if link else "", inputs=inputs)
    return replace(plan, route=route, prefill=prefill, main=main, link=link)


def relay_utilization(state: GatewayState, relays: Sequence[Node]) -> float:
    """Generations on relay nodes / their slots; 0 where there are none."""
    running = slots = 0
    for node in relays:
        running += state.running(node.name)
        slots += node.slots
    return running / slots if slots else 0.0


def node_knobs(policy: Policy) -> NodeKnobs:
    """What of the policy the choice of nodes obeys."""
    return NodeKnobs(policy.routing.affinity_weight, policy.routing.max_load_skew)


class _Matches(dict[str, PrefixMatch]):
    """How much of a prompt each node has or is getting, looked up once per node."""

    def __init__(self, index: PrefixIndex, hashes: tuple[bytes, ...]) -> None:
        self._index = index
        self.hashes = hashes

    def __missing__(self, node: str) -> PrefixMatch:
        match = self[node] = self._index.match(node, self.hashes)
        return match


def _views(
    x: Exchange, role: Role, matches: _Matches, excluded: Collection[str], *, trust_breakers: bool
) -> list[NodeView]:
    state, block_tokens = x.state, x.config.fleet.block_tokens
    needs_grammar = bool(x.request.grammar_by) and role is not Role.PREFILL  # which decodes nothing
    views = []
    for node in x.config.nodes(role, x.request.model):
        name = node.name
        resident_blocks, in_flight_blocks = matches[name]
        is_eligible = (
            node.state is NodeState.READY
            and name not in excluded
            and (node.is_stock or not needs_grammar)
            and (not trust_breakers or state.breakers.allows(name))
        )
        matched_tokens = (resident_blocks + in_flight_blocks) * block_tokens
        fingerprint = state.fingerprints.get(name, "")
        views.append(NodeView(name, node.site, is_eligible, state.load(name), node.slots, matched_tokens, fingerprint))
    return views


def _transfer_s(x: Exchange, tokens: int, mains: Sequence[NodeView]) -> Mapping[tuple[str, str], float]:
    """How long the KV of so many tokens would need now from each site to those of these nodes, if ever."""
    targets = {view.site for view in mains}
    if len(targets) <= 1:
        return NO_LINKS
    size_bytes = tokens * x.config.fleet.kv_bytes_per_token
    seconds = {}
    for source in {site.name for site in x.config.fleet.sites}:
        for target in targets - {source}:
            link = x.config.link(source, target)
            seconds[source, target] = math.inf if link is None else x.state.links.predict_s(link, size_bytes, ())
    return seconds


def _inputs(x: Exchange, prompt: Prompt, matches: _Matches, choice: NodeChoice) -> tuple[RouteInputs, Link | None]:
    state, fleet, input_tokens = x.state, x.config.fleet, len(prompt)
    site = x.config.node(choice.prefill).site if choice.prefill else ""
    link, resident, in_flight, transfer_s = None, 0, 0, 0.0
    if choice.main is not None:
        match = matches[choice.main]
        resident, in_flight = match.resident_blocks * fleet.block_tokens, match.in_flight_blocks * fleet.block_tokens
        if not in_flight:
            resident += _tail_tokens(x, prompt, matches.hashes[: match.resident_blocks], choice.main)
        link = x.config.link(site, x.config.node(choice.main).site)
        known = match.resident_blocks + match.in_flight_blocks
        ahead = state.index.transfers_covering(choice.main, matches.hashes[match.resident_blocks : known])
        send_bytes = (input_tokens - resident - in_flight) * fleet.kv_bytes_per_token
        transfer_s = state.links.predict_s(link, send_bytes, ahead)
    prefill_tokens = input_tokens - _cached_tokens(x, matches, choice.prefill)
    relays = [node for node in x.config.nodes(Role.RELAY, x.request.model) if node.site == site]
    inputs = RouteInputs(
        input_tokens=input_tokens,
        resident_tokens=resident,
        in_flight_tokens=in_flight,
        max_output_tokens=max(1, x.bound.tokens - x.commit.output_tokens),
        predicted_transfer_s=transfer_s,
        predicted_direct_ttft_s=prefill_tokens * state.prefill_s_per_token + transfer_s,
        relay_utilization=relay_utilization(state, relays),
        relay_was_at_ceiling=x.relay_pool(site) in state.pools_at_ceiling,
        has_main=choice.main is not None,
        has_relay=choice.relay is not None,
        parameter_forces_direct=bool(x.request.forced_direct_by),
    )
    return inputs, link


def _tail_tokens(x: Exchange, prompt: Prompt, resident: tuple[bytes, ...], main: str) -> int:
    """What MD holds of the first block that it has not: the tail of the conversation's last turn."""
    following = prompt.block(len(resident), x.config.fleet.block_tokens)
    return x.state.index.tail_tokens(main, resident, following, x.salt.encode())


def _without_prefill(
    x: Exchange, prompt: Prompt, matches: _Matches, mains: Sequence[NodeView], knobs: NodeKnobs
) -> Plan:
    """No prefill node takes work: MD computes the prompt itself, slowly, rather than the request fail."""
    best = best_node(len(prompt), mains, knobs)
    choice = NodeChoice(None, None, best.name if best else None)
    inputs, _ = _inputs(x, prompt, matches, choice)
    pipeline = Pipeline.DIRECT if best else Pipeline.NONE
    return _plan(x, Route(pipeline, Reason.NO_PREFILL, choice, "", inputs), prompt, matches, None)


def _cached_tokens(x: Exchange, matches: _Matches, prefill: str | None) -> int:
    return matches[prefill].resident_blocks * x.config.fleet.block_tokens if prefill else 0


def _plan(x: Exchange, route: Route, prompt: Prompt, matches: _Matches, link: Link | None) -> Plan:
    nodes, node = route.nodes, x.config.node
    return Plan(
        route,
        prompt,
        matches.hashes,
        prefill=node(nodes.prefill) if nodes.prefill else None,
        relay=node(nodes.relay) if nodes.relay else None,
        main=node(nodes.main) if nodes.main else None,
        link=link,
        prefill_cached_tokens=_cached_tokens(x, matches, nodes.prefill),
    )


def _route_knobs(x: Exchange) -> RouteKnobs:
    policy = x.config.policy
    routing, outlier = policy.routing, policy.outlier
    return RouteKnobs(
        relay_when_transfer_exceeds_s=routing.relay_when_transfer_exceeds_s,
        direct_hit_rate=HIT_RULE_OFF if routing.direct_hit_rate is None else routing.direct_hit_rate,
        relay_load_ceiling=routing.relay_load_ceiling,
        ttft_limit_s=policy.service_class(x.headers.caller.service_class).ttft_p99_s,
        outlier_enabled=outlier.enabled,
        outlier_min_uncached_tokens=outlier.min_uncached_tokens,
        outlier_max_output_tokens=outlier.max_output_tokens,
        relay_may_serve_alone=routing.relay_may_serve_alone,
    )
