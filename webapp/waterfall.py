"""The waterfall of one request laid out: rows in causal order, positions in percent of one time axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control.domain.waterfall import StageSpan

ORDER: Final = ("tokenize", "queue", "prefill", "kv_rdma", "relay_decode", "kv_wan", "handoff", "main_decode")
NODE_OF: Final[Mapping[str, str]] = {
    "tokenize": "prefill",
    "queue": "prefill",
    "prefill": "prefill",
    "kv_rdma": "relay",
    "relay_decode": "relay",
    "kv_wan": "main",
    "handoff": "main",
    "main_decode": "main",
}
LATER_THAN_TTFT: Final = frozenset({"relay_decode", "main_decode"})
TICKS: Final = 6
_STEPS: Final = (1, 2, 5, 10)
LEAST_EXCESS_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of a stage, percent of the axis; `is_cut` where it goes on beyond the axis."""

    left: float
    width: float
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage: its pieces, those among them that the first token waited for, and the median of its kind."""

    name: str
    node_role: str
    bars: tuple[Bar, ...]
    critical: tuple[Bar, ...]
    median: Bar | None
    duration_s: float
    median_s: float | None
    end_s: float


@dataclass(frozen=True, slots=True)
class Excess:
    """How much longer a stage held up the first token than the median request's stage took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Layout:
    """All rows, and where the moments lie; percent of the axis, None where they do not."""

    length_s: float
    rows: tuple[StageRow, ...]
    ticks: tuple[tuple[float, float], ...]
    ttft: float | None
    slo: float | None
    median_ttft: float | None
    excess: tuple[Excess, ...]
    hidden_s: float


def lay_out(
    stages: Sequence[StageSpan],
    critical_path: Sequence[StageSpan],
    median_stages: Sequence[StageSpan],
    *,
    ttft_s: float | None,
    e2e_s: float,
    slo_s: float | None,
    median_ttft_s: float | None,
) -> Layout:
    """Place everything on one axis, long enough for all that led to the first token; a long decode is cut."""
    length_s = _axis_s(stages, median_stages, ttft_s, e2e_s, median_ttft_s)
    medians = {span.name: span for span in median_stages}
    names = sorted({span.name for span in (*stages, *median_stages)}, key=_rank)
    rows = tuple(
        _row(name, [one for one in stages if one.name == name], critical_path, medians.get(name), length_s)
        for name in names
    )

    def place(moment_s: float | None) -> float | None:
        return None if moment_s is None or moment_s > length_s else 100 * moment_s / length_s

    return Layout(
        length_s=length_s,
        rows=rows,
        ticks=tuple((at_s, 100 * at_s / length_s) for at_s in _ticks(length_s)),
        ttft=place(ttft_s),
        slo=place(slo_s),
        median_ttft=place(median_ttft_s),
        excess=_excess(critical_path, medians),
        hidden_s=hidden_transfer_s(stages, ttft_s),
    )


def hidden_transfer_s(stages: Sequence[StageSpan], ttft_s: float | None) -> float:
    """How long KV still crossed the WAN while the client was already reading, seconds."""
    ends = [span.end_s for span in stages if span.name == "kv_wan"]
    is_relayed = any(span.name == "relay_decode" for span in stages)
    return max(0.0, max(ends) - ttft_s) if ends and is_relayed and ttft_s is not None else 0.0


def _axis_s(
    stages: Sequence[StageSpan],
    medians: Sequence[StageSpan],
    ttft_s: float | None,
    e2e_s: float,
    median_ttft_s: float | None,
) -> float:
    before = [span.end_s for span in (*stages, *medians) if span.name not in LATER_THAN_TTFT]
    least_s = max([*before, (ttft_s or 0.0) * 1.3, (median_ttft_s or 0.0) * 1.1, 0.01]) * 1.08
    ends_s = max([e2e_s, *(span.end_s for span in stages), least_s])
    # A decode of twice that length is still shown whole; what is longer would press all before it together.
    return ends_s if ends_s <= 2 * least_s else 1.5 * least_s


def _row(
    name: str, pieces: Sequence[StageSpan], path: Sequence[StageSpan], median: StageSpan | None, length_s: float
) -> StageRow:
    critical = tuple(_bar(span, length_s) for span in path if span.name == name)
    return StageRow(
        name=name,
        node_role=NODE_OF.get(name, ""),
        bars=tuple(_bar(span, length_s) for span in pieces if span.start_s < length_s),
        critical=critical,
        median=_bar(median, length_s) if median and median.start_s < length_s else None,
        duration_s=sum(span.end_s - span.start_s for span in pieces),
        median_s=None if median is None else median.end_s - median.start_s,
        end_s=max((span.end_s for span in pieces), default=0.0),
    )


def _bar(span: StageSpan, length_s: float) -> Bar:
    until_s = min(span.end_s, length_s)
    width = max(100 * (until_s - span.start_s) / length_s, 0.3)
    return Bar(round(100 * span.start_s / length_s, 3), round(width, 3), span.end_s > length_s)


def _rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _ticks(length_s: float) -> list[float]:
    rough = length_s / TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough)
    return [round(index * step, 6) for index in range(int(length_s / step) + 1)]


def _excess(path: Sequence[StageSpan], medians: Mapping[str, StageSpan]) -> tuple[Excess, ...]:
    waited: dict[str, float] = {}
    for span in path:
        waited[span.name] = waited.get(span.name, 0.0) + span.end_s - span.start_s
    found = (
        Excess(name, seconds - (medians[name].end_s - medians[name].start_s if name in medians else 0.0))
        for name, seconds in waited.items()
    )
    return tuple(sorted((one for one in found if one.seconds > LEAST_EXCESS_S), key=lambda one: -one.seconds))
