"""Sums over any range of time, as series for charts: null where nobody reported, zero where nobody asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeVar

from sqlmodel import Session

from control.domain.histogram import Histogram
from control.domain.rollups import (
    RESOLUTIONS,
    UNKNOWN_BUCKET,
    Exemplar,
    LinkSums,
    RequestKey,
    RequestSums,
    Resolution,
    SiteSums,
)
from control.store.rollups import Spans, load_link_rollups, load_site_rollups, sum_request_rollups

MAX_POINTS = 900
MAX_SERIES = 24
_FIGURES = (
    *("requests", "completed", "client_closed", "shed", "failed", "good", "input_tokens", "uncached_tokens"),
    *("output_tokens", "eager_tokens", "handoffs", "catch_up", "lag_token_s"),
    *("ttft", "tpot", "transfer", "stall", "slowest"),
)

_Sums = TypeVar("_Sums", RequestSums, LinkSums, SiteSums)
_Figure = TypeVar("_Figure")


class Dimension(StrEnum):
    """What series can be told apart by."""

    ALL = "all"
    SITE = "site"
    PIPELINE = "pipeline"
    BUCKET = "bucket"
    REVISION = "revision"
    SERVICE_CLASS = "service_class"


_VALUES: dict[Dimension, Callable[[RequestKey], str]] = {
    Dimension.ALL: lambda _: "all",
    Dimension.SITE: lambda key: key.site,
    Dimension.PIPELINE: lambda key: key.pipeline,
    Dimension.BUCKET: lambda key: "unknown" if key.hit_bucket == UNKNOWN_BUCKET else str(key.hit_bucket),
    Dimension.REVISION: lambda key: str(key.revision),
    Dimension.SERVICE_CLASS: lambda key: key.service_class,
}


@dataclass(frozen=True, slots=True)
class Slice:
    """Which requests are counted; None counts all."""

    site: str | None = None
    pipeline: str | None = None
    hit_bucket: int | None = None
    service_class: str | None = None
    revision: int | None = None

    @property
    def stated(self) -> dict[str, object]:
        """What is wanted, by the name of the key's part."""
        wanted = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in wanted.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RequestSeries:
    """One line of a chart: each list has a place for each moment, null where nobody reported. Durations in seconds."""

    name: str
    requests: list[int | None]
    errors: list[int | None]
    served: list[int | None]
    good: list[int | None]
    ttft_p50_s: list[float | None]
    ttft_p90_s: list[float | None]
    ttft_p99_s: list[float | None]
    tpot_p50_s: list[float | None]
    tpot_p90_s: list[float | None]
    transfer_p99_s: list[float | None]
    stall_p99_s: list[float | None]
    input_tokens: list[int | None]
    uncached_tokens: list[int | None]
    output_tokens: list[int | None]
    eager_tokens: list[int | None]
    one_shot: list[int | None]
    catch_up: list[int | None]
    cache_lag_tokens: list[float | None]
    slowest_id: list[str | None]
    slowest_ttft_s: list[float | None]


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """Series of requests; `at_s` has the beginning of each span, Unix seconds."""

    span_s: int
    at_s: list[int]
    series: list[RequestSeries]
    left_out: int


@dataclass(frozen=True, slots=True)
class LinkSeries:
    """What one link carried."""

    link: str
    bytes_per_s: list[float | None]
    direct_bytes_per_s: list[float | None]
    relay_bytes_per_s: list[float | None]
    capacity_bytes_per_s: list[float | None]
    utilization: list[float | None]
    flaps: list[int | None]


@dataclass(frozen=True, slots=True)
class SiteSeries:
    """What one site's observer saw: means over its rounds."""

    site: str
    relay_running: list[float | None]
    relay_waiting: list[float | None]
    relay_slots: list[float | None]
    relay_utilization: list[float | None]
    stranded_bytes: list[float | None]
    unreachable_nodes: list[float | None]


def fitting_spans(since_s: float, until_s: float, now_s: float) -> Spans:
    """The shortest spans of which the range has at most `MAX_POINTS`, and which are still kept; the longest if none.

    A range that is too long even for those loses its beginning.
    """
    length_s = until_s - since_s
    fits = (one for one in RESOLUTIONS if length_s / one.span_s <= MAX_POINTS and since_s >= now_s - one.kept_s)
    resolution = next(fits, RESOLUTIONS[-1])
    first_s = max(since_s, until_s - MAX_POINTS * resolution.span_s)
    return Spans(resolution, resolution.start_s(first_s), until_s)


def load_request_history(session: Session, spans: Spans, by: Dimension, wanted: Slice) -> RequestHistory:
    """Counts and quantiles of requests over a range, a series for each value of a dimension."""
    value_of = _VALUES[by]
    cells = sum_request_rollups(session, spans, lambda key: (value_of(key), key.at_s), _FIGURES, wanted.stated)
    reports = load_site_rollups(session, spans.resolution, spans.since_s, spans.until_s)
    known = {key.at_s for key, sums in reports.items() if sums.gateway_batches and wanted.site in {None, key.site}} | {
        at_s for _, at_s in cells
    }
    times = span_starts(spans)
    totals: dict[str, int] = {}
    for (name, _), sums in cells.items():
        totals[name] = totals.get(name, 0) + sums.requests
    names = sorted(totals, key=lambda name: (-totals[name], name)) or (["all"] if by is Dimension.ALL else [])
    nothing = RequestSums()
    series = [
        _request_series(
            name, [cells.get((name, at_s), nothing if at_s in known else None) for at_s in times], spans.resolution
        )
        for name in sorted(names[:MAX_SERIES])
    ]
    return RequestHistory(spans.resolution.span_s, times, series, max(len(names) - MAX_SERIES, 0))


