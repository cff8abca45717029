"""The feed of changes and of operations' progress for programs: `GET /api/v1/events`."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from control.api.dependencies import Plane, Viewer, identify_request
from control.api.event_hub import EventHub
from control.api.event_stream import STREAM_HEADERS, EventStream
from control.api.schemas import MAX_NUMBER

router = APIRouter(tags=["events"])


@router.get(
    "/events",
    response_class=EventStream,
    responses={
        200: {
            "description": "Events `change` (an audit event; its id is the event's) and `operation` (as"
            " `GET /operations/{number}` answers); a comment every 15 s while nothing happens.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream_events(
    request: Request,
    plane: Plane,
    principal: Viewer,
    *,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_NUMBER, description="The last change you have seen; without it, from now on.")
    ] = None,
    target: Annotated[str, Query(max_length=200, description="Only targets that begin so, such as `policy/`.")] = "",
) -> EventStream:
    """What changes from now on, or behind the last change that you have seen. Ends when your access does."""
    hub = request.app.state.events
    if not isinstance(hub, EventHub):
        raise TypeError("the application was made without an event hub")
    hub.admit(principal.name)
    events = hub.stream(principal.name, last_event_id, target, partial(identify_request, plane, request))
    return EventStream(events, headers=STREAM_HEADERS)
