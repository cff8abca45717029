"""Policy revisions over REST."""

import re
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.gateways import gateways_out
from control.api.inventory import Word
from control.api.schemas import (
    MAX_NUMBER,
    ActiveOut,
    ChangeOut,
    DiffOut,
    EffectiveFieldOut,
    MergedOut,
    Page,
    PreviewOut,
    ReasonIn,
    RevisionIn,
    RevisionOut,
    SchemaOut,
)
from control.domain.policy import diff_policies
from control.domain.policy_fields import POLICY_FIELDS
from control.domain.policy_schema import policy_json_schema
from control.errors import InvalidError, StaleRevisionError
from control.services import policies
from control.services.plane import ControlPlane
from control.services.policy_scopes import effective_fields

router = APIRouter(prefix="/policies", tags=["policies"])

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
NumberQuery = Annotated[int, Query(ge=1, le=MAX_NUMBER)]
IfMatch = Annotated[str | None, Header(description='The ETag of the active policy, such as "r3".')]
_ETAG = re.compile(r'"r(\d{1,9})"')


def etag(revision: int) -> str:
    """Entity tag of the active policy."""
    return f'"r{revision}"'


@router.get("/schema")
def read_schema(_: Viewer) -> SchemaOut:
    """The policy's JSON Schema, and every field with unit, bounds, default, help and who enforces it."""
    return SchemaOut(json_schema=policy_json_schema(), fields=[asdict(field) for field in POLICY_FIELDS])


@router.get("/active")
def read_active(plane: Plane, _: Viewer, response: Response) -> ActiveOut:
    """The revision that should run, and per gateway the one that does."""
    active = _active_out(plane)
    response.headers["ETag"] = etag(active.revision)
    return active


@router.get("/effective")
def read_effective(plane: Plane, _: Viewer, site: Word = None, model: Word = None) -> MergedOut:
    """The active policy with the overrides for a site, a model, or both, and where each value comes from."""
    with plane.database.reading() as session:
        revision = policies.load_active(session).revision
    document, fields = effective_fields(revision.document, site, model)
    shown = [EffectiveFieldOut.model_validate(field) for field in fields]
    return MergedOut(revision=revision.number, site=site, model=model, document=document, fields=shown)


@router.get("/diff")
def read_diff(plane: Plane, _: Viewer, before: NumberQuery, after: NumberQuery) -> DiffOut:
    """What differs between two revisions."""
    with plane.database.reading() as session:
        first, second = (policies.load_revision(session, number).document for number in (before, after))
    return DiffOut(before=before, after=after, changes=[ChangeOut.of(one) for one in diff_policies(first, second)])


@router.get("/revisions")
def list_revisions(
    plane: Plane,
    _: Viewer,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[RevisionOut]:
    """Revisions, newest first."""
    with plane.database.reading() as session:
        rows = policies.load_revisions(session, limit + 1, cursor)
    items = [RevisionOut.of(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].number) if len(rows) > limit else None)


@router.get("/revisions/{number}")
def read_revision(number: Number, plane: Plane, _: Viewer) -> RevisionOut:
    """One revision."""
    with plane.database.reading() as session:
        return RevisionOut.of(policies.load_revision(session, number))


@router.post(
    "/revisions",
    status_code=201,
    responses={200: {"model": PreviewOut, "description": "With dry_run: what would be stored."}},
)
def create_revision(
    body: RevisionIn,
    plane: Plane,
    principal: Operator,
    response: Response,
    *,
    if_match: IfMatch = None,
    dry_run: bool = False,
) -> RevisionOut | PreviewOut:
    """Store a new revision on top of the active one; with `apply`, make it the active one."""
    draft = policies.RevisionDraft(
        reason=body.reason,
        base_revision=_base_revision(body.base_revision, if_match),
        document=body.document,
        changes=body.changes,
        apply=body.apply,
        removed=body.remove,
    )
    if dry_run:
        with plane.database.reading() as session:
            document, changes = policies.preview_revision(session, draft)
        response.status_code = 200
        return PreviewOut(document=document, changes=[ChangeOut.of(change) for change in changes])
    created = policies.create_revision(plane, principal, draft)
    response.headers["Location"] = f"/api/v1/policies/revisions/{created.number}"
    return RevisionOut.of(created)


@router.post("/revisions/{number}/apply")
def apply_revision(
    number: Number, body: ReasonIn, plane: Plane, principal: Operator, response: Response, *, if_match: IfMatch = None
) -> ActiveOut:
    """Make a revision the active one. An older one comes back as a copy under a new number: see the answer."""
    applied = policies.apply_revision(plane, principal, number, body.reason, _base_revision(None, if_match))
    response.headers["ETag"] = etag(applied.revision.number)
    return _active_out(plane)


@router.post("/revisions/{number}/revert")
def revert_revision(
    number: Number,
    body: ReasonIn,
    plane: Plane,
    principal: Operator,
    response: Response,
    *,
    if_match: IfMatch = None,
    dry_run: bool = False,
) -> ActiveOut | DiffOut:
    """Go back to a revision: its content becomes a new one, which is applied. With `dry_run`, what would change."""
    base = _base_revision(None, if_match)
    if dry_run:
        with plane.database.reading() as session:
            active = policies.load_active(session).revision.number
            changes = policies.preview_revert(session, number, base)
        return DiffOut(before=active, after=number, changes=[ChangeOut.of(change) for change in changes])
    reverted = policies.revert_revision(plane, principal, number, body.reason, base)
    response.headers["ETag"] = etag(reverted.revision.number)
    return _active_out(plane)


def _active_out(plane: ControlPlane) -> ActiveOut:
    with plane.database.reading() as session:
        active = policies.load_active(session)
    return ActiveOut(
        revision=active.revision.number,
        document=active.revision.document,
        reason=active.activation.reason,
        actor=active.activation.actor,
        applied_at=active.activation.activated_at,
        gateways=gateways_out(plane),
    )


def _base_revision(in_body: int | None, if_match: str | None) -> int | None:
    if if_match is None:
        return in_body
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise StaleRevisionError('If-Match must be the ETag of the active policy, such as "r3".')
    number = int(match[1])
    if in_body is not None and in_body != number:
        raise InvalidError("If-Match and base_revision name different revisions.")
    return number
