"""Prefill leases and the KV's way to MD, with every mark taken back however it ends."""

import asyncio
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from control.domain.topology import Link, Node
from engine_agents.gateway.exchange import Exchange
from engine_agents.gateway.node_errors import NodeError, TransferRefusedError
from engine_agents.gateway.node_replies import Lease
from engine_agents.gateway.planning import Plan
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.state import GatewayState
from engine_agents.gateway.timeline import Stage

log = logging.getLogger(__name__)

MAX_TRANSFERS_IN_BACKGROUND = 64
_SERVER_ERRORS = 500


class HeldLease:
    """A lease until it is used or given back: one left unused is released on the way out, without waiting for it."""

    __slots__ = ("_x", "is_used", "lease")

    def __init__(self, x: Exchange, lease: Lease) -> None:
        self._x = x
        self.lease = lease
        self.is_used = False

    def used(self) -> None:
        """Its consumer has pulled the KV, which frees the lease on the prefill node."""
        self.is_used = True

    def __enter__(self) -> Self:
        self._x.state.leases.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._x.state.leases.discard(self)
        if not self.is_used:
            self._x.state.spawn(_release(self._x, self.lease), "release a lease")


async def take_lease(x: Exchange, node: Node, prompt: Prompt, *, is_first: bool) -> HeldLease:
    """Have the prompt prefilled; the lease is to be entered at once.

    `is_first` tells the prefill proper from the second lease, which hits the prefill node's own cache.
    """
    start_s = x.timeline.elapsed_s
    with x.state.work_on(node):
        lease = await x.client.prefill(node, prompt, x.request.model, x.salt)
    if is_first:
        x.note_queue(start_s, lease.queued_s)
        x.timeline.add(Stage.PREFILL, start_s + (lease.queued_s or 0.0))
        x.facts.prefill_node = node.name
        x.facts.cached_tokens = lease.cached_tokens
        x.facts.prefilled_s = x.timeline.elapsed_s
        x.state.measured_prefill(len(prompt) - (lease.cached_tokens or 0), x.timeline.elapsed_s - start_s)
    return HeldLease(x, lease)


async def _release(x: Exchange, lease: Lease) -> None:
    try:
        await x.client.release(lease.node, lease.lease_id)
    except NodeError as error:
        # It expires by itself; the node counts it as stranded until then.
        log.info("lease not released: %s", error)


class Transfer:
    """KV of one prompt on its way to MD, as index and link load see it. Ends once; later ends change nothing."""

    def __init__(self, state: GatewayState, plan: Plan, kv_bytes_per_token: int) -> None:
        assert plan.main is not None, "a transfer has a target"  # noqa: S101
        self.transfer_id = os.urandom(16).hex()
        self._state = state
        self._is_open = True
        self._waits_for: list[asyncio.Event] = []
        if plan.main.is_stock:
            overlapping = state.index.transfers_covering(plan.main.name, plan.hashes)
            self._waits_for = [state.ends_of_transfers[key] for key in overlapping if key in state.ends_of_transfers]
        self._end_event = state.ends_of_transfers[self.transfer_id] = asyncio.Event()
        state.index.begin_transfer(plan.main.name, plan.hashes, self.transfer_id)
        state.links.begin(self.transfer_id, plan.link, plan.send_tokens * kv_bytes_per_token)
        self._target = plan.main.name
        self._send_tokens = plan.send_tokens
        self._unshaped_link = _link_without_relay(plan)
        self._has_place = False
        self._pair = (plan.prefill.name if plan.prefill else "", plan.main.name)
        state.pairs.begin(self._pair, self)

    async def may_start(self, x: Exchange) -> None:
        """Return when the prefill for it may begin; the wait becomes a stage of the request.

        Our nodes never fetch a block twice; a stock engine would, so there an overlapping pull waits for the first.
        Where no relay shapes the link, a transfer waits here for its place.
        """
        if not self._waits_for and not self._unshaped_link:
            return
        start_s = x.timeline.elapsed_s
        try:
            for event in self._waits_for:
                await event.wait()
            if self._unshaped_link:
                priority = x.config.policy.service_class(x.headers.caller.service_class).link_priority
                await self._state.places.take(self._unshaped_link, priority)
                self._has_place = True
        finally:
            x.timeline.add(Stage.QUEUE, start_s)

    def prefilled(self) -> None:
        """P has the KV: from now on MD's cache lags behind P's."""
        if self._is_open:
            self._state.cache_lag.begin(self.transfer_id, self._target, self._send_tokens)

    def arrived(self) -> None:
        """MD has all of it."""
        if self._is_open:
            self._state.pairs.succeeded(self._pair)
        self._end(self._state.index.commit_transfer)

    def broke(self, error: NodeError) -> None:
        """MD could not pull it; a lease that is gone and a node that is lost say nothing of the way between the two."""
        if self._is_open and isinstance(error, TransferRefusedError) and error.status >= _SERVER_ERRORS:
            self._state.pairs.failed(self._pair)

    def dropped(self) -> None:
        """It failed or nobody wants it."""
        self._end(self._state.index.roll_back_transfer)

    def _end(self, settle: Callable[[str], None]) -> None:
        if self._is_open:
            self._is_open = False
            if self._has_place:
                self._state.places.give_back(self._unshaped_link)
            self._end_event.set()
            self._state.ends_of_transfers.pop(self.transfer_id, None)
            settle(self.transfer_id)
            self._state.links.end(self.transfer_id)
            self._state.cache_lag.end(self.transfer_id)
            self._state.pairs.ended(self._pair, self)


