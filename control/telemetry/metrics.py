"""What the telemetry consumer says of itself to Prometheus."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from control.metric_catalogue import MetricFacts, Process, metric
from control.metrics_server import Reading
from control.telemetry.records import SampleBatch
from control.telemetry.rollup_writer import Entry, RollupWriter


@dataclass(slots=True)
class IngestCounts:
    """What a consumer has done since it started."""

    records: int = 0
    ticks: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def note(self, entries: Sequence[Entry]) -> None:
        """Count entries of the streams."""
        for entry in entries:
            if entry.batch is None:
                self.entries["unreadable"] += 1
            elif isinstance(entry.batch, SampleBatch):
                self.entries["samples"] += 1
            else:
                self.entries["requests"] += 1
                self.records += len(entry.batch.records)

    def readings(self, rollups: RollupWriter | None, now_s: float) -> Iterator[Reading]:
        """All figures; called from another thread."""
        yield _facts("records"), [((), float(self.records))]
        yield _facts("entries"), _series(self.entries)
        yield _facts("left_out"), _series(self.left_out)
        yield _facts("ticks"), [((), float(self.ticks))]
        yield _facts("saves"), _series(rollups.saves if rollups else Counter())
        saved_at_s = rollups.saved_at_s if rollups else None
        yield _facts("save_age_seconds"), [] if saved_at_s is None else [((), max(now_s - saved_at_s, 0.0))]


def _facts(name: str) -> MetricFacts:
    return metric(Process.TELEMETRY, f"pdd_telemetry_{name}")


def _series(counts: Counter[str]) -> list[tuple[tuple[str, ...], float]]:
    return [((name,), float(count)) for name, count in list(counts.items())]
