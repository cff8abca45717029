"""Policies: revisions, what runs where, and the editor from draft to applied revision."""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from sqlmodel import select

from control.api.schemas import MAX_NUMBER
from control.domain.policy import diff_policies
from control.errors import ControlError, NotFoundError, StaleRevisionError, face_of
from control.services.fleet import load_links
from control.services.plane import ControlPlane
from control.services.policies import (
    create_revision,
    load_activations,
    load_active,
    load_revision,
    load_revisions,
    preview_revert,
    revert_revision,
)
from control.services.rollout import load_statuses
from control.store.tables import LinkReportRow
from webapp.form_fields import FormDep
from webapp.pages import rollouts
from webapp.policy_draft import Merge, Pending, merge_three
from webapp.policy_editor import (
    MAX_REASON_LENGTH,
    VIEWS,
    Draft,
    Look,
    as_pending,
    at_paths,
    editor_context,
    judge_draft,
    read_draft,
    read_look,
)
from webapp.policy_form import (
    FormScope,
)
from webapp.policy_view import change_view, change_views, revision_views, runner_views
from webapp.visit import Looking, Operating, Visit, go_to
from webapp.yaml_text import write_yaml

router = APIRouter(prefix="/policies", include_in_schema=False)
router.include_router(rollouts.router)

REVISIONS_SHOWN: Final = 30
Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Word = Annotated[str, Query(max_length=200)]


@router.get("")
def policies_page(
    visit: Looking,
    *,
    view: Word = "form",
    scope: Word = "",
    site: Word = "",
    model: Word = "",
) -> HTMLResponse:
    """Revisions, what runs them, and the editor on the active one."""
    look = Look(view if view in VIEWS else "form", FormScope.parse(scope), site, model)
    with visit.plane.database.reading() as session:
        draft = Draft(load_active(session).revision.number)
    context = {
        **editor_context(visit.plane, draft, look),
        **judge_draft(visit, draft),
        **_running(visit.plane),
        **rollouts.rollout_context(visit.plane, visit.base),
        **_revisions(visit.plane),
    }
    return visit.page("policies", "policies/page.html", **context, is_update=False)


@router.get("/running")
def running(visit: Looking) -> HTMLResponse:
    """Which gateway and relay runs which revision."""
    return visit.render("policies/running.html", **_running(visit.plane))


@router.get("/revisions/{number}")
def revision_page(
    number: Number,
    visit: Looking,
    *,
    against: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
) -> HTMLResponse:
    """One revision, what it differs in, and the way back to it."""
    context = _revision(visit.plane, number, against)
    return visit.page("policies", "policies/revision.html", **context, errors={}, reason="", base=visit.base
    )  # fmt: skip


@router.post("/editor")
def editor(visit: Operating, form: FormDep) -> HTMLResponse:
    """The draft looked at in another way; what has been typed stays."""
    draft, look = read_draft(visit.plane, form), read_look(form)
    wanted = form.text("to")
    if wanted in VIEWS and not (draft.yaml_error and look.view == "yaml"):
        look = replace(look, view=wanted)
    if look.view != "yaml":
        draft = as_pending(visit.plane, draft)
    context = {**editor_context(visit.plane, draft, look), **judge_draft(visit, draft)}
    return visit.render("policies/editor.html", **context, is_update=False)


@router.post("/preview")
def preview(visit: Operating, form: FormDep) -> HTMLResponse:
    """What the draft changes and what is wrong with it; stores nothing."""
    draft, look = read_draft(visit.plane, form), read_look(form)
    context = {**editor_context(visit.plane, draft, look), **judge_draft(visit, draft)}
    return visit.render("policies/preview.html", **context, is_update=True)


@router.post("/apply")
def apply(visit: Operating, form: FormDep) -> HTMLResponse:
    """Apply the draft as a revision; a refusal comes back at its field, another's change side by side."""
    draft, look = read_draft(visit.plane, form), read_look(form)
    judged = judge_draft(visit, draft)
    if judged["blockers"]:
        context = {**editor_context(visit.plane, draft, look), **judged}
        return visit.render("policies/editor.html", status=422, **context, is_update=False)
    try:
        create_revision(visit.plane, visit.principal, draft.revision(apply=True))
    except StaleRevisionError as error:
        return _conflict(visit, draft=draft, detail=error.detail)
    except ControlError as error:
        status = face_of(error).status
        problems = getattr(error, "problems", ())
        draft = replace(draft, errors={**draft.errors, **at_paths(problems, error.detail)})
        context = {**editor_context(visit.plane, draft, look), **judge_draft(visit, draft)}
        return visit.render("policies/editor.html", status=status, **context, is_update=False)
    return go_to("/policies")


