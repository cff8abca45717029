"""Annotations over REST: remarks on moments."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.moments import Moment
from control.api.schemas import MAX_NUMBER, AnnotationIn, AnnotationOut, Page
from control.services import annotations

router = APIRouter(prefix="/annotations", tags=["annotations"])

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Bound = Annotated[Moment | None, Query()]


@router.get("")
def list_annotations(
    plane: Plane,
    _: Viewer,
    *,
    since: Bound = None,
    until: Bound = None,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Page[AnnotationOut]:
    """Remarks on the moments from `since` up to `until`, the one made last first."""
    with plane.database.reading() as session:
        rows = annotations.load_annotations(session, limit + 1, cursor, since, until)
    items = [AnnotationOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


@router.post("", status_code=201)
def add_annotation(body: AnnotationIn, plane: Plane, principal: Operator, response: Response) -> AnnotationOut:
    """Remark on a moment."""
    row = annotations.add_annotation(plane, principal, body.text, body.at)
    response.headers["Location"] = f"/api/v1/annotations/{row.id}"
    return AnnotationOut.model_validate(row)


@router.get("/{number}")
def read_annotation(number: Number, plane: Plane, _: Viewer) -> AnnotationOut:
    """One remark."""
    with plane.database.reading() as session:
        return AnnotationOut.model_validate(annotations.load_annotation(session, number))


@router.delete("/{number}", status_code=204)
def remove_annotation(number: Number, plane: Plane, principal: Operator) -> None:
    """Take a remark back."""
    annotations.delete_annotation(plane, principal, number)
