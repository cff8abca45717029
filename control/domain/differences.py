"""What tells some requests from the rest: their shares by site, node, pipeline, prompt length and the like."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MIN_SHARE = 0.05
MIN_REQUESTS = 2
PROMPT_BANDS = ((1024, "up to 1K"), (4096, "1K to 4K"), (16_384, "4K to 16K"), (65_536, "16K to 64K"))
LONGEST_BAND = "over 64K"

Facts = Mapping[str, str]
"""One request: what it is by dimension. An empty word means that the dimension does not apply."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of one dimension. Counts are requests, shares run from 0 to 1.

    `lift` is the share among the selected / the share among the rest, each with half a request added so that few
    requests make no large figure.
    """

    dimension: str
    value: str
    selected: float
    rest: float
    selected_share: float
    rest_share: float
    lift: float


def prompt_band(input_tokens: int) -> str:
    """How long a prompt is, in words."""
    return next((name for limit, name in PROMPT_BANDS if input_tokens <= limit), LONGEST_BAND)


def find_differences(
    selected: Iterable[tuple[Facts, float]], rest: Iterable[tuple[Facts, float]]
) -> tuple[Difference, ...]:
    """Values that are commoner among the selected than among the rest, the largest lift first.

    Each request comes with how many it stands for. Values of less than one in twenty of the selected are left out, and
    so is what all of both have in common. Without a rest nothing can be told.
    """
    here, there = _tally(selected), _tally(rest)
    if not here.total or not there.total:
        return ()
    found = (
        _difference(dimension, value, here, there)
        for dimension, counts in here.counts.items()
        for value, count in counts.items()
        if count >= MIN_REQUESTS and count >= MIN_SHARE * here.total
    )
    larger = (one for one in found if one.selected_share > one.rest_share and one.lift > 1)
    return tuple(sorted(larger, key=lambda one: (-one.lift, -one.selected_share, one.dimension, one.value)))


@dataclass(slots=True)
class _Tally:
    total: float
    counts: dict[str, Counter[str]]


def _tally(requests: Iterable[tuple[Facts, float]]) -> _Tally:
    tally = _Tally(0.0, {})
    for facts, weight in requests:
        tally.total += weight
        for dimension, value in facts.items():
            if value:
                tally.counts.setdefault(dimension, Counter())[value] += weight  # type: ignore[assignment]
    return tally


def _difference(dimension: str, value: str, here: _Tally, there: _Tally) -> Difference:
    selected = float(here.counts[dimension][value])
    rest = float(there.counts.get(dimension, Counter())[value])
    lift = ((selected + 0.5) / (here.total + 1)) / ((rest + 0.5) / (there.total + 1))
    return Difference(dimension, value, selected, rest, selected / here.total, rest / there.total, lift)
