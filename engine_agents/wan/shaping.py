"""How many bytes each flow of a link may send in the next tick: pure arithmetic over credits.

A link and each flow hold a credit in bytes that grows with time at their rate and is bounded by `BURST_S` seconds of
it, so a late tick loses nothing and an idle link cannot save up a flood. Inside one tick the link's credit is divided
max-min fairly: nobody gets less than an equal share unless they want less or their own cap forbids more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TICK_S = 0.005
BURST_S = 0.05
QUEUE_S = 0.1
MIN_QUEUE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What a link lets through; `flow_cap_bytes_per_s` None means that one flow may fill the link."""

    capacity_bytes_per_s: float
    rtt_s: float
    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    paused: bool = False

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate in force: the smaller of capacity and cap, 0 while paused."""
        if self.paused:
            return 0.0
        if self.rate_cap_bytes_per_s is None:
            return self.capacity_bytes_per_s
        return min(self.capacity_bytes_per_s, self.rate_cap_bytes_per_s)

    @property
    def one_way_delay_s(self) -> float:
        """Seconds from one end of the link to the other."""
        return self.rtt_s / 2


@dataclass(frozen=True, slots=True)
class FlowDemand:
    """What a flow could send now and the credit its cap has left it."""

    queued_bytes: int
    credit_bytes: float


@dataclass(frozen=True, slots=True)
class TickPlan:
    """Bytes each flow may send now, in the order of the demands, and the credits that remain."""

    allowances: tuple[int, ...]
    flow_credits: tuple[float, ...]
    link_credit: float


def grown_credit(credit_bytes: float, rate_bytes_per_s: float, dt_s: float) -> float:
    """Credit after `dt_s` seconds at a rate, never above `BURST_S` seconds of that rate."""
    return min(credit_bytes + rate_bytes_per_s * dt_s, max(rate_bytes_per_s * BURST_S, 1.0))


def max_min_shares(total_bytes: int, limits_bytes: Sequence[int]) -> list[int]:
    """Divide a total over flows that each take at most their limit, max-min fairly, to the byte.

    The smallest limits are served first; who is left shares what is left equally, the odd bytes go to the last.
    """
    shares = [0] * len(limits_bytes)
    left = total_bytes
    order = sorted(range(len(limits_bytes)), key=limits_bytes.__getitem__)
    for served, index in enumerate(order):
        share = min(limits_bytes[index], left // (len(order) - served))
        shares[index] = share
        left -= share
    return shares


def plan_tick(link: LinkShape, link_credit: float, flows: Sequence[FlowDemand], dt_s: float) -> TickPlan:
    """Divide what a link earned in `dt_s` seconds among its flows.

    Args:
        link: rate and per-flow cap, bytes per second.
        link_credit: bytes left over from the last tick.
        flows: demands; each credit is what was left over from the last tick.
        dt_s: seconds since the last tick.
    """
    available = 0.0 if link.paused else grown_credit(link_credit, link.rate_bytes_per_s, dt_s)
    queued = [flow.queued_bytes for flow in flows]
    cap = link.flow_cap_bytes_per_s
    if cap is None:
        allowances = max_min_shares(int(available), queued)
        credits_left = [0.0] * len(flows)
    else:
        grown = [grown_credit(flow.credit_bytes, cap, dt_s) for flow in flows]
        limits = [min(bytes_, int(credit)) for bytes_, credit in zip(queued, grown, strict=True)]
        allowances = max_min_shares(int(available), limits)
        credits_left = [credit - share for credit, share in zip(grown, allowances, strict=True)]
    return TickPlan(tuple(allowances), tuple(credits_left), available - sum(allowances))


def queue_limit_bytes(link: LinkShape, flow_count: int) -> int:
    """How much one flow may hold unsent before its source is no longer read.

    All flows together hold at most `QUEUE_S` seconds of the link, or `MIN_QUEUE_BYTES` each where that is more.
    """
    share = link.rate_bytes_per_s / max(flow_count, 1)
    if link.flow_cap_bytes_per_s is not None:
        share = min(share, link.flow_cap_bytes_per_s)
    return max(int(share * QUEUE_S), MIN_QUEUE_BYTES)
