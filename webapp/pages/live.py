"""The Live page, its snapshot and its stream."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import HTMLResponse

from control.api.dependencies import Plane, Viewer
from control.api.event_stream import STREAM_HEADERS, EventStream
from webapp.charts import BUCKETS, live_figures
from webapp.feed import FeedUnreachableError, LiveFeed
from webapp.render import PagesDep
from webapp.selection import RANGES_S
from webapp.words import reason_words

router = APIRouter(include_in_schema=False)


def get_feed(request: Request) -> LiveFeed:
    """The feed of this process."""
    feed = request.app.state.feed
    if not isinstance(feed, LiveFeed):
        raise TypeError("the application was made without a feed")
    return feed


Feed = Annotated[LiveFeed, Depends(get_feed)]


@router.get("/")
def live_page(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The page without figures; they come by snapshot and stream."""
    strings = pages.strings(request)
    return pages.page(
        request,
        plane,
        principal,
        "live",
        "live/page.html",
        scripts=("live", "chart", "stage", "pipeline", "outcome", "knob"),
        filters_sites=True,
        spans=tuple(RANGES_S),
        buckets=BUCKETS,
        config={"figures": live_figures(strings), "reasons": reason_words(strings)},
    )


@router.get("/live/pulse")
def pulse(feed: Feed, _: Viewer) -> dict[str, Any]:
    """How the fleet is and how old that is, for pages that listen to nothing."""
    return feed.pulse()


@router.get("/live/snapshot")
async def snapshot(feed: Feed, _: Viewer) -> Response:
    """Everything that the page shows, with its age; 204 before the first tick, 503 while Redis is away."""
    try:
        body = await feed.snapshot()
    except FeedUnreachableError as error:
        detail = (error.__doc__ or "").encode()
        return Response(b'{"detail":"%s"}' % detail, status_code=503, media_type="application/json")
    if body is None:
        return Response(status_code=204)
    return Response(body, media_type="application/json")


@router.get("/live/events")
async def events(
    feed: Feed,
    _: Viewer,
    last_event_id: Annotated[str, Header()] = "",
    start: Annotated[str, Query(alias="from")] = "",
) -> EventStream:
    """Ticks after `Last-Event-ID`, or after `from` on a first connection; `reset` where that is too long ago."""
    return EventStream(feed.stream(last_event_id or start), headers=STREAM_HEADERS)
