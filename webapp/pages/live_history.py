"""What the Live page shows of other times than the last quarter of an hour, and of a region of its heat map."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlmodel import Session

from control.api.dependencies import Plane, Viewer
from control.domain.differences import Difference
from control.domain.policy import effective_values
from control.domain.rollups import RequestSums
from control.domain.slo import HIT_RATE_BUCKETS
from control.errors import NotFoundError
from control.services import history
from control.services.annotations import load_annotations
from control.services.fleet import load_links, load_sites
from control.services.history import Dimension, Slice
from control.services.operation_store import load_operations
from control.services.policies import load_activations, load_active
from control.services.requests import (
    Comparison,
    Order,
    RequestFilter,
    SortKey,
    compare_requests,
    find_requests,
    rows_of,
)
from control.services.totals import load_bucket_totals
from control.store.rollups import Spans
from webapp.charts import BUCKETS
from webapp.live_history import bucket_rows, slots_of, tiles_of
from webapp.render import PagesDep
from webapp.request_query import DIMENSIONS
from webapp.selection import Selection, link_with

router = APIRouter(prefix="/live", include_in_schema=False)

# The consumer saves its sums every few seconds; the newest spans are not whole before.
SETTLE_S: Final = 12.0
MAX_MARKS: Final = 60
SLOWEST: Final = 18
SHOWN_DIFFERENCES: Final = 6


@router.get("/history")
def live_history(request: Request, plane: Plane, _: Viewer) -> dict[str, Any]:
    """Slots, tiles, marks and the slowest requests of the selected site and time."""
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        selection = _selection(session, request)
        since_s, until_s = selection.bounds_s(now_s)
        until_s = min(until_s, now_s - SETTLE_S) if not selection.is_absolute else min(until_s, now_s)
        spans = history.fitting_spans(min(since_s, until_s), until_s, now_s)
        picture = _picture(session, spans, selection)
        picture["marks"] = _marks(session, since_s, until_s)
        slowest = find_requests(
            session,
            RequestFilter(since_s=since_s, until_s=until_s, site=selection.site or None),
            Order(SortKey.TTFT),
            SLOWEST,
        )
        picture["requests"] = rows_of(slowest)
    return picture | {"now_s": now_s}


@router.get("/marks")
def live_marks(request: Request, plane: Plane, _: Viewer) -> dict[str, Any]:
    """Policy changes, operations and remarks of the selected time; the feed itself knows only of policies."""
    with plane.database.reading() as session:
        since_s, until_s = _selection(session, request).bounds_s(plane.now().timestamp())
        return {"marks": _marks(session, since_s, until_s)}


@router.get("/buckets")
def live_buckets(request: Request, plane: Plane, _: Viewer) -> list[dict[str, Any]]:
    """TTFT quantiles of each hit-rate bucket over the selected time."""
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        selection = _selection(session, request)
        spans = history.fitting_spans(*selection.bounds_s(now_s), now_s)
        return bucket_rows(load_bucket_totals(session, spans, Slice(site=selection.site or None)))


@router.get("/differences")
def live_differences(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    principal: Viewer,
    bucket: Annotated[int, Query(ge=0, lt=HIT_RATE_BUCKETS)],
) -> HTMLResponse:
    """What tells the requests of one bucket and time from the rest."""
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        selection = _selection(session, request)
        since_s, until_s = selection.bounds_s(now_s)
        wanted = RequestFilter(since_s=since_s, until_s=until_s, site=selection.site or None, hit_bucket=bucket)
        comparison = compare_requests(session, wanted, now_s)
        spans = history.fitting_spans(since_s, until_s, now_s)
        totals = load_bucket_totals(session, spans, Slice(site=selection.site or None, hit_bucket=bucket))
    parameters = {"site": selection.site, "from": str(int(since_s)), "to": str(int(until_s)), "bucket": str(bucket)}
    return pages.render(
        request,
        "live/differences.html",
        principal,
        bucket=bucket,
        range=BUCKETS[bucket],
        since_s=since_s,
        until_s=until_s,
        figures=bucket_rows(totals)[bucket],
        comparison=comparison,
        differences=_shown(comparison, parameters),
        requests_url=link_with("/requests", parameters, sort="ttft"),
    )


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """A difference with the address of the requests that have it; empty where none can be asked for."""

    difference: Difference
    url: str


def _shown(comparison: Comparison, parameters: Mapping[str, str]) -> list[ShownDifference]:
    """The largest lift of each dimension: two nodes of one role say little more than the first."""
    best: dict[str, Difference] = {}
    for one in comparison.differences:
        best.setdefault(one.dimension, one)
    shown = list(best.values())[:SHOWN_DIFFERENCES]
    return [ShownDifference(one, _url(one, parameters)) for one in shown]


def _url(one: Difference, parameters: Mapping[str, str]) -> str:
    name = DIMENSIONS.get(one.dimension)
    if name is None:
        return ""
    value = one.value.removeprefix("r") if name == "revision" else one.value
    return link_with("/requests", parameters, **{name: value})


def _selection(session: Session, request: Request) -> Selection:
    return Selection.of(request.query_params, tuple(site.name for site in load_sites(session)))


def _picture(session: Session, spans: Spans, selection: Selection) -> dict[str, Any]:
    wanted = Slice(site=selection.site or None)
    whole = history.load_request_history(session, spans, Dimension.ALL, wanted)
    far = {link.name for link in load_links(session) if selection.site not in {"", link.source, link.target}}
    links = [one for one in history.load_link_history(session, spans) if one.link not in far]
    sites = [one for one in history.load_site_history(session, spans) if selection.site in {"", one.site}]
    slots = slots_of(
        whole,
        history.load_request_history(session, spans, Dimension.BUCKET, wanted),
        history.load_request_history(session, spans, Dimension.PIPELINE, wanted),
        links,
        sites,
    )
    known = [slot["at_s"] for slot in slots if slot["requests"] is not None]
    seconds = max(spans.until_s - min(known), 1.0) if known else 1.0
    totals: dict[int, RequestSums] = load_bucket_totals(session, spans, wanted)
    return {
        "slot_s": whole.span_s,
        "slots": slots,
        "tiles": tiles_of(totals, slots, seconds, _objectives(session)) | {"window_s": seconds},
    }


def _objectives(session: Session) -> dict[str, Any]:
    try:
        values = effective_values(load_active(session).revision.document)
    except NotFoundError:
        return {}
    return {name: values.get(f"classes.default.{name}") for name in ("ttft_p90_s", "ttft_p99_s")}


def _marks(session: Session, since_s: float, until_s: float) -> list[dict[str, Any]]:
    since, until = (datetime.fromtimestamp(moment_s, UTC) for moment_s in (since_s, until_s))
    found = [
        _mark(row.activated_at, "policy", f"r{row.revision}", row.reason)
        for row in load_activations(session, MAX_MARKS)
        if since <= row.activated_at <= until
    ]
    found += [
        _mark(
            stored.row.created_at,
            "operation",
            f"{stored.row.kind.replace('_', ' ')} {stored.row.target}",
            stored.row.reason,
        )
        for stored in load_operations(session, limit=MAX_MARKS)
        if stored.row.kind != "apply_policy" and since <= stored.row.created_at <= until
    ]
    found += [
        _mark(row.at, "note", row.text[:24], row.text)
        for row in load_annotations(session, MAX_MARKS, since=since, until=until)
    ]
    return sorted(found, key=lambda mark: mark["at_s"])[-MAX_MARKS:]


def _mark(at: datetime, kind: str, label: str, why: str) -> dict[str, Any]:
    return {"at_s": at.timestamp(), "kind": kind, "label": label, "why": why}
