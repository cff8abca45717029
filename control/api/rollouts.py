"""Guarded roll-outs over REST: opened, watched, promoted, paused, aborted."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.preconditions import Expected, set_etag
from control.api.rollout_schemas import PromotionIn, RolloutIn, RolloutOut, RolloutPreviewOut
from control.api.schemas import MAX_NUMBER, Page, ReasonIn
from control.domain.rollout import Phase
from control.services import rollouts
from control.services.rollout_store import StoredRollout, load_rollout, load_rollouts
from control.services.rollouts import ChangeWish

router = APIRouter(prefix="/rollouts", tags=["policies"])

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]


@router.post(
    "",
    status_code=201,
    responses={200: {"model": RolloutPreviewOut, "description": "With dry_run: what would be tried, and by whom."}},
)
def open_rollout(
    body: RolloutIn, plane: Plane, principal: Operator, response: Response, *, dry_run: bool = False
) -> RolloutOut | RolloutPreviewOut:
    """Give a stored revision to a canary, and to all once it has baked without harm. One is open at a time."""
    if dry_run:
        response.status_code = 200
        with plane.database.reading() as session:
            return RolloutPreviewOut.of(rollouts.plan_rollout(session, body.draft(), plane.now()))
    opened = rollouts.open_rollout(plane, principal, body.draft())
    response.headers["Location"] = f"/api/v1/rollouts/{opened.id}"
    return _shown(opened, response)


@router.get("")
def list_rollouts(
    plane: Plane,
    _: Viewer,
    *,
    phase: Annotated[list[Phase] | None, Query()] = None,
    revision: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[RolloutOut]:
    """Roll-outs, newest first."""
    with plane.database.reading() as session:
        found = load_rollouts(session, limit + 1, cursor, phase or (), revision)
    items = [RolloutOut.of(stored) for stored in found[:limit]]
    return Page(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None)


@router.get("/{number}")
def read_rollout(number: Number, plane: Plane, _: Viewer, response: Response) -> RolloutOut:
    """One roll-out with its signals; the ETag stands for its phase."""
    with plane.database.reading() as session:
        return _shown(load_rollout(session, number), response)


@router.post("/{number}/promote")
def promote_rollout(
    number: Number, body: PromotionIn, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> RolloutOut:
    """Give the revision to all now; with `force` also where the guard would hold it."""
    wish = ChangeWish(number, body.reason, expected)
    return _shown(rollouts.promote_rollout(plane, principal, wish, force=body.force), response)


@router.post("/{number}/pause")
def pause_rollout(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> RolloutOut:
    """Stop going forward. The canary stays, and so does the guard that may abort it."""
    return _shown(rollouts.pause_rollout(plane, principal, ChangeWish(number, body.reason, expected)), response)


@router.post("/{number}/resume")
def resume_rollout(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> RolloutOut:
    """Go on where it was paused."""
    return _shown(rollouts.resume_rollout(plane, principal, ChangeWish(number, body.reason, expected)), response)


@router.post("/{number}/abort")
def abort_rollout(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> RolloutOut:
    """Go back to the revision that was active before."""
    return _shown(rollouts.abort_rollout(plane, principal, ChangeWish(number, body.reason, expected)), response)


def _shown(stored: StoredRollout, response: Response) -> RolloutOut:
    set_etag(response, rollouts.version_of(stored))
    return RolloutOut.of(stored)
