"""Turns a request away with what stands in its way, and when that will be gone."""

from control.domain.routing import Reason
from control.domain.shedding import direct_wait_s, relay_wait_s, retry_after_s
from control.domain.topology import Role
from engine_agents.gateway.errors import RefusalError, unavailable
from engine_agents.gateway.exchange import Exchange
from engine_agents.gateway.planning import Plan

_WORDS = {
    Reason.NO_MAIN: "No main decode node can take the request.",
    Reason.NO_PREFILL: "No node can take the request.",
    Reason.RELAY_AT_CEILING_SLO_MISSED: "Relay decode is full, and main decode alone would miss the objective.",
}


def shed(x: Exchange, plan: Plan) -> RefusalError:
    """The 503 of a plan that serves nothing."""
    reason = plan.route.reason
    waits_s = _full_pool_waits_s(x, plan) if reason is Reason.RELAY_AT_CEILING_SLO_MISSED else _lost_nodes_waits_s(x)
    message = _WORDS.get(reason, "The request cannot be served now.")
    return unavailable(message, reason.wire, retry_after_s(waits_s))


def _full_pool_waits_s(x: Exchange, plan: Plan) -> list[float]:
    """Until the relay pool has room, and until the direct way is fast enough."""
    policy, state = x.config.policy, x.state
    site = plan.prefill.site if plan.prefill else ""
    pool = [node for node in x.config.nodes(Role.RELAY, x.request.model) if node.site == site]
    running, slots = sum(state.running(node.name) for node in pool), sum(node.slots for node in pool)
    limit_s = policy.service_class(x.headers.caller.service_class).ttft_p99_s
    return [
        relay_wait_s(running, slots, policy.routing.relay_load_ceiling, state.relay_hold_s),
        direct_wait_s(plan.route.inputs.predicted_direct_ttft_s, limit_s),
    ]


def _lost_nodes_waits_s(x: Exchange) -> list[float]:
    """Until each node that is left alone now is tried again."""
    nodes = (node.name for role in Role for node in x.config.nodes(role, x.request.model))
    return [wait_s for name in nodes if (wait_s := x.state.breakers.retry_in_s(name)) > 0]
