"""What links carried: rates from the differences of byte counters, which may start again from zero."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from control.telemetry.records import LinkSample
from control.telemetry.request_slots import rounded

RATE_WINDOW_S = 10.0
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes between two samples, and the transfers that were given a place after `waited_s` seconds together."""

    at_s: float
    seconds: float
    total_bytes: int
    by_pipeline: Mapping[str, int]
    by_class: Mapping[str, int]
    waits: int
    waited_s: float


@dataclass(slots=True)
class LinkSlot:
    """What one link carried within one slot, its last sample in it, and the longest queue that was seen."""

    seconds: float = 0.0
    total_bytes: int = 0
    by_pipeline: Counter[str] = field(default_factory=Counter)
    by_class: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    waited_s: float = 0.0
    flows: int = 0
    queued_bytes: int = 0
    queue_depth: int = 0

    def add(self, carried: Carried | None, sample: LinkSample) -> None:
        """Count one sample; the first one of a link carries nothing yet."""
        self.flows = sample.flows
        self.queued_bytes = sample.queued_bytes
        self.queue_depth = max(self.queue_depth, sample.queue_depth)
        if carried is None:
            return
        self.seconds += carried.seconds
        self.total_bytes += carried.total_bytes
        self.by_pipeline.update(carried.by_pipeline)
        self.by_class.update(carried.by_class)
        self.waits += carried.waits
        self.waited_s += carried.waited_s

    def picture(self) -> dict[str, Any]:
        """Rates are null until two samples make a difference."""
        return {
            "bytes_per_s": self._rate(self.total_bytes),
            "direct_bytes_per_s": self._rate(self.by_pipeline["direct"]),
            "relay_bytes_per_s": self._rate(self.by_pipeline["relay"]),
            "class_bytes_per_s": {name: self._rate(count) for name, count in sorted(self.by_class.items())},
            "flows": self.flows,
            "queued_bytes": self.queued_bytes,
            "queue_depth": self.queue_depth,
            "wait_s": mean_wait_s(self.waits, self.waited_s),
        }

    def _rate(self, count_bytes: int) -> float | None:
        return rounded(count_bytes / self.seconds) if self.seconds else None


def mean_wait_s(waits: int, waited_s: float) -> float | None:
    """Seconds that a transfer waited for its place; None where none was given one."""
    return rounded(waited_s / waits) if waits else None


def grown(before: int, after: int) -> int:
    """How much a counter grew; one that fell started again from zero."""
    return after - before if after >= before else after


@dataclass(slots=True)
class LinkTrack:
    """One link as last seen, and what it carried in the last seconds."""

    sample: LinkSample
    observer: str
    at_s: float
    counted: LinkSample | None = None
    counted_at_s: float = 0.0
    recent: deque[Carried] = field(default_factory=deque)

    def advance(self, sample: LinkSample, observer: str, at_s: float) -> Carried | None:
        """Take the next sample; returns what was carried since the last that had counters."""
        carried = None
        self.sample, self.observer, self.at_s = sample, observer, at_s
        if sample.state == UNREACHABLE:
            return None
        if self.counted is not None and at_s > self.counted_at_s:
            carried = difference(self.counted, sample, at_s, at_s - self.counted_at_s)
            self.recent.append(carried)
        self.counted, self.counted_at_s = sample, at_s
        while self.recent and self.recent[0].at_s <= at_s - RATE_WINDOW_S:
            self.recent.popleft()
        return carried

    def rate_bytes_per_s(self) -> float | None:
        """Bytes per second over the last `RATE_WINDOW_S`; None before two samples or while the relay is silent."""
        seconds = sum(carried.seconds for carried in self.recent)
        if not seconds or self.sample.state == UNREACHABLE:
            return None
        return sum(carried.total_bytes for carried in self.recent) / seconds

    def _wait_s(self) -> float | None:
        """How long transfers of the last `RATE_WINDOW_S` waited for a place, in the mean."""
        return mean_wait_s(
            sum(carried.waits for carried in self.recent), sum(carried.waited_s for carried in self.recent)
        )

    def transfers(self) -> list[dict[str, Any]]:
        """The transfers that the last sample showed."""
        return [msgspec.structs.asdict(transfer) for transfer in self.sample.transfers]

    def picture(self, now_s: float, stale_after_s: float) -> dict[str, Any]:
        """The link as the page shows it; nothing old is shown as live."""
        sample, rate = self.sample, self.rate_bytes_per_s()
        is_stale = now_s - self.at_s > stale_after_s
        if is_stale:
            rate = None
        return {
            "name": sample.link,
            "source": sample.source,
            "target": sample.target,
            "state": sample.state,
            "capacity_bytes_per_s": sample.capacity_bytes_per_s,
            "rate_cap_bytes_per_s": sample.rate_cap_bytes_per_s,
            "flow_cap_bytes_per_s": sample.flow_cap_bytes_per_s,
            "rtt_s": sample.rtt_s,
            "bytes_per_s": rounded(rate),
            "ratio": None if rate is None else rounded(rate / sample.capacity_bytes_per_s),
            "flows": sample.flows,
            "queued_bytes": sample.queued_bytes,
            "queue_depth": sample.queue_depth,
            "longest_wait_s": rounded(sample.longest_wait_s),
            "wait_s": None if is_stale else self._wait_s(),
            "age_s": rounded(max(now_s - self.at_s, 0.0)),
            "stale": is_stale,
        }


def difference(before: LinkSample, after: LinkSample, at_s: float, seconds: float) -> Carried:
    """What was carried between two samples that had counters."""
    if after.bytes_total < before.bytes_total:
        before = _NOTHING  # the relay has started again
    waits = grown(before.waits_total, after.waits_total)
    has_same_waits = after.waits_total >= before.waits_total and after.waited_s_total >= before.waited_s_total
    return Carried(
        at_s,
        seconds,
        grown(before.bytes_total, after.bytes_total),
        _grown_by(before.bytes_by_pipeline, after.bytes_by_pipeline),
        _grown_by(before.bytes_by_class, after.bytes_by_class),
        waits,
        after.waited_s_total - before.waited_s_total if has_same_waits else after.waited_s_total,
    )


_NOTHING = LinkSample("", "", "", 0.0, 0.0)


def _grown_by(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: grown(before.get(name, 0), count) for name, count in after.items()}
