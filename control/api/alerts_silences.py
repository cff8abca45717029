"""Silences over REST: every one ends."""

from fastapi import APIRouter, Response

from control.api.alerts import Before, Limit, Number
from control.api.alerts_schemas import SilenceFields, SilenceIn, SilenceOut
from control.api.dependencies import Operator, Plane, Viewer
from control.api.preconditions import Expected, set_etag
from control.api.schemas import Page
from control.services import silences
from control.services.plane import ControlPlane
from control.store.tables import SilenceRow

router = APIRouter(prefix="/silences", tags=["alerts"])


@router.get("")
def list_silences(plane: Plane, _: Viewer, cursor: Before = None, limit: Limit = 50) -> Page[SilenceOut]:
    """Silences, newest first, those that are over included."""
    with plane.database.reading() as session:
        rows = silences.load_silences(session, limit + 1, cursor)
    items = [SilenceOut.of(row, plane.now()) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


@router.get("/{number}")
def read_silence(number: Number, plane: Plane, _: Viewer, response: Response) -> SilenceOut:
    """One silence."""
    with plane.database.reading() as session:
        row = silences.load_silence(session, number)
    return _out(plane, row, response)


@router.post("", status_code=201)
def create_silence(body: SilenceIn, plane: Plane, principal: Operator, response: Response) -> SilenceOut:
    """Tell nobody of the alerts that meet every matcher until a moment, at most 30 days from its beginning."""
    row = silences.create_silence(
        plane, principal, body.parsed(), ends_at=body.ends_at, comment=body.comment, starts_at=body.starts_at
    )
    response.headers["Location"] = f"/api/v1/silences/{row.id}"
    return _out(plane, row, response)


@router.put("/{number}")
def replace_silence(
    number: Number, body: SilenceFields, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> SilenceOut:
    """Change what a silence is about, or when it ends."""
    row = silences.replace_silence(
        plane, principal, number, body.parsed(), ends_at=body.ends_at, comment=body.comment, expected=expected
    )
    return _out(plane, row, response)


@router.delete("/{number}", status_code=204)
def end_silence(number: Number, plane: Plane, principal: Operator, expected: Expected) -> None:
    """Let a silence end now; it stays in the list."""
    silences.end_silence(plane, principal, number, expected)


def _out(plane: ControlPlane, row: SilenceRow, response: Response) -> SilenceOut:
    set_etag(response, silences.silence_version(row))
    return SilenceOut.of(row, plane.now())
