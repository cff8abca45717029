"""RELAY: relay decode at once, KV to MD meanwhile, then the handoff by token ids, in one shot or by catching up.

The relay's stream commits its tokens itself; one loop per request takes what else happens in three tasks (that
stream, the transfer, a catch-up batch) as events, so that every decision sees them in one order. Leaving it early by
cancellation, as when the client goes, drops the transfer; an answer that merely ends early on the relay lets it finish.
"""

import asyncio
import logging
from dataclasses import replace

from control.domain.commit import Side, Turn
from control.domain.handoff import HandoffKnobs, HandoffMode, HandoffStep, choose_handoff_mode, next_handoff_step
from control.domain.topology import Node, Role
from engine_agents.gateway.decoding import decode, decode_to_end
from engine_agents.gateway.exchange import Exchange, note_failure
from engine_agents.gateway.handoff_events import (
    Arrived,
    CaughtUp,
    Event,
    MainLost,
    Prefilled,
    RelayEnded,
    RelayLost,
    TaskFailed,
)
from engine_agents.gateway.node_errors import NodeError, TransferRefusedError
from engine_agents.gateway.node_replies import Reply
from engine_agents.gateway.planning import Plan, another_node, with_nodes
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.recompute import forget_evicted, recompute_limit, unkept_tokens
from engine_agents.gateway.timeline import Stage
from engine_agents.gateway.transfers import (
    Transfer,
    consumer_params,
    finish_in_background,
    pull_ahead,
    take_lease,
)

log = logging.getLogger(__name__)

MAX_RELAY_STARTS = 3
MAX_TRANSFER_STARTS = 3
RETRY_PAUSE_S = 0.2


async def run_relay(x: Exchange, plan: Plan) -> None:
    """Serve a request through P, RLD and MD.

    Raises:
        NodeError: it cannot go on here; what was committed stays, and a new plan can go on from it.
    """
    assert plan.relay is not None, "a RELAY plan has a relay"  # noqa: S101
    assert plan.main is not None, "a RELAY plan has a main node"  # noqa: S101
    relay = _Relay(x, plan)
    relay.mark_transfer()
    with x.state.assigned(plan.main):
        try:
            with x.state.assigned(plan.relay):
                turn = await relay.run_until_cut()
        except BaseException:
            relay.drop_transfer()
            raise
        finally:
            await relay.stop()
        if turn is None:
            x.facts.handoff_mode = ""  # one may have been under way
            relay.leave_transfer()
        else:
            await relay.continue_on_main(turn)


