"""What nodes said of themselves: the last sample of each, and the mean load of relay nodes.

One sample a second sees a sequence of half a second in every second round only, so load is a mean over samples.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from control.domain.topology import Role
from control.telemetry.records import NodeSample
from control.telemetry.request_slots import rounded

LOAD_WINDOW_S = 10.0
UNREACHABLE = "unreachable"


@dataclass(slots=True)
class NodeSlot:
    """The samples of one relay node within one slot that it answered."""

    samples: int = 0
    running: int = 0
    waiting: int = 0
    slots: int = 0

    def add(self, sample: NodeSample) -> None:
        """Count one sample."""
        self.samples += 1
        self.running += sample.running
        self.waiting += sample.waiting
        self.slots = sample.slots


@dataclass(slots=True)
class NodeTrack:
    """One node as last seen, and how many sequences it ran in the last seconds."""

    sample: NodeSample
    at_s: float
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer when last asked."""
        return self.sample.state == UNREACHABLE

    def advance(self, sample: NodeSample, at_s: float) -> None:
        """Take the next sample."""
        self.sample, self.at_s = sample, at_s
        if not self.is_silent:
            self.recent.append((at_s, sample.running))
        while self.recent and self.recent[0][0] <= at_s - LOAD_WINDOW_S:
            self.recent.popleft()

    def mean_running(self) -> float:
        """Sequences running, mean over the last `LOAD_WINDOW_S`."""
        return sum(running for _, running in self.recent) / len(self.recent) if self.recent else 0.0

    def picture(self, now_s: float, stale_after_s: float) -> dict[str, Any]:
        """The node as the page shows it; figures of one that does not answer are null."""
        sample = self.sample
        figures = {
            "running": sample.running,
            "waiting": sample.waiting,
            "slots": sample.slots,
            "resident_tokens": sample.resident_tokens,
            "capacity_tokens": sample.capacity_tokens,
            "leased_bytes": sample.leased_bytes,
            "stranded_bytes": sample.stranded_bytes,
            "stranded_age_s": rounded(sample.stranded_age_s),
            "exact": sample.exact,
        }
        return {
            "name": sample.node,
            "site": sample.site,
            "role": sample.role,
            "state": sample.state,
            **(dict.fromkeys(figures) if self.is_silent else figures),
            "age_s": rounded(max(now_s - self.at_s, 0.0)),
            "stale": now_s - self.at_s > stale_after_s,
        }


def is_relay(sample: NodeSample) -> bool:
    """Whether a sample counts towards the load of relay nodes."""
    return sample.role == Role.RELAY and sample.state != UNREACHABLE


def relay_load(slots: Iterable[NodeSlot]) -> dict[str, float] | None:
    """Mean running and waiting, and slots, over the relay nodes that answered; None if none did."""
    answered = list(slots)
    if not answered:
        return None
    return {
        "running": round(sum(slot.running / slot.samples for slot in answered), 2),
        "waiting": round(sum(slot.waiting / slot.samples for slot in answered), 2),
        "slots": sum(slot.slots for slot in answered),
    }


def relay_utilization(tracks: Iterable[NodeTrack], now_s: float, stale_after_s: float) -> float | None:
    """Mean running / slots over the relay nodes that answer now; None if none does."""
    live = [track for track in tracks if is_relay(track.sample) and now_s - track.at_s <= stale_after_s]
    slots = sum(track.sample.slots for track in live)
    return sum(track.mean_running() for track in live) / slots if slots else None
