"""Stages of requests on one axis: the median of many, and the ones that a request really waited for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

MIN_SHARE = 0.5
SAME_MOMENT_S = 0.002


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A part of a request, seconds after it was received."""

    name: str
    start_s: float
    end_s: float


def median_stages(requests: Iterable[Sequence[StageSpan]]) -> tuple[StageSpan, ...]:
    """Each stage that at least half of the requests have: median of its beginnings and of its ends.

    A stage that a request went through more than once counts from the first beginning to the last end.
    """
    count = 0
    spans: dict[str, list[StageSpan]] = {}
    for stages in requests:
        count += 1
        for span in _whole(stages):
            spans.setdefault(span.name, []).append(span)
    common = (many for many in spans.values() if len(many) >= MIN_SHARE * count)
    medians = (
        StageSpan(many[0].name, median(one.start_s for one in many), median(one.end_s for one in many))
        for many in common
    )
    return tuple(sorted(medians, key=lambda span: (span.start_s, span.end_s)))


def critical_path(stages: Sequence[StageSpan], until_s: float) -> tuple[StageSpan, ...]:
    """What ran, piece by piece, up to a moment, so that each piece waited for the one before.

    Going back from the moment, the piece before is the stage whose end began this one; if there is none, of those that
    were still running the one that began last, cut; else the one that ended last. Time in which nothing ran is left
    out.
    """
    path: list[StageSpan] = []
    reached_s = until_s
    while before := [stage for stage in stages if stage.start_s < reached_s and stage.end_s > stage.start_s]:
        last = max(before, key=lambda stage: _causes(stage, reached_s))
        path.append(StageSpan(last.name, last.start_s, min(last.end_s, reached_s)))
        reached_s = last.start_s
    return tuple(reversed(path))


def _causes(stage: StageSpan, reached_s: float) -> tuple[int, float]:
    if abs(stage.end_s - reached_s) <= SAME_MOMENT_S:
        return 2, -stage.start_s
    if stage.end_s > reached_s:
        return 1, stage.start_s
    return 0, stage.end_s


def _whole(stages: Sequence[StageSpan]) -> Iterable[StageSpan]:
    names = dict.fromkeys(stage.name for stage in stages)
    for name in names:
        same = [stage for stage in stages if stage.name == name]
        yield StageSpan(name, min(stage.start_s for stage in same), max(stage.end_s for stage in same))
