"""One shaped link: its transfers and their streams, its queue, its clock tick, and exact byte counters."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine_agents.wan.admission import Standing, admit
from engine_agents.wan.flow import Flow
from engine_agents.wan.shaping import TICK_S, FlowDemand, LinkShape, plan_tick, queue_limit_bytes
from engine_agents.wan.transfer import Transfer
from engine_agents.wan.waits import WaitHistogram

METER_STEP_S = 0.02
METER_WINDOW_S = 1.0
STANDARD_CLASS = "default"
OTHER_CLASS = "other"


class ShapedLink:
    """A directed link. It ticks only while bytes wait for rate or time; byte counters count KV that entered it."""

    def __init__(
        self, name: str, source: str, target: str, shape: LinkShape, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.source = source
        self.target = target
        self.shape = shape
        self.clock = clock
        self.flows: dict[Flow, None] = {}
        self.transfers: list[Transfer] = []
        self.bytes_total = 0
        self.bytes_by: Counter[tuple[str, str]] = Counter()
        self.cut_transfers_total = 0
        self.policy_revision: int | None = None
        self.waits = WaitHistogram()
        self._arrivals = 0
        self._credit_bytes = 0.0
        self._ticked_s = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._meter: deque[tuple[float, int]] = deque(maxlen=int(METER_WINDOW_S / METER_STEP_S) + 1)

    @property
    def bytes_by_pipeline(self) -> dict[str, int]:
        """Bytes that entered the link, by pipeline."""
        totals: Counter[str] = Counter()
        for (pipeline, _), count in self.bytes_by.items():
            totals[pipeline] += count
        return dict(totals)

    @property
    def waiting_transfers(self) -> int:
        """Transfers that have bytes to send and wait for a place."""
        return sum(transfer.is_waiting for transfer in self.transfers)

    @property
    def longest_wait_s(self) -> float:
        """How long the transfer that waits longest for a place has waited so far; 0 where none waits."""
        now_s = self.clock()
        return max((transfer.waiting_s(now_s) for transfer in self.transfers), default=0.0)

    def transfer_for(self, transfer_id: str, pipeline: str, service_class: str) -> Transfer:
        """The transfer that a new stream belongs to; streams without an id are each their own."""
        known = self.transfer(transfer_id) if transfer_id else None
        if known is not None:
            return known
        self._arrivals += 1
        return Transfer(transfer_id, pipeline, service_class, self._arrivals, self.clock())

    def transfer(self, transfer_id: str) -> Transfer | None:
        """The transfer of this id that has streams now."""
        return next((transfer for transfer in self.transfers if transfer.id == transfer_id), None)

    def add(self, flow: Flow) -> None:
        """Let a stream share the link."""
        transfer = flow.transfer
        if not transfer.flows:
            self.transfers.append(transfer)
        transfer.flows[flow] = None
        self.flows[flow] = None
        self.bytes_by.setdefault(self._label(transfer), 0)
        flow.start()
        self.wake()

    def remove(self, flow: Flow) -> None:
        """Forget a stream that has ended, and its transfer with the last one."""
        self.flows.pop(flow, None)
        flow.transfer.flows.pop(flow, None)
        if not flow.transfer.flows and flow.transfer in self.transfers:
            self.transfers.remove(flow.transfer)
            if self.waiting_transfers:
                self.wake()

    def reshape(self, changes: dict[str, Any]) -> None:
        """Change fields of the shape; streams go on, and what is on its way obeys too."""
        self.shape = replace(self.shape, **changes)
        self.wake()

    def pause_transfer(self, transfer: Transfer, *, paused: bool) -> None:
        """Let one transfer send nothing more, or go on; its place goes to who waits."""
        transfer.is_paused = paused
        self.wake()

    def cut_transfer(self, transfer: Transfer) -> int:
        """Reset all streams of a transfer, on both sides; gives back how many. Its puller may come again."""
        flows = list(transfer.flows)
        for flow in flows:
            flow.abort()
        self.cut_transfers_total += 1
        return len(flows)

    def wake(self) -> None:
        """Something changed: look again within a tick."""
        self._tick_at(max(self.clock(), self._ticked_s + TICK_S))

    def utilization(self) -> float:
        """Bytes per second over the last second / capacity."""
        now_s = self.clock()
        before = next((total for at_s, total in self._meter if at_s >= now_s - METER_WINDOW_S), self.bytes_total)
        return (self.bytes_total - before) / METER_WINDOW_S / self.shape.capacity_bytes_per_s

    def state(self) -> dict[str, Any]:
        """The link as its admin API shows it."""
        now_s = self.clock()
        return {
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "capacity_bytes_per_s": self.shape.capacity_bytes_per_s,
            "rate_cap_bytes_per_s": self.shape.rate_cap_bytes_per_s,
            "flow_cap_bytes_per_s": self.shape.flow_cap_bytes_per_s,
            "rtt_s": self.shape.rtt_s,
            "paused": self.shape.paused,
            "max_transfers": self.shape.max_transfers,
            "classes": self.shape.classes,
            "policy_revision": self.policy_revision,
            "bytes_total": self.bytes_total,
            "bytes_by_pipeline": self.bytes_by_pipeline,
            "bytes_by": [
                {"pipeline": pipeline, "service_class": service_class, "bytes": count}
                for (pipeline, service_class), count in self.bytes_by.items()
            ],
            "flows": len(self.flows),
            "queued_bytes": sum(flow.queued_bytes for flow in self.flows),
            "queue_depth": self.waiting_transfers,
            "longest_wait_s": self.longest_wait_s,
            "wait_s": self.waits.state(),
            "cut_transfers_total": self.cut_transfers_total,
            "utilization_ratio": self.utilization(),
            "transfers": [transfer.state(now_s) for transfer in self.transfers],
            "updated_at": time.time(),
        }

    def close(self) -> None:
        """End all streams at once."""
        for flow in list(self.flows):
            flow.abort()
        if self._timer is not None:
            self._timer.cancel()

    def _label(self, transfer: Transfer) -> tuple[str, str]:
        known = transfer.service_class == STANDARD_CLASS or transfer.service_class in self.shape.classes
        return transfer.pipeline, transfer.service_class if known else OTHER_CLASS

    def _tick_at(self, at_s: float) -> None:
        if self._timer is not None:
            if self._due_s <= at_s:
                return
            self._timer.cancel()
        self._due_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(at_s - self.clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self.clock()
        flows = list(self.flows)
        self._admit(now_s)
        self._share(flows, now_s)
        for flow in flows:
            flow.deliver(now_s, self.shape.one_way_delay_s)
        self._arm(now_s)

    def _admit(self, now_s: float) -> None:
        standings = [
            Standing(
                transfer.wants_place(),
                transfer.keeps_place(now_s),
                self.shape.share_of(transfer.service_class).priority,
                transfer.order,
            )
            for transfer in self.transfers
        ]
        granted = admit(standings, self.shape.max_transfers)
        for transfer, admitted in zip(self.transfers, granted, strict=True):
            waited_s = transfer.settle(admitted=admitted, now_s=now_s)
            if waited_s is not None:
                self.waits.add(waited_s)

    def _share(self, flows: list[Flow], now_s: float) -> None:
        demands = [
            FlowDemand(
                _sendable_bytes(flow), flow.credit_bytes, self.shape.share_of(flow.transfer.service_class).weight
            )
            for flow in flows
        ]
        plan = plan_tick(self.shape, self._credit_bytes, demands, now_s - self._ticked_s)
        self._ticked_s = now_s
        self._credit_bytes = plan.link_credit
        if not self._meter or now_s - self._meter[-1][0] >= METER_STEP_S:
            self._meter.append((now_s, self.bytes_total))
        limit = queue_limit_bytes(self.shape, len(flows))
        for flow, allowance, credit in zip(flows, plan.allowances, plan.flow_credits, strict=True):
            flow.credit_bytes = credit
            flow.queue_limit_bytes = limit
            flow.admit(allowance, now_s)
            if allowance:
                self.bytes_total += allowance
                self.bytes_by[self._label(flow.transfer)] += allowance

    def _arm(self, now_s: float) -> None:
        """Tick again in one tick while bytes wait for rate, else when the next ones have crossed or a place is free."""
        delay_s = self.shape.one_way_delay_s
        dues = [due for flow in self.flows if (due := flow.next_due_s(delay_s)) is not None]
        if self.shape.rate_bytes_per_s and any(map(_sendable_bytes, self.flows)):
            dues.append(now_s + TICK_S)
        if self.waiting_transfers:
            dues += [transfer.idle_until_s() for transfer in self.transfers if transfer.holds_place]
        if dues:
            self._tick_at(max(min(dues), now_s + TICK_S / 5))


def _sendable_bytes(flow: Flow) -> int:
    return flow.sendable_bytes if flow.transfer.holds_place else 0
