"""Sums of telemetry over REST: any range of time, at the resolution that fits it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from control.api.dependencies import Plane, Viewer
from control.api.moments import Moment
from control.api.schemas import MAX_NUMBER, FromDomain
from control.domain.policy import FieldProblem
from control.domain.slo import HIT_RATE_BUCKETS
from control.errors import InvalidError
from control.services import history
from control.services.history import Dimension, Slice
from control.services.plane import ControlPlane
from control.store.rollups import Spans

router = APIRouter(prefix="/history", tags=["history"])
DEFAULT_RANGE_S = 3600.0

Counts = list[int | None]
Figures = list[float | None]
Word = Annotated[str | None, Query(max_length=200, pattern="^[^\\x00-\\x1f\\x7f]*$", description="Exactly this one.")]


class RequestSeriesOut(FromDomain):
    """One line of a chart: a place for each moment; null where nobody reported, 0 where nobody asked."""

    name: str = Field(description="The value of the dimension; buckets as 0 to 6, or `unknown`.")
    requests: Counts
    errors: Counts = Field(description="Shed or failed.")
    served: Counts
    good: Counts = Field(description="Completed within the objectives of their class.")
    ttft_p50_s: Figures
    ttft_p90_s: Figures
    ttft_p99_s: Figures
    tpot_p50_s: Figures
    tpot_p90_s: Figures
    transfer_p99_s: Figures
    stall_p99_s: Figures
    input_tokens: Counts
    uncached_tokens: Counts
    output_tokens: Counts
    eager_tokens: Counts
    one_shot: Counts
    catch_up: Counts
    cache_lag_tokens: Figures = Field(description="Mean number of tokens on their way to main nodes.")
    slowest_id: list[str | None] = Field(description="The request that waited longest for its first token.")
    slowest_ttft_s: Figures


class RequestHistoryOut(BaseModel):
    """Requests over time."""

    span_s: int
    at_s: list[int] = Field(description="The beginning of each span, Unix seconds.")
    series: list[RequestSeriesOut]
    left_out: int = Field(description="How many series with fewer requests are not shown.")


class LinkSeriesOut(FromDomain):
    """What one link carried; null where nobody observed it."""

    link: str
    bytes_per_s: Figures
    direct_bytes_per_s: Figures
    relay_bytes_per_s: Figures
    capacity_bytes_per_s: Figures
    utilization: Figures
    flaps: Counts


class LinkHistoryOut(BaseModel):
    """Links over time."""

    span_s: int
    at_s: list[int]
    series: list[LinkSeriesOut]


class SiteSeriesOut(FromDomain):
    """What one site's nodes did, means over each span; null where no observer reported."""

    site: str
    relay_running: Figures
    relay_waiting: Figures
    relay_slots: Figures
    relay_utilization: Figures
    stranded_bytes: Figures
    unreachable_nodes: Figures


class SiteHistoryOut(BaseModel):
    """Sites over time."""

    span_s: int
    at_s: list[int]
    series: list[SiteSeriesOut]


class Range:
    """The range that a query asks for."""

    def __init__(
        self,
        since: Annotated[Moment | None, Query(description="An hour before `until` if left out.")] = None,
        until: Annotated[Moment | None, Query(description="Now if left out.")] = None,
    ) -> None:
        self._since, self._until = since, until

    def spans(self, plane: ControlPlane) -> Spans:
        """Spans that fit it.

        Raises:
            InvalidError: it ends before it begins.
        """
        now_s = plane.now().timestamp()
        until_s = now_s if self._until is None else min(self._until.timestamp(), now_s)
        since_s = until_s - DEFAULT_RANGE_S if self._since is None else self._since.timestamp()
        if since_s > until_s:
            raise InvalidError(problems=[FieldProblem("since", "Must lie before `until`, and not in the future.")])
        return history.fitting_spans(since_s, until_s, now_s)


def request_slice(
    *,
    site: Word = None,
    pipeline: Word = None,
    bucket: Annotated[int | None, Query(ge=0, lt=HIT_RATE_BUCKETS)] = None,
    service_class: Word = None,
    revision: Annotated[int | None, Query(ge=0, le=MAX_NUMBER)] = None,
) -> Slice:
    """Which requests are counted."""
    return Slice(site, pipeline, bucket, service_class, revision)


Asked = Annotated[Range, Depends()]


@router.get("/requests")
def read_request_history(
    plane: Plane,
    _: Viewer,
    asked: Asked,
    wanted: Annotated[Slice, Depends(request_slice)],
    by: Annotated[Dimension, Query(description="A series for each value of this.")] = Dimension.ALL,
) -> RequestHistoryOut:
    """Counts and quantiles of requests, from sums of 10 s, 5 min or 1 h, whichever gives at most 900 points."""
    spans = asked.spans(plane)
    with plane.database.reading() as session:
        found = history.load_request_history(session, spans, by, wanted)
    series = [RequestSeriesOut.model_validate(one) for one in found.series]
    return RequestHistoryOut(span_s=found.span_s, at_s=found.at_s, series=series, left_out=found.left_out)


@router.get("/links")
def read_link_history(plane: Plane, _: Viewer, asked: Asked) -> LinkHistoryOut:
    """What links carried."""
    spans = asked.spans(plane)
    with plane.database.reading() as session:
        found = history.load_link_history(session, spans)
    series = [LinkSeriesOut.model_validate(one) for one in found]
    return LinkHistoryOut(span_s=spans.resolution.span_s, at_s=history.span_starts(spans), series=series)


@router.get("/sites")
def read_site_history(plane: Plane, _: Viewer, asked: Asked) -> SiteHistoryOut:
    """What relay nodes were busy with at each site, and what lay stranded there."""
    spans = asked.spans(plane)
    with plane.database.reading() as session:
        found = history.load_site_history(session, spans)
    series = [SiteSeriesOut.model_validate(one) for one in found]
    return SiteHistoryOut(span_s=spans.resolution.span_s, at_s=history.span_starts(spans), series=series)
