"""What nodes said of themselves: the last sample of each, and the load of relay nodes by slot."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from control.domain.topology import Role
from control.telemetry.records import NodeSample
from control.telemetry.request_slots import rounded

UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The last sample of a node and when it was taken, Unix time."""

    sample: NodeSample
    at_s: float

    def picture(self, now_s: float, stale_after_s: float) -> dict[str, Any]:
        """The node as the page shows it; figures of one that does not answer are null."""
        sample = self.sample
        is_silent = sample.state == UNREACHABLE
        figures = {
            "running": sample.running,
            "waiting": sample.waiting,
            "slots": sample.slots,
            "resident_tokens": sample.resident_tokens,
            "capacity_tokens": sample.capacity_tokens,
            "leased_bytes": sample.leased_bytes,
            "exact": sample.exact,
        }
        return {
            "name": sample.node,
            "site": sample.site,
            "role": sample.role,
            "state": sample.state,
            **(dict.fromkeys(figures) if is_silent else figures),
            "age_s": rounded(max(now_s - self.at_s, 0.0)),
            "stale": now_s - self.at_s > stale_after_s,
        }


def relay_load(samples: Iterable[NodeSample]) -> dict[str, int] | None:
    """Running, waiting and slots over the relay nodes that answered; None if none did."""
    answered = [sample for sample in samples if sample.role == Role.RELAY and sample.state != UNREACHABLE]
    if not answered:
        return None
    return {
        "running": sum(sample.running for sample in answered),
        "waiting": sum(sample.waiting for sample in answered),
        "slots": sum(sample.slots for sample in answered),
    }


def relay_utilization(load: Mapping[str, int] | None) -> float | None:
    """Running / slots of the relay nodes; None without data."""
    return load["running"] / load["slots"] if load and load["slots"] else None
