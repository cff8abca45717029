"""Requests over REST: found, exported, shown with their stages, compared with the rest."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import StreamingResponse

from control.api.dependencies import Plane, Viewer
from control.api.moments import Moment
from control.api.paging import decode_cursor, encode_cursor
from control.api.request_schemas import ComparisonOut, RequestOut, RequestStoryOut
from control.api.schemas import MAX_NUMBER, Page
from control.domain.fleet_csv import csv_cell
from control.domain.outcome import Outcome
from control.domain.policy import FieldProblem
from control.domain.slo import HIT_RATE_BUCKETS
from control.errors import InvalidError
from control.services import requests
from control.services.requests import Order, Place, RequestFilter, SortKey
from control.store.tables import RequestSampleRow

router = APIRouter(prefix="/requests", tags=["requests"])
MEDIA_TYPE = "text/csv"

Word = Annotated[str | None, Query(max_length=200, pattern="^[^\\x00-\\x1f\\x7f]*$", description="Exactly this one.")]
RequestId = Annotated[str, Path(max_length=200, pattern="^[ -~]+$")]


def request_filter(
    *,
    since: Annotated[Moment | None, Query(description="Ended from this moment on.")] = None,
    until: Annotated[Moment | None, Query(description="Ended before this moment.")] = None,
    id: Word = None,  # noqa: A002 - the query's own word
    site: Word = None,
    node: Annotated[
        str | None,
        Query(max_length=200, pattern="^[^\\x00-\\x1f\\x7f]*$", description="Any of its nodes, whatever the role."),
    ] = None,
    model: Word = None,
    pipeline: Word = None,
    reason: Word = None,
    bucket: Annotated[
        int | None, Query(ge=0, lt=HIT_RATE_BUCKETS, description="Of prefix hit rates, from the lowest.")
    ] = None,
    service_class: Word = None,
    tenant: Word = None,
    traffic: Word = None,
    revision: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Policy revision it was served by.")] = None,
    outcome: Outcome | None = None,
    handoff_mode: Word = None,
    min_ttft_s: Annotated[float | None, Query(ge=0, le=86_400, description="First token after this or later.")] = None,
) -> RequestFilter:
    """Which requests are asked for."""
    return RequestFilter(
        since_s=_unix(since),
        until_s=_unix(until),
        request_id=id,
        site=site,
        node=node,
        model=model,
        pipeline=pipeline,
        reason=reason,
        hit_bucket=bucket,
        service_class=service_class,
        tenant=tenant,
        traffic=traffic,
        revision=revision,
        outcome=None if outcome is None else outcome.value,
        handoff_mode=handoff_mode,
        min_ttft_s=min_ttft_s,
    )


def request_order(
    sort: Annotated[SortKey, Query(description="What to sort by.")] = SortKey.AT,
    descending: Annotated[bool, Query(description="The largest first.")] = True,
) -> Order:
    """In which order."""
    return Order(sort, descending)


Wanted = Annotated[RequestFilter, Depends(request_filter)]
Sorted = Annotated[Order, Depends(request_order)]


@router.get("")
def list_requests(
    plane: Plane,
    _: Viewer,
    wanted: Wanted,
    order: Sorted,
    cursor: Annotated[str | None, Query(max_length=400, description="`next_cursor` of the part before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Page[RequestOut]:
    """Requests that were kept: all that failed or were slow, of the rest a share; the last one first."""
    after = None if cursor is None else _place(cursor)
    with plane.database.reading() as session:
        rows = requests.find_requests(session, wanted, order, limit + 1, after)
    shown = rows[:limit]
    following = _cursor(order.place_of(shown[-1])) if len(rows) > limit else None
    return Page(items=[RequestOut.of(row) for row in shown], next_cursor=following)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "A table with a header."}},
)
def export_requests(plane: Plane, _: Viewer, wanted: Wanted, order: Sorted) -> StreamingResponse:
    """The same as CSV, up to 50,000 of them."""
    headers = {"Content-Disposition": 'attachment; filename="requests.csv"'}
    parts = requests.export_requests(plane, wanted, order)
    first = next(parts)  # a database that is away is told by a status
    return StreamingResponse(_lines(chain([first], parts)), media_type=f"{MEDIA_TYPE}; charset=utf-8", headers=headers)


@router.get("/differences")
def compare_requests(plane: Plane, _: Viewer, wanted: Wanted) -> ComparisonOut:
    """What tells these requests from the rest of their time and of the hour before, by site, node, class and so on."""
    with plane.database.reading() as session:
        return ComparisonOut.of(requests.compare_requests(session, wanted, plane.now().timestamp()))


@router.get("/{request_id}")
def read_request(request_id: RequestId, plane: Plane, _: Viewer) -> RequestStoryOut:
    """One request with its stages, the grounds of its decision, and the median of its hit-rate bucket."""
    with plane.database.reading() as session:
        return RequestStoryOut.told(requests.load_request(session, request_id))


def _unix(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _cursor(place: Place) -> str:
    return encode_cursor(f"{place.value!r} {place.number}")


def _place(cursor: str) -> Place:
    value, _, number = decode_cursor(cursor).partition(" ")
    try:
        place = Place(float(value), int(number))
    except ValueError:
        place = None
    if place is None or not 0 <= place.number < 2**63:
        raise InvalidError(problems=[FieldProblem("cursor", "Is no next_cursor of this list.")])
    return place


def _lines(parts: Iterable[Sequence[RequestSampleRow]]) -> Iterator[str]:
    columns = tuple(RequestOut.model_fields)
    yield ",".join(columns) + "\r\n"
    for rows in parts:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        for row in rows:
            fields = RequestOut.fields_of(row)
            writer.writerow(csv_cell(fields[column]) for column in columns)
        yield text.getvalue()
