"""One shaped link: its flows, its clock tick, and exact byte counters."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine_agents.wan.flow import Flow
from engine_agents.wan.shaping import TICK_S, FlowDemand, LinkShape, plan_tick, queue_limit_bytes

METER_STEP_S = 0.02
METER_WINDOW_S = 1.0


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
        self.bytes_total = 0
        self.bytes_by_pipeline: dict[str, int] = {}
        self._credit_bytes = 0.0
        self._ticked_s = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._meter: deque[tuple[float, int]] = deque(maxlen=int(METER_WINDOW_S / METER_STEP_S) + 1)

    def add(self, flow: Flow) -> None:
        """Let a flow share the link."""
        self.flows[flow] = None
        self.bytes_by_pipeline.setdefault(flow.pipeline, 0)
        flow.start()
        self.wake()

    def remove(self, flow: Flow) -> None:
        """Forget a flow that has ended."""
        self.flows.pop(flow, None)

    def reshape(self, changes: dict[str, Any]) -> None:
        """Change fields of the shape; flows go on, and what is on its way obeys too."""
        self.shape = replace(self.shape, **changes)
        self.wake()

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
            "bytes_total": self.bytes_total,
            "bytes_by_pipeline": dict(self.bytes_by_pipeline),
            "flows": len(self.flows),
            "queued_bytes": sum(flow.queued_bytes for flow in self.flows),
            "utilization_ratio": self.utilization(),
            "transfers": [
                {
                    "transfer_id": flow.transfer_id,
                    "pipeline": flow.pipeline,
                    "bytes": flow.sent_bytes,
                    "age_s": now_s - flow.started_s,
                }
                for flow in self.flows
            ],
            "updated_at": time.time(),
        }

    def close(self) -> None:
        """End all flows at once."""
        for flow in list(self.flows):
            flow.abort()
        if self._timer is not None:
            self._timer.cancel()

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
        self._share(flows, now_s)
        for flow in flows:
            flow.deliver(now_s, self.shape.one_way_delay_s)
        self._arm(now_s)

    def _share(self, flows: list[Flow], now_s: float) -> None:
        demands = [FlowDemand(flow.sendable_bytes, flow.credit_bytes) for flow in flows]
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
            self.bytes_total += allowance
            self.bytes_by_pipeline[flow.pipeline] += allowance

    def _arm(self, now_s: float) -> None:
        """Tick again in one tick while bytes wait for rate, else when the next ones have crossed."""
        delay_s = self.shape.one_way_delay_s
        dues = [due for flow in self.flows if (due := flow.next_due_s(delay_s)) is not None]
        if self.shape.rate_bytes_per_s and any(flow.sendable_bytes for flow in self.flows):
            dues.append(now_s + TICK_S)
        if dues:
            self._tick_at(max(min(dues), now_s + TICK_S / 5))