@router.post("/merge")
def merge(visit: Operating, form: FormDep) -> HTMLResponse:
    """Apply what was chosen of a draft on top of what somebody else made active meanwhile."""
    draft = read_draft(visit.plane, form)
    chosen = set(form.all("mine"))
    kept = Pending(
        {path: value for path, value in draft.pending.changes.items() if path in chosen},
        tuple(path for path in draft.pending.removed if path in chosen),
    )
    draft = replace(draft, pending=kept, document=None, text=None)
    try:
        create_revision(visit.plane, visit.principal, draft.revision(apply=True))
    except StaleRevisionError as error:
        return _conflict(visit, draft=draft, detail=error.detail)
    except ControlError as error:
        problems = at_paths(getattr(error, "problems", ()), error.detail)
        return _conflict(
            visit, draft=draft, detail=" ".join(problems.values()), status=face_of(error).status
        )  # fmt: skip
    return go_to("/policies")


@router.post("/revisions/{number}/revert")
def revert(number: Number, visit: Operating, form: FormDep) -> HTMLResponse:
    """Bring an earlier revision back, as a copy under a new number."""
    reason = form.text("reason")
    t = visit.t
    errors: dict[str, str] = {}
    status = 422
    if not reason:
        errors["reason"] = t("policies.reason_missing")
    else:
        try:
            revert_revision(
                visit.plane, visit.principal, number, reason[:MAX_REASON_LENGTH], form.number("base_revision")
            )
        except ControlError as error:
            errors[""], status = error.detail, face_of(error).status
        else:
            return go_to("/policies")
    context = _revision(visit.plane, number, None)
    return visit.render("policies/revert.html", status=status, **context, errors=errors, reason=reason, base=visit.base
    )  # fmt: skip


def _running(plane: ControlPlane) -> dict[str, Any]:
    with plane.database.reading() as session:
        active = load_active(session).revision.number
        statuses = load_statuses(session, active, plane.now())
        links = [link.name for link in load_links(session) if link.admin_url]
        reports = {row.link: row for row in session.exec(select(LinkReportRow))}
    runners = runner_views(statuses, links, reports, active)
    drifted = sum(runner.state != "applied" for runner in runners)
    return {"runners": runners, "drifted": drifted, "running_active": active}


def _revisions(plane: ControlPlane) -> dict[str, Any]:
    with plane.database.reading() as session:
        active = load_active(session).revision.number
        rows = load_revisions(session, REVISIONS_SHOWN)
        views = revision_views(rows, load_activations(session, 4 * REVISIONS_SHOWN), active)
    return {"revisions": views, "now": plane.now()}


def _revision(plane: ControlPlane, number: int, against: int | None) -> dict[str, Any]:
    with plane.database.reading() as session:
        row = load_revision(session, number)
        active = load_active(session).revision
        [view] = revision_views([row], load_activations(session, 4 * REVISIONS_SHOWN), active.number)
        other = against or (row.base_number if number == active.number else active.number)
        try:
            compared = load_revision(session, other) if other else None
        except NotFoundError:
            compared = None
        changes = diff_policies(compared.document, row.document) if compared else []
        back = preview_revert(session, number) if number != active.number else []
        numbers = [one.number for one in load_revisions(session, REVISIONS_SHOWN)]
    return {
        "revision": view,
        "yaml_text": write_yaml(row.document),
        "changes": change_views(changes),
        "against": compared.number if compared else None,
        "numbers": numbers,
        "active_number": active.number,
        "back": change_views(back),
        "now": plane.now(),
    }


def _conflict(
    visit: Visit,
    *,
    draft: Draft,
    detail: str,
    status: int = 412,
) -> HTMLResponse:
    """Base, theirs, yours: what somebody else made active meanwhile beside the draft."""
    draft = as_pending(visit.plane, draft)
    with visit.plane.database.reading() as session:
        active = load_active(session)
        base = load_revision(session, draft.base_number).document
    found: Merge = merge_three(base, active.revision.document, draft.pending)
    return visit.render(
        "policies/conflict.html",
        status=status,
        merge=found,
        rows=[
            {
                "view": change_views_of(row),
                "row": row,
            }
            for row in found.rows
        ],
        draft=draft,
        active=active,
        detail=detail,
        now=visit.plane.now(),
    )


def change_views_of(row: Any) -> dict[str, Any]:
    """The three values of a row in the units of the form."""
    theirs, yours = change_view(row.path, row.base, row.theirs), change_view(row.path, row.base, row.yours)
    return {"label_key": theirs.label_key, "scope": theirs.scope, "unit": theirs.unit, "base": theirs.before,
            "theirs": theirs.after, "yours": yours.after, "path": row.path}  # fmt: skip