class _Relay:
    """The state of one relayed request up to its cut."""

    def __init__(self, x: Exchange, plan: Plan) -> None:
        self.x = x
        self.plan = plan
        self.knobs = _knobs(x, plan)
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.relay_task: asyncio.Task[None] | None = None
        self.batch_task: asyncio.Task[None] | None = None
        self.transfer: Transfer | None = None
        self.transfer_task: asyncio.Task[None] | None = None
        self.relay_starts = 0
        self.transfer_starts = 0
        self.relay_runs = False
        self.main_has_prompt = False
        self.main_error: NodeError | None = None
        self.mode: HandoffMode | None = None
        self.batches = 0
        self.caught_up_tokens = 0
        self.last_pending_tokens = 0
        self.decode_start_s: float | None = None

    @property
    def answered_tokens(self) -> int:
        """Committed tokens that are not part of the plan's prompt."""
        return len(self.x.prompt) + len(self.x.commit.token_ids) - len(self.plan.prompt)

    async def run_until_cut(self) -> Turn | None:
        """Take events until MD is to go on, and freeze the cut; None if the answer ended on the relay."""
        assert self.plan.relay is not None, "a RELAY plan has a relay"  # noqa: S101
        self._start_relay(self.plan.relay)
        while not self.x.commit.is_done:
            if self._handle(await self.events.get()):
                self._end_relay_stage()
                return self.x.commit.open(Side.MAIN)
        self._end_relay_stage()
        return None

    def _handle(self, event: Event) -> bool:
        """Act on one event; True if the cut is to be made now."""
        match event:
            case Prefilled():
                self._start_transfer()
            case RelayEnded(turn) if turn.number == self.relay_turn.number:
                self.relay_runs = False
                return self._after_relay_stopped()
            case RelayLost(turn, error) if turn.number == self.relay_turn.number:
                self.relay_runs = False
                return self._replace_relay(error)
            case Arrived():
                self.main_has_prompt = True
                return self._hand_over()
            case CaughtUp(tokens, reply):
                self._check_token(tokens, reply)
                self.batch_task, self.caught_up_tokens = None, tokens
                self.x.facts.caught_up_tokens += reply.work.computed_tokens or 0
                return self._hand_over()
            case MainLost(error):
                self._replace_main(error)
            case TaskFailed(error):
                raise error
            case RelayEnded() | RelayLost():
                pass
        return False

    # Relay decode

    def _start_relay(self, node: Node) -> None:
        turn = self.x.commit.open(Side.RELAY)
        assert turn is not None, "an unfinished answer can be continued"  # noqa: S101
        self.relay_turn = turn
        self.relay_starts += 1
        self.relay_runs = True
        self.x.facts.relay_node = node.name
        self.relay_task = asyncio.create_task(self._stream_relay(turn, node, self.x.current_prompt()))

    async def _stream_relay(self, turn: Turn, node: Node, prompt: Prompt) -> None:
        x, put = self.x, self.events.put_nowait
        assert self.plan.prefill is not None, "a RELAY plan has a prefill node"  # noqa: S101
        cap = max(1, x.config.policy.handoff.relay_max_tokens - x.commit.eager_tokens)
        try:
            with await take_lease(x, self.plan.prefill, prompt, is_first=self.relay_starts == 1) as held:
                x.state.index.add_resident(self.plan.prefill.name, self.plan.hashes)
                put(Prefilled())
                params = consumer_params(held.lease, None, "", "relay", x.headers.caller.service_class)
                start_s = x.timeline.elapsed_s

                def on_first() -> None:
                    held.used()
                    x.timeline.add(Stage.KV_RDMA, start_s)
                    x.state.index.add_resident(node.name, self.plan.hashes)
                    if self.decode_start_s is None:
                        self.decode_start_s = x.timeline.elapsed_s

                await decode(
                    x, turn, node, prompt, min(cap, x.commit.remaining_tokens), kv_params=params, on_first=on_first
                )
            put(RelayEnded(turn))
        except NodeError as error:
            put(RelayLost(turn, error))
        except Exception as error:  # noqa: BLE001 - the loop raises it, or it would wait for ever
            put(TaskFailed(error))

    def _after_relay_stopped(self) -> bool:
        """The relay made all it may: the stream waits for MD, and fails if MD cannot be had."""
        if self.x.commit.is_done:
            return False
        if self.main_error is not None:
            raise self.main_error
        return self.main_has_prompt and self.batch_task is None

    def _replace_relay(self, error: NodeError) -> bool:
        """Go on at once on another relay; without one, the stream waits for MD."""
        note_failure(self.x, error)
        if self.main_has_prompt:
            return self.batch_task is None
        if self.transfer_task is None:
            raise error  # nothing is under way yet: plan anew
        assert self.plan.relay is not None, "a RELAY plan has a relay"  # noqa: S101
        relay, prefill = another_node(self.x, self.plan, Role.RELAY, self.plan.relay.site), self._live_prefill()
        if relay is not None and prefill is not None and self.relay_starts < MAX_RELAY_STARTS:
            self.plan = replace(self.plan, prefill=prefill)
            self._start_relay(relay)
        elif self.main_error is not None:
            raise self.main_error
        return False

    def _live_prefill(self) -> Node | None:
        """The plan's prefill node, or another one beside it where that has failed."""
        assert self.plan.prefill is not None, "a RELAY plan has a prefill node"  # noqa: S101
        if self.plan.prefill.name not in self.x.excluded:
            return self.plan.prefill
        return another_node(self.x, self.plan, Role.PREFILL, self.plan.prefill.site)

    def _end_relay_stage(self) -> None:
        if self.decode_start_s is not None:
            self.x.state.relay_held(self.x.timeline.elapsed_s - self.decode_start_s)
            self.x.timeline.add(Stage.RELAY_DECODE, self.decode_start_s)

    # The way to MD

    def _start_transfer(self) -> None:
        if self.transfer_task is not None:
            return
        assert self.transfer is not None, "the marks are set before anything is awaited"  # noqa: S101
        self.transfer.prefilled()
        self.transfer_task = self.x.state.spawn(self._pull(self.plan, self.transfer), "pull ahead")

    async def _pull(self, plan: Plan, transfer: Transfer) -> None:
        try:
            if self.transfer_starts > 1:
                await asyncio.sleep(RETRY_PAUSE_S * (self.transfer_starts - 1))
            await pull_ahead(self.x, plan, transfer)
        except NodeError as error:
            self.events.put_nowait(MainLost(error))
        else:
            self.events.put_nowait(Arrived())

    def mark_transfer(self) -> None:
        """Tell the index that the prompt is on its way; done before anything is awaited."""
        assert self.plan.main is not None, "a RELAY plan has a main node"  # noqa: S101
        self.transfer_starts += 1
        self.x.facts.main_node = self.plan.main.name
        self.transfer = Transfer(self.x.state, self.plan, self.x.config.fleet.kv_bytes_per_token)

    def _hand_over(self) -> bool:
        """Decide on the next step now that MD has all that was sent to it; True for the cut."""
        pending = self.answered_tokens - self.caught_up_tokens
        if self.mode is None:
            self.mode = choose_handoff_mode(pending, self._pool_is_at_ceiling(), self.knobs)
            self.x.facts.handoff_mode = self.mode.wire
        step = next_handoff_step(self.mode, pending, self.last_pending_tokens, self.batches, self.knobs)
        if step is HandoffStep.CUT or not self.relay_runs:
            return True
        self.last_pending_tokens = pending
        self.batches += 1
        self.x.facts.handoff_batches += 1
        self.batch_task = asyncio.create_task(self._send_batch(self.answered_tokens, self.x.current_prompt()))
        return False

    def _pool_is_at_ceiling(self) -> bool:
        assert self.plan.relay is not None, "a RELAY plan has a relay"  # noqa: S101
        return self.x.relay_pool(self.plan.relay.site) in self.x.state.pools_at_ceiling

    async def _send_batch(self, tokens: int, prompt: Prompt) -> None:
        assert self.plan.main is not None, "a RELAY plan has a main node"  # noqa: S101
        try:
            with self.x.state.work_on(self.plan.main):
                limit = recompute_limit(self.x, self.plan, tokens - self.caught_up_tokens)
                reply = await self.x.client.extend(self.plan.main, prompt, self.x.request.model, self.x.salt, limit)
        except NodeError as error:
            forget_evicted(self.x, self.plan, error)
            self.events.put_nowait(MainLost(error))
        else:
            self.events.put_nowait(CaughtUp(tokens, reply))

    def _check_token(self, tokens: int, reply: Reply) -> None:
        """At temperature 0 MD must name the token that the relay made next."""
        position = tokens + len(self.plan.prompt) - len(self.x.prompt)
        made = self.x.commit.token_ids[position : position + 1]
        if self.x.request.sampling.get("temperature") == 0 and made and reply.token_id not in {None, made[0]}:
            self.x.state.token_mismatches += 1
            log.warning("request %s: relay and main decode disagree on token %d", self.x.headers.request_id, position)

    def _replace_main(self, error: NodeError) -> None:
        """Send the KV again, to another MD where there is one; without any, the relay goes on alone."""
        note_failure(self.x, error)
        self.batch_task, self.main_has_prompt, self.mode = None, False, None
        self.batches = self.caught_up_tokens = self.last_pending_tokens = 0
        main, prefill = another_node(self.x, self.plan, Role.MAIN), self._live_prefill()
        if main is None or prefill is None or self.transfer_starts >= MAX_TRANSFER_STARTS:
            self.main_error = error
            if not self.relay_runs:
                raise error
            return
        self.plan = with_nodes(self.x, self.plan, prefill, main)
        self.mark_transfer()
        self.transfer_task = None
        self._start_transfer()

    # The end

    async def continue_on_main(self, turn: Turn) -> None:
        """Let MD go on from the cut: it computes what it lacks of the eager tokens, then streams to the end."""
        x, main = self.x, self.plan.main
        assert main is not None, "a cut is made only towards a main node"  # noqa: S101
        start_s = x.timeline.elapsed_s
        first_s: float | None = None

        def on_first() -> None:
            nonlocal first_s
            first_s = x.timeline.elapsed_s
            x.timeline.add(Stage.HANDOFF, start_s, first_s)
            x.facts.handoff_stall_s = first_s - start_s

        pending = self.answered_tokens - self.caught_up_tokens
        x.facts.expected_recomputed_tokens = pending + unkept_tokens(x, self.plan, self.caught_up_tokens)
        limit = recompute_limit(x, self.plan, pending)
        try:
            work = await decode_to_end(x, turn, main, x.current_prompt(), on_first=on_first, max_computed_tokens=limit)
        except TransferRefusedError as error:
            await self._pull_again(error)
            work = await decode_to_end(x, turn, main, x.current_prompt(), on_first=on_first)
        finally:
            if first_s is not None:
                x.timeline.add(Stage.MAIN_DECODE, first_s)
        x.note_queue(start_s, work.queued_s)
        x.facts.recomputed_tokens = work.computed_tokens
        x.facts.extend_resident_tokens = work.resident_tokens

    async def _pull_again(self, error: TransferRefusedError) -> None:
        """MD evicted the prompt's KV before it could go on from it; sending it once more beats computing it there."""
        log.info("request %s: %s, pulling again", self.x.headers.request_id, error)
        forget_evicted(self.x, self.plan, error)
        self.x.facts.repulls += 1
        self.mark_transfer()
        assert self.transfer is not None, "it has just been marked"  # noqa: S101
        self.transfer.prefilled()
        await pull_ahead(self.x, self.plan, self.transfer)

    async def stop(self) -> None:
        """Close the relay's stream and any batch, and see them gone."""
        tasks = [task for task in (self.relay_task, self.batch_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop_transfer(self) -> None:
        """Nobody waits for the KV: stop sending it."""
        if self.transfer_task is not None:
            self.transfer_task.cancel()
        if self.transfer is not None:
            self.transfer.dropped()

    def leave_transfer(self) -> None:
        """The answer is complete: let the KV arrive for the next turn."""
        if self.transfer_task is not None:
            finish_in_background(self.x.state, self.transfer_task)
        elif self.transfer is not None:
            self.transfer.dropped()


def _knobs(x: Exchange, plan: Plan) -> HandoffKnobs:
    policy = x.config.policy.handoff
    batch_tokens = policy.catch_up_batch_tokens
    if plan.main is not None and plan.main.is_stock:
        # A stock engine keeps whole blocks only: a smaller batch would leave it nothing.
        block_tokens = x.config.fleet.block_tokens
        batch_tokens = -(-batch_tokens // block_tokens) * block_tokens
    return HandoffKnobs(HandoffMode[policy.mode.name], policy.one_shot_max_tokens, batch_tokens)
