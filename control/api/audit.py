"""The audit trail over REST: read in parts, exported, checked."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from control.api.audit_schemas import AuditEventOut, AuditVerdictOut
from control.api.dependencies import Plane, Viewer
from control.api.moments import Moment
from control.api.schemas import MAX_NUMBER, Page
from control.domain.audit import ChainedEvent, ChainHead, exported
from control.services import audit

router = APIRouter(prefix="/audit", tags=["audit"])
LINES_AT_A_TIME = 500
NDJSON = "application/x-ndjson"


def audit_filter(
    actor: Annotated[str | None, Query(max_length=200, description="Exactly this one.")] = None,
    action: Annotated[str | None, Query(max_length=200, description="Exactly this one.")] = None,
    target: Annotated[str | None, Query(max_length=200, description="Targets that begin so.")] = None,
    since: Annotated[Moment | None, Query(description="From this moment on.")] = None,
    until: Annotated[Moment | None, Query(description="Before this moment.")] = None,
) -> audit.AuditFilter:
    """Which events are asked for."""
    return audit.AuditFilter(actor, action, target, since, until)


Wanted = Annotated[audit.AuditFilter, Depends(audit_filter)]


@router.get("")
def list_audit(
    plane: Plane,
    _: Viewer,
    wanted: Wanted,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[AuditEventOut]:
    """Events, newest first."""
    with plane.database.reading() as session:
        rows = audit.load_events(session, limit + 1, cursor, wanted)
    items = [AuditEventOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "One JSON object per line."}},
)
def export_audit(plane: Plane, _: Viewer, wanted: Wanted) -> StreamingResponse:
    """All wanted events as JSON lines, oldest first, with their hashes: `pdd audit verify --file` checks them."""
    headers = {"Content-Disposition": 'attachment; filename="audit.jsonl"'}
    return StreamingResponse(_lines(audit.export_events(plane, wanted)), media_type=NDJSON, headers=headers)


@router.get("/verify")
def verify_audit(
    plane: Plane,
    _: Viewer,
    noted_id: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="Id of a head noted earlier.")] = None,
    noted_hash: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="Its hash.")] = None,
) -> AuditVerdictOut:
    """Check the whole trail, and name the first event at which it fails.

    Changes, deletions, insertions and a missing end are found. A trail that was written anew with all its hashes is
    found only against a head that was noted earlier and kept elsewhere: each answer gives one.
    """
    noted = [ChainHead(noted_id, noted_hash)] if noted_id is not None and noted_hash is not None else []
    return AuditVerdictOut.of(audit.verify_trail(plane, noted))


def _lines(events: Iterable[ChainedEvent]) -> Iterator[bytes]:
    # Many lines at a time: each part of an answer is a step between threads.
    remaining = iter(events)
    while part := list(islice(remaining, LINES_AT_A_TIME)):
        yield b"".join(json.dumps(exported(event), separators=(",", ":")).encode() + b"\n" for event in part)
