"""How many bytes each flow of a link may send in the next tick: pure arithmetic over credits.

A link and each flow hold a credit in bytes that grows with time at their rate and is bounded by `BURST_S` seconds of
it, so a late tick loses nothing and an idle link cannot save up a flood. Inside one tick the link's credit is divided
max-min fairly by weight: nobody gets less than their weight's share unless they want less or their own cap forbids
more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TICK_S = 0.005
BURST_S = 0.05
QUEUE_S = 0.1
MIN_QUEUE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ClassShare:
    """What a service class gets of a link: `priority` in the queue, higher first, and `weight` among those who send."""

    priority: int = 0
    weight: float = 1.0


STANDARD_SHARE = ClassShare()


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What a link lets through; a cap or limit of None is none.

    `flow_cap_bytes_per_s` holds for each stream of a transfer, `max_transfers` counts transfers.
    """

    capacity_bytes_per_s: float
    rtt_s: float
    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    paused: bool = False
    max_transfers: int | None = None
    classes: Mapping[str, ClassShare] = field(default_factory=dict)

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

    def share_of(self, service_class: str) -> ClassShare:
        """What a class gets; one that nobody named gets the standard share."""
        return self.classes.get(service_class, STANDARD_SHARE)


@dataclass(frozen=True, slots=True)
class FlowDemand:
    """What a flow could send now, the credit its cap has left it, and its weight."""

    queued_bytes: int
    credit_bytes: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TickPlan:
    """Bytes each flow may send now, in the order of the demands, and the credits that remain."""

    allowances: tuple[int, ...]
    flow_credits: tuple[float, ...]
    link_credit: float


def grown_credit(credit_bytes: float, rate_bytes_per_s: float, dt_s: float) -> float:
    """Credit after `dt_s` seconds at a rate, never above `BURST_S` seconds of that rate."""
    return min(credit_bytes + rate_bytes_per_s * dt_s, max(rate_bytes_per_s * BURST_S, 1.0))


def max_min_shares(total_bytes: int, limits_bytes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Divide a total over flows that each take at most their limit, max-min fairly by weight, to the byte.

    Those that want least for their weight are served first; who is left shares what is left by weight, and the odd
    bytes go to the last.
    """
    shares = [0] * len(limits_bytes)
    left_bytes, left_weight = total_bytes, float(sum(weights))
    order = sorted(range(len(limits_bytes)), key=lambda index: limits_bytes[index] / weights[index])
    for index in order:
        shares[index] = min(limits_bytes[index], int(left_bytes * weights[index] / left_weight), left_bytes)
        left_bytes -= shares[index]
        left_weight = max(left_weight - weights[index], 1e-9 * weights[index])
    for index in reversed(order):
        odd_bytes = min(limits_bytes[index] - shares[index], left_bytes)
        shares[index] += odd_bytes
        left_bytes -= odd_bytes
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
    weights = [flow.weight for flow in flows]
    cap = link.flow_cap_bytes_per_s
    if cap is None:
        allowances = max_min_shares(int(available), queued, weights)
        credits_left = [0.0] * len(flows)
    else:
        grown = [grown_credit(flow.credit_bytes, cap, dt_s) for flow in flows]
        limits = [min(bytes_, int(credit)) for bytes_, credit in zip(queued, grown, strict=True)]
        allowances = max_min_shares(int(available), limits, weights)
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
