"""The Requests page: kept requests as a table, and one of them as a waterfall."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse
from sqlmodel import Session

from control.api.dependencies import Plane, Viewer
from control.domain.histogram import Histogram
from control.domain.outcome import Outcome
from control.domain.policy import effective_values
from control.errors import NotFoundError
from control.services import requests
from control.services.fleet import load_nodes
from control.services.plane import ControlPlane
from control.services.policies import load_revision
from control.services.requests import RequestFilter, RequestStory, SortKey
from control.services.rollups import load_requests
from webapp.charts import BUCKETS
from webapp.frame import load_frame
from webapp.numbers import seconds
from webapp.render import PagesDep
from webapp.request_query import active_filters, cursor_of, filter_of, order_of, place_of
from webapp.selection import RANGES_S, link_with
from webapp.strings import Strings
from webapp.waterfall import Layout, lay_out

router = APIRouter(prefix="/requests", include_in_schema=False)

ROWS: Final = 50
PIPELINES: Final = ("direct", "relay", "outlier")
HANDOFF_MODES: Final = ("one_shot", "catch_up")
# What can be sorted by, by column of the table; the others say nothing that has an order.
COLUMNS: Final = (
    (SortKey.AT, "at", False),
    (SortKey.HIT_RATE, "hit", True),
    (SortKey.DRC_HIT_RATE, "drc", True),
    (SortKey.UNCACHED_TOKENS, "uncached", True),
    ("", "pipeline", False),
    (SortKey.TTFT, "ttft", True),
    (SortKey.TPOT, "tpot", True),
    (SortKey.MAX_ITL, "max_itl", True),
    (SortKey.EAGER_TOKENS, "eager", True),
    ("", "handoff", False),
    ("", "nodes", False),
    ("", "revision", False),
    ("", "outcome", False),
)
HISTOGRAM_S: Final = 3600.0
HISTOGRAM_BARS: Final = 40

RequestId = Annotated[str, Path(max_length=200, pattern="^[ -~]+$")]


@router.get("")
def requests_page(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The table with its filters; the address says which."""
    with plane.database.reading() as session:
        nodes = [node.name for node in load_nodes(session)]
    return pages.page(
        request,
        plane,
        principal,
        "requests",
        "requests/page.html",
        filters_sites=True,
        spans=tuple(RANGES_S),
        nodes=nodes,
        pipelines=PIPELINES,
        outcomes=[outcome.value for outcome in Outcome],
        handoff_modes=HANDOFF_MODES,
        **_table(request, plane),
    )


