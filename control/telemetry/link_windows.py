"""What links carried: rates from the differences of byte counters, which may start again from zero."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control.telemetry.records import LinkSample
from control.telemetry.request_slots import rounded

RATE_WINDOW_S = 10.0
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes between two samples."""

    at_s: float
    seconds: float
    total_bytes: int
    by_pipeline: Mapping[str, int]


@dataclass(slots=True)
class LinkSlot:
    """What one link carried within one slot, and its last sample in it."""

    seconds: float = 0.0
    total_bytes: int = 0
    by_pipeline: dict[str, int] = field(default_factory=dict)
    flows: int = 0
    queued_bytes: int = 0

    def add(self, carried: Carried | None, sample: LinkSample) -> None:
        """Count one sample; the first one of a link carries nothing yet."""
        self.flows = sample.flows
        self.queued_bytes = sample.queued_bytes
        if carried is None:
            return
        self.seconds += carried.seconds
        self.total_bytes += carried.total_bytes
        for pipeline, count in carried.by_pipeline.items():
            self.by_pipeline[pipeline] = self.by_pipeline.get(pipeline, 0) + count

    def picture(self) -> dict[str, Any]:
        """Rates are null until two samples make a difference."""
        return {
            "bytes_per_s": self._rate(self.total_bytes),
            "direct_bytes_per_s": self._rate(self.by_pipeline.get("direct", 0)),
            "relay_bytes_per_s": self._rate(self.by_pipeline.get("relay", 0)),
            "flows": self.flows,
            "queued_bytes": self.queued_bytes,
        }

    def _rate(self, count_bytes: int) -> float | None:
        return rounded(count_bytes / self.seconds) if self.seconds else None


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
            "age_s": rounded(max(now_s - self.at_s, 0.0)),
            "stale": is_stale,
        }


def difference(before: LinkSample, after: LinkSample, at_s: float, seconds: float) -> Carried:
    """What was carried between two samples that had counters."""
    has_restarted = after.bytes_total < before.bytes_total
    by_pipeline = {
        pipeline: count if has_restarted else grown(before.bytes_by_pipeline.get(pipeline, 0), count)
        for pipeline, count in after.bytes_by_pipeline.items()
    }
    return Carried(at_s, seconds, grown(before.bytes_total, after.bytes_total), by_pipeline)
