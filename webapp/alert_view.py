"""Alerts, objectives and silences as the Alerts page shows them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from control.domain.alert_metrics import METRICS_BY_NAME
from control.domain.alert_rules import Severity
from control.domain.alerts import AlertState
from control.domain.burn_rate import BurnState, PairBurn
from control.domain.silences import Matcher, Operator
from control.domain.slo import Indicator
from control.services.alerts import SeenAlert
from control.services.slos import SloStatus, StatedSlo
from control.store.tables import AlertRow

TIMELINE_WIDTH: Final = 1000.0
# How much time a timeline may cover, the shortest first.
TIMELINE_SPANS: Final = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))
_OPERATORS: Final = ("!=", "~", "=")
_TONES: Final = {BurnState.OK: "ok", BurnState.BURNING: "bad", BurnState.EXHAUSTED: "bad", BurnState.UNKNOWN: ""}
_SEVERITY_TONES: Final = {Severity.INFO: "accent", Severity.WARNING: "warn", Severity.CRITICAL: "bad"}


@dataclass(frozen=True, slots=True)
class WindowView:
    """One window of a pair; `rate` is None without events, `ratio` is how much of the factor it reaches, at most 1."""

    seconds: int
    rate: float | None
    ratio: float


@dataclass(frozen=True, slots=True)
class PairView:
    """Two windows that must both burn faster than a factor."""

    name: str
    factor: float
    state: str
    windows: tuple[WindowView, ...]


@dataclass(frozen=True, slots=True)
class SloCard:
    """An objective and how it is kept; `budget_left` is None without events, negative when overspent."""

    stated: StatedSlo
    state: str
    tone: str
    threshold: str
    budget_left: float | None
    bad: int
    total: int
    pairs: tuple[PairView, ...]

    @property
    def is_stated_by_policy(self) -> bool:
        """Whether it comes from a service class, and nobody has set it."""
        return self.stated.updated_at is None


@dataclass(frozen=True, slots=True)
class AlertView:
    """One episode."""

    row: AlertRow
    tone: str
    labels: str
    value: str
    threshold: str
    unit: str
    since: datetime
    silenced_by: tuple[int, ...]
    silence_text: str


@dataclass(frozen=True, slots=True)
class SpanView:
    """A piece of a timeline, in thousandths of its width."""

    x: float
    width: float
    state: str
    label: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """All episodes of a rule on one series."""

    rule: str
    labels: str
    spans: tuple[SpanView, ...]


def slo_card(stated: StatedSlo, status: SloStatus) -> SloCard:
    """An objective with both pairs of windows."""
    slo = stated.slo
    threshold = "" if slo.threshold_s is None else _seconds(slo.threshold_s)
    if slo.indicator is Indicator.TPOT and slo.threshold_s is not None:
        threshold = f"{slo.threshold_s * 1000:.6g} ms"
    return SloCard(
        stated=stated,
        state=status.state.value,
        tone=_TONES[status.state],
        threshold=threshold,
        budget_left=status.budget_left,
        bad=status.budget.bad,
        total=status.budget.total,
        pairs=tuple(_pair(burn) for burn in status.pairs),
    )


def alert_view(seen: SeenAlert) -> AlertView:
    """An alert, its value in the unit of its metric where the rule is known."""
    row = seen.row
    return AlertView(
        row=row,
        tone="" if row.state != AlertState.FIRING else _SEVERITY_TONES[Severity(row.severity)],
        labels=labels_text(row.labels),
        value="" if row.value is None else f"{row.value:.4g}",
        threshold=f"{row.threshold:.4g}",
        unit="",
        since=row.fired_at or row.pending_at,
        silenced_by=seen.silenced_by,
        silence_text=silence_text(row),
    )


def silence_text(row: AlertRow) -> str:
    """Matchers that meet this alert and its like, a line each."""
    named = {"alertname": row.rule, **row.labels}
    return "\n".join(f"{label}={value}" for label, value in named.items())


def metric_unit(metric: str) -> str:
    """Unit of a metric; empty where there is none of that name."""
    known = METRICS_BY_NAME.get(metric)
    return known.unit if known else ""


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels in one line."""
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def parse_matchers(text: str) -> tuple[list[Matcher], list[str]]:
    """Matchers, a line each, such as `site=ams`; and the lines that are none."""
    found, wrong = [], []
    for line in filter(None, (line.strip() for line in text.replace(",", "\n").splitlines())):
        operator = next((sign for sign in _OPERATORS if sign in line), "")
        label, _, value = line.partition(operator) if operator else ("", "", "")
        if not label.strip():
            wrong.append(line)
        else:
            found.append(Matcher(label.strip(), Operator(operator), value.strip()))
    return found, wrong


def matchers_text(documents: Sequence[Mapping[str, str]]) -> str:
    """Stored matchers, a line each; `parse_matchers` gives the same back."""
    return "\n".join(f"{one['label']}{one['operator']}{one['value']}" for one in documents)


def timeline_span(rows: Iterable[AlertRow], now: datetime) -> timedelta:
    """The shortest time that shows all that the longest one would."""
    begins = [row.pending_at for row in rows if (row.resolved_at or now) >= now - TIMELINE_SPANS[-1]]
    age = now - min(begins, default=now)
    return next((span for span in TIMELINE_SPANS if age <= span), TIMELINE_SPANS[-1])


def timeline(rows: Iterable[AlertRow], now: datetime, span: timedelta) -> list[TimelineRow]:
    """Episodes that touch the last `span`, by rule and labels; waiting and firing are told apart."""
    begin = now - span
    grouped: dict[tuple[str, str], list[SpanView]] = {}
    for row in rows:
        end = row.resolved_at or now
        if end < begin:
            continue
        spans = grouped.setdefault((row.rule, labels_text(row.labels)), [])
        if row.fired_at is None:
            spans.append(_span(row.pending_at, end, "pending", begin, span))
            continue
        spans.append(_span(row.pending_at, row.fired_at, "pending", begin, span))
        state = "unknown" if row.is_unknown and row.state == AlertState.FIRING else row.severity
        spans.append(_span(row.fired_at, end, state, begin, span))
    ordered = sorted(grouped.items())
    return [TimelineRow(rule, labels, tuple(one for one in spans if one.width)) for (rule, labels), spans in ordered]


def _span(start: datetime, end: datetime, state: str, begin: datetime, span: timedelta) -> SpanView:
    scale = TIMELINE_WIDTH / span.total_seconds()
    x = max(0.0, (start - begin).total_seconds() * scale)
    until = min(TIMELINE_WIDTH, max(0.0, (end - begin).total_seconds() * scale))
    # Two thousandths stay visible however short it was.
    width = 0.0 if until <= 0 or start == end else max(2.0, until - x)
    return SpanView(round(x, 1), round(width, 1), state, f"{start:%H:%M:%S} – {end:%H:%M:%S}")


def _pair(burn: PairBurn) -> PairView:
    pair = burn.pair
    windows = ((pair.short_s, burn.short_rate), (pair.long_s, burn.long_rate))
    return PairView(
        pair.name,
        pair.factor,
        burn.state.value,
        tuple(WindowView(size, rate, min(1.0, (rate or 0.0) / pair.factor)) for size, rate in windows),
    )


def _seconds(value: float) -> str:
    return f"{value:.6g} s"