def _link_without_relay(plan: Plan) -> str:
    """The link that a transfer crosses where no WAN relay sees it: stock engines take none. Empty for all others."""
    if plan.link is None or plan.main is None:
        return ""
    is_shaped = bool(plan.link.relay_host) and not plan.main.is_stock
    return "" if is_shaped else plan.link.name


def consumer_params(
    lease: Lease, link: Link | None, transfer_id: str, pipeline: str, service_class: str
) -> dict[str, Any]:
    """What a consumer needs to pull: P's own parameters and, across a shaped link, the relay to go through."""
    if link is None or not link.relay_host:
        return lease.params
    via = {
        "host": link.relay_host,
        "port": link.relay_port,
        "link": link.name,
        "transfer_id": transfer_id,
        "pipeline": pipeline,
        "service_class": service_class,
        "streams": link.streams_per_transfer,
    }
    return {**lease.params, "via": via}


async def pull_ahead(x: Exchange, plan: Plan, transfer: Transfer) -> None:
    """Take a second lease and have MD pull the prompt's KV; returns when it is there.

    Raises:
        NodeError: it is not; the marks are taken back, as they are when the task is cancelled.
    """
    assert plan.prefill is not None, "KV comes from a prefill node"  # noqa: S101
    assert plan.main is not None, "KV goes to a main node"  # noqa: S101
    try:
        await transfer.may_start(x)
        with await take_lease(x, plan.prefill, plan.prompt, is_first=False) as held:
            params = consumer_params(
                held.lease, plan.link, transfer.transfer_id, plan.route.pipeline.wire, x.headers.caller.service_class
            )
            start_s = x.timeline.elapsed_s
            try:
                with x.state.work_on(plan.main):
                    reply = await x.client.pull(plan.main, plan.prompt, x.request.model, params, x.salt)
            except NodeError as error:
                transfer.broke(error)
                raise
            held.used()
        x.note_transfer(plan.link, plan.route.pipeline.wire, reply.work, x.timeline.elapsed_s - start_s)
        x.timeline.add(Stage.KV_WAN if plan.link else Stage.KV_RDMA, start_s)
        transfer.arrived()
        x.note_arrival()
    finally:
        transfer.dropped()


def finish_in_background(state: GatewayState, task: "asyncio.Task[None]") -> None:
    """Let a transfer end after its request has: MD's cache must not fall behind P's (a relay answer was short).

    The number of such transfers is bounded; past the bound the newest is dropped.
    """
    if task.done():
        return
    if state.transfers_in_background >= MAX_TRANSFERS_IN_BACKGROUND:
        task.cancel()
        return
    state.transfers_in_background += 1

    def ended(_: "asyncio.Task[None]") -> None:
        state.transfers_in_background -= 1

    task.add_done_callback(ended)