@router.get("/table")
def requests_table(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The table alone, as the page has it."""
    return pages.render(request, "requests/table.html", principal, **_table(request, plane))


@router.get("/{request_id}")
def request_page(
    request_id: RequestId, request: Request, pages: PagesDep, plane: Plane, principal: Viewer
) -> HTMLResponse:
    """One request: where its time went, why it went that way, and others of its kind."""
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        try:
            story = requests.load_request(session, request_id)
        except NotFoundError:
            return pages.page(
                request, plane, principal, "requests", "requests/missing.html", status=404, request_id=request_id
            )
        slo_s = _objective_s(session, story)
        spread = _spread(session, story, now_s)
    layout = lay_out(
        story.stages,
        story.critical_path,
        story.same_bucket.stages,
        ttft_s=story.record.ttft_s,
        e2e_s=story.record.e2e_s,
        slo_s=slo_s,
        median_ttft_s=story.same_bucket.ttft_s,
    )
    return pages.page(
        request,
        plane,
        principal,
        "requests",
        "requests/story.html",
        story=story,
        row=story.row,
        record=story.record,
        layout=layout,
        slo_s=slo_s,
        spread=spread,
        bucket=BUCKETS[story.row.hit_bucket] if story.row.hit_bucket >= 0 else "",
        events=_events(story),
        nodes={"prefill": story.row.prefill_node, "relay": story.row.relay_node, "main": story.row.main_node},
        advice=_advice(story, layout),
        reason=_reason(pages.strings(request), story),
    )


def _table(request: Request, plane: ControlPlane) -> dict[str, Any]:
    frame = load_frame(plane, request)
    parameters = frame.parameters
    wanted = filter_of(parameters, frame.selection, frame.now.timestamp())
    order = order_of(parameters)
    with plane.database.reading() as session:
        found = requests.find_requests(session, wanted, order, ROWS + 1, place_of(parameters))
        slo = effective_values(load_revision(session, frame.policy.number).document) if frame.policy else {}
    shown = found[:ROWS]
    following = cursor_of(order.place_of(shown[-1])) if len(found) > ROWS else ""
    filters = active_filters(wanted)
    query = {name: value for name, value in parameters.items() if value}
    direction = "desc" if order.descending else "asc"

    def sorted_by(key: str) -> str:
        turned = "asc" if key == order.key and order.descending else "desc"
        return link_with("/requests", parameters, sort=key, dir=turned)

    return {
        "frame": frame,
        "rows": shown,
        "columns": COLUMNS,
        "sort": order.key,
        "direction": direction,
        "sorted_by": sorted_by,
        "filters": {name: (value, link_with("/requests", parameters, **{name: ""})) for name, value in filters.items()},
        "bare": link_with("/requests", {k: v for k, v in query.items() if k in {"site", "range", "from", "to"}}),
        "next": link_with("/requests", parameters | {"cursor": ""}, cursor=following) if following else "",
        "is_first": "cursor" not in query,
        "table_url": link_with("/requests/table", parameters, cursor=parameters.get("cursor", "")),
        "export_url": link_with("/api/v1/requests/export", _for_api(wanted, order.key, order.descending)),
        "buckets": BUCKETS,
        "objective_of": lambda row: objective_of(slo, row.service_class),
    }


def _for_api(wanted: RequestFilter, sort: str, descending: bool) -> dict[str, str]:
    """The same as the REST API calls it."""
    stated = active_filters(wanted) | {"sort": str(sort), "descending": str(descending).lower()}
    if wanted.site:
        stated["site"] = wanted.site
    for name, moment_s in (("since", wanted.since_s), ("until", wanted.until_s)):
        if moment_s is not None:
            stated[name] = f"{_iso(moment_s)}"
    return stated


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _objective_s(session: Session, story: RequestStory) -> float | None:
    """The TTFT objective (P99) of the request's class in the policy that it was served under."""
    try:
        values = effective_values(load_revision(session, story.record.policy_revision).document)
    except NotFoundError:
        return None
    return objective_of(values, story.record.service_class)


@dataclass(frozen=True, slots=True)
class Spread:
    """TTFT of all requests of the same bucket and pipeline: bars in percent of the highest, and where this one is."""

    count: int
    bars: tuple[tuple[float, float, float], ...]
    ticks: tuple[tuple[str, float], ...]
    own: float | None
    rank: float


def _spread(session: Session, story: RequestStory, now_s: float) -> Spread | None:
    row = story.row
    if row.ttft_s is None:
        return None
    before_s = max(now_s - row.at_s - HISTOGRAM_S / 2, 0.0)
    wanted = (row.pipeline, row.hit_bucket)
    found = load_requests(
        session, now_s, HISTOGRAM_S, lambda key: (key.pipeline, key.hit_bucket), "ttft", before_s=before_s
    )
    sums = found.get(wanted)
    return None if sums is None or not sums.ttft.count else _bars(sums.ttft, row.ttft_s)


def _bars(histogram: Histogram, own_s: float) -> Spread:
    least, most = histogram.quantiles(0.0, 1.0) or (own_s, own_s)
    low, high = min(least, own_s) / 1.1, max(most, own_s) * 1.1
    edges = [low * (high / low) ** (index / HISTOGRAM_BARS) for index in range(HISTOGRAM_BARS + 1)]
    above = [histogram.count_above(edge) for edge in edges]
    above[0], above[-1] = histogram.count, 0
    counts = [above[index] - above[index + 1] for index in range(HISTOGRAM_BARS)]
    width = 100 / HISTOGRAM_BARS

    def place(value_s: float) -> float:
        low_s = edges[0]
        return 100 * math.log(value_s / low_s) / math.log(edges[-1] / low_s)

    marks = [value for value in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0) if low < value < high]
    return Spread(
        histogram.count,
        tuple((index * width, width * 0.86, 100 * count / max(counts)) for index, count in enumerate(counts)),
        tuple((seconds(value), place(value)) for value in marks),
        place(own_s),
        1 - histogram.count_above(own_s) / histogram.count,
    )


def _events(story: RequestStory) -> list[tuple[float, str, str]]:
    """Moments in order: seconds, node, and the name of what happened."""
    nodes = {"prefill": story.row.prefill_node, "relay": story.row.relay_node, "main": story.row.main_node}
    roles = {"queue": "prefill", "prefill": "prefill", "kv_rdma": "relay", "relay_decode": "relay"}
    found = [
        (span.start_s, nodes[roles.get(span.name, "main")], f"begins_{span.name}")
        for span in story.stages
        if span.name in {"prefill", "kv_rdma", "kv_wan", "relay_decode", "handoff", "main_decode"}
    ]
    if story.record.ttft_s is not None:
        first = story.row.relay_node if story.row.pipeline in {"relay", "outlier"} else story.row.main_node
        found.append((story.record.ttft_s, first, "first_token"))
    found.append((story.record.e2e_s, story.row.gateway, "ends"))
    return sorted(found)


def _advice(story: RequestStory, layout: Layout) -> str:
    """Name of the sentence that says which knob acts on what held up the first token most."""
    if not layout.excess:
        return "none"
    worst = layout.excess[0].name
    if worst in {"queue", "prefill"}:
        return "prefill"
    if worst == "kv_wan":
        return "lower_threshold" if story.row.pipeline == "direct" else "link"
    return "relay" if worst in {"kv_rdma", "relay_decode"} else "none"


def _reason(t: Strings, story: RequestStory) -> str:
    key = f"reason.{story.row.reason}"
    transfer = f"{seconds(story.record.predicted_transfer_s)} s"
    return t(key, transfer=transfer) if t.has(key) else story.row.reason


def objective_of(slo_s: Mapping[str, Any], service_class: str) -> float | None:
    """P99 of TTFT that a class was promised, seconds."""
    found = slo_s.get(f"classes.{service_class}.ttft_p99_s", slo_s.get("classes.default.ttft_p99_s"))
    return None if found is None else float(found)
