"""The audit trail: filtered, read event by event, checked, exported."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, StreamingResponse

from control.api.dependencies import Plane, Viewer
from control.api.schemas import MAX_NUMBER
from control.domain.audit import ChainedEvent
from control.services.audit import AuditFilter, export_events, load_events, verify_trail
from webapp.audit_view import event_view
from webapp.commands import curl_command
from webapp.visit import Looking, Visit

router = APIRouter(prefix="/audit", include_in_schema=False)

SHOWN: Final = 50
LINES_AT_A_TIME: Final = 500
COLUMNS: Final = ("id", "at", "actor", "action", "target", "before", "after", "reason", "hash")
# A spreadsheet takes a cell that begins with one of these for a formula; behind an apostrophe it is text.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
Word = Annotated[str, Query(max_length=200)]


def wanted_events(
    actor: Word = "", action: Word = "", target: Word = "", since: Word = "", until: Word = ""
) -> AuditFilter:
    """Which events the address asks for; a moment that is none asks for nothing."""
    return AuditFilter(actor or None, action or None, target or None, _moment(since), _moment(until))


Wanted = Annotated[AuditFilter, Depends(wanted_events)]


@router.get("")
def audit_page(
    visit: Looking,
    wanted: Wanted,
    *,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
) -> HTMLResponse:
    """Events, newest first."""
    context = _events(visit, wanted, cursor)
    return visit.page("audit", "audit/page.html", **context)


@router.get("/table")
def audit_table(
    visit: Looking,
    wanted: Wanted,
    *,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
) -> HTMLResponse:
    """The table alone."""
    return visit.render("audit/table.html", **_events(visit, wanted, cursor))


@router.get("/verify")
def verify(visit: Looking) -> HTMLResponse:
    """Check the whole chain, and say where it breaks if it does."""
    return visit.render("audit/verdict.html", verdict=verify_trail(visit.plane))


@router.get("/events.csv")
def audit_csv(plane: Plane, _: Viewer, wanted: Wanted) -> StreamingResponse:
    """All wanted events, oldest first, safe to open in a spreadsheet."""
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingResponse(
        _lines(export_events(plane, wanted)), media_type="text/csv; charset=utf-8", headers=headers
    )


def _events(visit: Visit, wanted: AuditFilter, cursor: int | None) -> dict[str, Any]:
    with visit.plane.database.reading() as session:
        rows = load_events(session, SHOWN + 1, cursor, wanted)
    query = {name: value for name, value in visit.request.query_params.items() if name != "cursor" and value}
    base = visit.base
    asked = {name: value for name, value in query.items() if name in {"actor", "action", "target", "since", "until"}}
    return {
        "events": [event_view(row) for row in rows[:SHOWN]],
        "next_cursor": rows[SHOWN - 1].id if len(rows) > SHOWN else None,
        "asked": {name: asked.get(name, "") for name in ("actor", "action", "target", "since", "until")},
        "query": query,
        "cursor": cursor,
        "command": curl_command(base, "GET", "/audit", query=asked or None),
        "now": visit.plane.now(),
    }


def _lines(events: Iterable[ChainedEvent]) -> Iterator[bytes]:
    yield _csv([COLUMNS])
    remaining = iter(events)
    while part := list(islice(remaining, LINES_AT_A_TIME)):
        yield _csv(_cells(event) for event in part)


def _cells(event: ChainedEvent) -> list[str]:
    facts = event.facts
    before, after = (
        json.dumps(side, ensure_ascii=False) if side is not None else "" for side in (facts.before, facts.after)
    )
    cells = (
        str(facts.id),
        facts.at.astimezone(UTC).isoformat(),
        facts.actor,
        facts.action,
        facts.target,
        before,
        after,
        facts.reason,
        event.hash,
    )
    return [f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell for cell in cells]


def _csv(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    if found is None:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
