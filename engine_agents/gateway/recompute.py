"""How much MD may compute at an extend before the prompt's KV had better be pulled again."""

from control.domain.handoff import recompute_limit_tokens
from engine_agents.gateway.exchange import Exchange
from engine_agents.gateway.node_errors import NodeError, TransferRefusedError
from engine_agents.gateway.planning import Plan


def recompute_limit(x: Exchange, plan: Plan, expected_tokens: int) -> int | None:
    """Tokens of prompt and eager ids that MD may compute where it is expected to lack `expected_tokens`.

    None, no limit: stock engines take none, inside a site nothing is far, and a slow link is worse than computing.
    """
    main, link = plan.main, plan.link
    if main is None or main.is_stock or link is None:
        return None
    setup_s = 2 * link.rtt_s
    transfer_s = x.state.links.predict_s(link, x.config.fleet.kv_bytes_per_token, ()) - setup_s
    # A new lease, then a new pull.
    return recompute_limit_tokens(expected_tokens, x.state.prefill_s_per_token, transfer_s, 2 * setup_s)


def unkept_tokens(x: Exchange, plan: Plan, caught_up_tokens: int) -> int:
    """What MD computed of a last block that is not full, and must compute again: a stock engine keeps whole blocks."""
    if plan.main is None or not plan.main.is_stock:
        return 0
    return (len(plan.prompt) + caught_up_tokens) % x.config.fleet.block_tokens


def forget_evicted(x: Exchange, plan: Plan, error: NodeError) -> None:
    """A node that has lost what it pulled must not count as having it."""
    if isinstance(error, TransferRefusedError):
        x.state.index.forget(error.node, plan.hashes)
