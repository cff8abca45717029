"""Who reports: the age of each gateway and observer, batches already seen, and changes of the policy they run."""

from dataclasses import dataclass, field
from typing import Any, Literal

from control.domain.slo import Objectives
from control.telemetry.records import RequestBatch, SampleBatch
from control.telemetry.request_slots import rounded

STALE_AFTER_S = 5.0

Kind = Literal["gateway", "observer"]


@dataclass(slots=True)
class Source:
    """One sender of batches; `seen` holds the keys of its recent batches with the time they were sent."""

    name: str
    kind: Kind
    site: str
    sent_at_s: float = 0.0
    epoch: int = 0
    revision: int = 0
    dropped: int = 0
    objectives: Objectives | None = None
    class_objectives: dict[str, Objectives] = field(default_factory=dict)
    seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def is_new(self, epoch: int, sequence: int, sent_at_s: float) -> bool:
        """Whether a batch has not been seen; it has been from now on."""
        if (epoch, sequence) in self.seen:
            return False
        self.seen[epoch, sequence] = sent_at_s
        return True

    def forget_before(self, at_s: float) -> None:
        """Drop keys of batches too old to be accepted again."""
        self.seen = {key: sent_at_s for key, sent_at_s in self.seen.items() if sent_at_s >= at_s}

    def advance_requests(self, batch: RequestBatch) -> int | None:
        """Take over what the newest batch says; returns the policy revision if it changed from a known one."""
        if batch.sent_at_s < self.sent_at_s:
            return None
        before, self.revision = self.revision, batch.policy_revision
        self.sent_at_s, self.epoch, self.dropped = batch.sent_at_s, batch.epoch, batch.dropped_records
        self.objectives = batch_objectives(batch) or self.objectives
        self.class_objectives = class_objectives(batch) or self.class_objectives
        return self.revision if before and self.revision and self.revision != before else None

    def advance_samples(self, batch: SampleBatch) -> bool:
        """Take over what the newest batch says; False if a newer one was there before."""
        if batch.sent_at_s <= self.sent_at_s:
            return False
        self.sent_at_s, self.epoch, self.dropped = batch.sent_at_s, batch.epoch, batch.dropped_batches
        return True

    def is_stale(self, now_s: float) -> bool:
        """Whether it has been silent for longer than a healthy sender ever is."""
        return now_s - self.sent_at_s > STALE_AFTER_S

    def picture(self, now_s: float) -> dict[str, Any]:
        """The source as the page shows it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "site": self.site,
            "age_s": rounded(max(now_s - self.sent_at_s, 0.0)),
            "stale": self.is_stale(now_s),
            "dropped": self.dropped,
            "revision": self.revision or None,
        }


class Promised:
    """What a gateway promised to each service class; `default` to those that it does not name."""

    def __init__(self, batch: RequestBatch) -> None:
        self.default = batch_objectives(batch) or Objectives()
        self._classes = class_objectives(batch)

    def to(self, service_class: str) -> Objectives:
        """Objectives of one class."""
        return self._classes.get(service_class, self.default)


def class_objectives(batch: RequestBatch) -> dict[str, Objectives]:
    """Objectives of each service class that a gateway names."""
    return {name: Objectives(*promised) for name, promised in batch.class_objectives.items()}


def batch_objectives(batch: RequestBatch) -> Objectives | None:
    """Objectives a gateway runs under, None if it does not say."""
    p90_s, p99_s, tpot_s = batch.slo_ttft_p90_s, batch.slo_ttft_p99_s, batch.slo_tpot_p90_s
    if p90_s is None or p99_s is None or tpot_s is None:
        return None
    return Objectives(ttft_p90_s=p90_s, ttft_p99_s=p99_s, tpot_p90_s=tpot_s)
