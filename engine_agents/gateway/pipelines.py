"""Runs what was decided for a request, and decides anew when a node fails under it."""

import asyncio

from control.domain.commit import Side
from control.domain.prefix import tail_of
from control.domain.routing import Pipeline
from control.domain.topology import Node
from engine_agents.gateway.decoding import decode_to_end
from engine_agents.gateway.errors import failed_upstream, invalid, unavailable
from engine_agents.gateway.exchange import Exchange, note_failure
from engine_agents.gateway.handoff import run_relay
from engine_agents.gateway.node_errors import NodeBusyError, NodeError, NodeRefusedError
from engine_agents.gateway.planning import Plan, plan_route
from engine_agents.gateway.shedding import shed
from engine_agents.gateway.timeline import Stage
from engine_agents.gateway.transfers import Transfer, consumer_params, take_lease

MAX_FRUITLESS_ATTEMPTS = 4
RETRY_PAUSE_S = 0.25
_BAD_INPUT = 400


async def serve(x: Exchange) -> None:
    """Answer a request to its end.

    A node that fails costs the client a pause: the answer goes on elsewhere from the ids committed so far.

    Raises:
        RefusalError: the request cannot be answered, or not to its end.
    """
    plan = plan_route(x, x.excluded)
    x.facts.first_route = plan.route
    x.facts.predicted_prefix_tokens = plan.prefill_cached_tokens
    fruitless = 0
    while True:
        answered = x.commit.output_tokens
        try:
            await _run(x, plan)
        except NodeError as error:
            fruitless = fruitless + 1 if x.commit.output_tokens == answered else 0
            if fruitless >= MAX_FRUITLESS_ATTEMPTS:
                raise failed_upstream("The engines failed, and nothing is left to try.") from error
            plan = await _plan_anew(x, error, fruitless)
        else:
            _remember_answer(x)
            return


async def _plan_anew(x: Exchange, error: NodeError, fruitless: int) -> Plan:
    """Go on without the node that failed; where that leaves none, try all of them again after a pause."""
    has_output = x.commit.output_tokens > 0
    if isinstance(error, NodeRefusedError) and error.status == _BAD_INPUT and not has_output:
        raise invalid(error.message)
    note_failure(x, error)
    if has_output and x.request.grammar_by:
        # Another engine would begin the grammar anew in the middle of the answer.
        raise failed_upstream(
            f"The node failed in the middle of an answer under `{x.request.grammar_by}`, which no other node can "
            "continue; send the request again."
        ) from error
    plan = plan_route(x, x.excluded)
    is_short = plan.main is None or plan.prefill is None
    if is_short and isinstance(error, NodeBusyError) and not has_output:
        raise unavailable("Every node that could take the request is busy.", "nodes_busy", error.retry_after_s or 1)
    if plan.route.pipeline is Pipeline.NONE:
        await asyncio.sleep(RETRY_PAUSE_S * 2**fruitless)
        x.excluded.clear()
        plan = plan_route(x, (), trust_breakers=False)
    return plan


async def _run(x: Exchange, plan: Plan) -> None:
    match plan.route.pipeline:
        case Pipeline.DIRECT:
            assert plan.main is not None, "a DIRECT plan has a main node"  # noqa: S101
            with x.state.assigned(plan.main):
                await _run_direct(x, plan, plan.main)
        case Pipeline.RELAY:
            await run_relay(x, plan)
        case Pipeline.OUTLIER:
            assert plan.relay is not None, "an OUTLIER plan has a relay"  # noqa: S101
            with x.state.assigned(plan.relay):
                await _run_outlier(x, plan, plan.relay)
        case Pipeline.NONE:
            raise shed(x, plan)


async def _run_direct(x: Exchange, plan: Plan, main: Node) -> None:
    """P prefills, MD pulls what it lacks and decodes to the end."""
    turn = x.commit.open(Side.MAIN)
    assert turn is not None, "an unfinished answer can be continued"  # noqa: S101
    x.facts.main_node = main.name
    if plan.prefill is None:
        start_s = x.timeline.elapsed_s
        try:
            await decode_to_end(x, turn, main, plan.prompt)
        finally:
            x.timeline.add(Stage.MAIN_DECODE, start_s)
        return
    transfer = Transfer(x.state, plan, x.config.fleet.kv_bytes_per_token)
    try:
        await transfer.may_start(x)
        with await take_lease(x, plan.prefill, plan.prompt, is_first=True) as held:
            x.state.index.add_resident(plan.prefill.name, plan.hashes)
            transfer.prefilled()
            params = consumer_params(
                held.lease, plan.link, transfer.transfer_id, plan.route.pipeline.wire, x.headers.caller.service_class
            )
            start_s = x.timeline.elapsed_s
            first_s = start_s

            def on_first() -> None:
                nonlocal first_s
                first_s = x.timeline.elapsed_s
                held.used()
                transfer.arrived()
                x.note_arrival()
                x.timeline.add(Stage.KV_WAN if plan.link else Stage.KV_RDMA, start_s, first_s)

            try:
                work = await decode_to_end(x, turn, main, plan.prompt, kv_params=params, on_first=on_first)
            except NodeError as error:
                transfer.broke(error)
                raise
            x.timeline.add(Stage.MAIN_DECODE, first_s)
            x.note_queue(start_s + (work.pull_s or 0.0), work.queued_s)
            x.note_transfer(plan.link, plan.route.pipeline.wire, work, first_s - start_s)
    finally:
        transfer.dropped()


async def _run_outlier(x: Exchange, plan: Plan, relay: Node) -> None:
    """P prefills, RLD decodes to the end; nothing crosses the WAN."""
    turn = x.commit.open(Side.RELAY)
    assert plan.prefill is not None, "an OUTLIER plan has a prefill node"  # noqa: S101
    assert turn is not None, "an unfinished answer can be continued"  # noqa: S101
    x.facts.relay_node = relay.name
    with await take_lease(x, plan.prefill, plan.prompt, is_first=True) as held:
        x.state.index.add_resident(plan.prefill.name, plan.hashes)
        start_s = first_s = x.timeline.elapsed_s

        def on_first() -> None:
            nonlocal first_s
            first_s = x.timeline.elapsed_s
            held.used()
            x.timeline.add(Stage.KV_RDMA, start_s, first_s)

        params = consumer_params(held.lease, None, "", plan.route.pipeline.wire, x.headers.caller.service_class)
        work = await decode_to_end(x, turn, relay, plan.prompt, kv_params=params, on_first=on_first)
        x.note_queue(start_s + (work.pull_s or 0.0), work.queued_s)
        x.state.relay_held(x.timeline.elapsed_s - first_s)
        x.timeline.add(Stage.RELAY_DECODE, first_s)


def _remember_answer(x: Exchange) -> None:
    """The node that decoded to the end holds the answer's KV as well, all but the last token's."""
    main = x.facts.main_node
    if main and x.commit.output_tokens > x.commit.eager_tokens:
        salt, index = x.salt.encode(), x.state.index
        blocks, rest = x.prompt.blocks_with(x.commit.token_ids[:-1], x.config.fleet.block_tokens, salt)
        if not index.holds(main, blocks):  # as where the transfer has just brought all of them
            index.add_resident(main, blocks)
        if not x.config.node(main).is_stock:
            index.add_tail(main, tail_of(blocks, rest, salt))