def load_link_history(session: Session, spans: Spans) -> list[LinkSeries]:
    """What each link carried over a range."""
    found = load_link_rollups(session, spans.resolution, spans.since_s, spans.until_s)
    times = span_starts(spans)
    cells = {(key.link, key.at_s): sums for key, sums in found.items() if sums.seconds}
    return [
        _link_series(link, [cells.get((link, at_s)) for at_s in times]) for link in sorted({key.link for key in found})
    ]


def load_site_history(session: Session, spans: Spans) -> list[SiteSeries]:
    """What each site's nodes did over a range."""
    found = load_site_rollups(session, spans.resolution, spans.since_s, spans.until_s)
    times = span_starts(spans)
    cells = {(key.site, key.at_s): sums for key, sums in found.items() if sums.observer_batches}
    return [
        _site_series(site, [cells.get((site, at_s)) for at_s in times]) for site in sorted({key.site for key in found})
    ]


def span_starts(spans: Spans) -> list[int]:
    """The beginning of each span of a range, Unix seconds."""
    span_s = spans.resolution.span_s
    return [at_s for at_s in range(int(spans.since_s), int(spans.until_s) + 1, span_s) if at_s < spans.until_s]


def _request_series(name: str, cells: Sequence[RequestSums | None], resolution: Resolution) -> RequestSeries:
    ttft = _quantiles(cells, lambda sums: sums.ttft, 0.5, 0.9, 0.99)
    tpot = _quantiles(cells, lambda sums: sums.tpot, 0.5, 0.9)
    slowest: list[Exemplar | None] = [sums.slowest if sums and sums.slowest.request_id else None for sums in cells]
    return RequestSeries(
        name=name,
        requests=_each(cells, lambda sums: sums.requests),
        errors=_each(cells, lambda sums: sums.errors),
        served=_each(cells, lambda sums: sums.answered),
        good=_each(cells, lambda sums: sums.good),
        ttft_p50_s=ttft[0],
        ttft_p90_s=ttft[1],
        ttft_p99_s=ttft[2],
        tpot_p50_s=tpot[0],
        tpot_p90_s=tpot[1],
        transfer_p99_s=_quantiles(cells, lambda sums: sums.transfer, 0.99)[0],
        stall_p99_s=_quantiles(cells, lambda sums: sums.stall, 0.99)[0],
        input_tokens=_each(cells, lambda sums: sums.input_tokens),
        uncached_tokens=_each(cells, lambda sums: sums.uncached_tokens),
        output_tokens=_each(cells, lambda sums: sums.output_tokens),
        eager_tokens=_each(cells, lambda sums: sums.eager_tokens),
        one_shot=_each(cells, lambda sums: sums.handoffs - sums.catch_up),
        catch_up=_each(cells, lambda sums: sums.catch_up),
        cache_lag_tokens=_each(cells, lambda sums: sums.lag_token_s / resolution.span_s),
        slowest_id=[one.request_id if one else None for one in slowest],
        slowest_ttft_s=[one.ttft_s if one else None for one in slowest],
    )


def _link_series(link: str, cells: Sequence[LinkSums | None]) -> LinkSeries:
    return LinkSeries(
        link=link,
        bytes_per_s=_each(cells, lambda sums: sums.total_bytes / sums.seconds),
        direct_bytes_per_s=_each(cells, lambda sums: sums.direct_bytes / sums.seconds),
        relay_bytes_per_s=_each(cells, lambda sums: sums.relay_bytes / sums.seconds),
        capacity_bytes_per_s=_each(cells, lambda sums: sums.capacity_bytes / sums.seconds),
        utilization=_each(cells, lambda sums: sums.total_bytes / sums.capacity_bytes if sums.capacity_bytes else None),
        flaps=_each(cells, lambda sums: sums.flaps),
    )


def _site_series(site: str, cells: Sequence[SiteSums | None]) -> SiteSeries:
    return SiteSeries(
        site=site,
        relay_running=_each(cells, lambda sums: sums.relay_running / sums.observer_batches),
        relay_waiting=_each(cells, lambda sums: sums.relay_waiting / sums.observer_batches),
        relay_slots=_each(cells, lambda sums: sums.relay_slots / sums.observer_batches),
        relay_utilization=_each(
            cells, lambda sums: sums.relay_running / sums.relay_slots if sums.relay_slots else None
        ),
        stranded_bytes=_each(cells, lambda sums: sums.stranded_bytes / sums.observer_batches),
        unreachable_nodes=_each(cells, lambda sums: sums.unreachable_samples / sums.observer_batches),
    )


def _each(cells: Iterable[_Sums | None], figure: Callable[[_Sums], _Figure | None]) -> list[_Figure | None]:
    return [None if sums is None else figure(sums) for sums in cells]


def _quantiles(
    cells: Iterable[RequestSums | None], histogram_of: Callable[[RequestSums], Histogram], *ranks: float
) -> list[list[float | None]]:
    found = [None if sums is None else histogram_of(sums).quantiles(*ranks) for sums in cells]
    return [[None if values is None else round(values[index], 6) for values in found] for index in range(len(ranks))]
