"""The guarded roll-out of a policy revision: begun from the editor, watched, promoted, paused, aborted."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from control.api.schemas import MAX_NUMBER
from control.errors import ControlError, face_of
from control.services.plane import ControlPlane
from control.services.policies import create_revision, load_revisions
from control.services.rollout_store import find_open_rollout, load_rollouts
from control.services.rollouts import (
    ChangeWish,
    RolloutDraft,
    abort_rollout,
    open_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
)
from webapp.commands import curl_command
from webapp.form_fields import FormDep, Typed, refusal
from webapp.policy_editor import editor_context, judge_draft, read_draft, read_look
from webapp.rollout_view import rollout_view
from webapp.visit import Looking, Operating, go_to

router = APIRouter(prefix="/rollout")

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Action = Literal["promote", "pause", "resume", "abort"]

_CHANGES = {"pause": pause_rollout, "resume": resume_rollout, "abort": abort_rollout}


@router.get("")
def rollout_panel(visit: Looking) -> HTMLResponse:
    """The roll-out that is under way, or the last one; asks again by itself."""
    return visit.render("policies/rollout.html", **rollout_context(visit.plane, visit.base))


@router.post("/begin")
def begin(visit: Operating, form: FormDep) -> HTMLResponse:
    """Store the draft as a revision and give it to a canary; a refusal comes back to the editor."""
    draft, look = read_draft(visit.plane, form), read_look(form)
    judged = judge_draft(visit, draft)
    status, problem = 422, ""
    if not judged["blockers"]:
        try:
            wish = _wish(form, draft.base_number, draft.reason)
            row = create_revision(visit.plane, visit.principal, draft.revision())
            open_rollout(visit.plane, visit.principal, RolloutDraft(row.number, **wish))
        except ValueError:
            problem = visit.t("rolling.wrong_numbers")
        except ControlError as error:
            problem, status = " ".join(refusal(error).values()), face_of(error).status
        else:
            return go_to("/policies")
    context = {**editor_context(visit.plane, draft, look), **judged, "rollout_problem": problem}
    return visit.render("policies/editor.html", status=status, **context, is_update=False)


@router.post("/stored")
def begin_stored(visit: Operating, form: FormDep) -> HTMLResponse:
    """Give a revision that is stored already to a canary."""
    number = form.number("revision") or 0
    problem, status = "", 422
    try:
        wish = _wish(form, form.number("base_revision") or 0, form.text("reason")[:500])
        open_rollout(visit.plane, visit.principal, RolloutDraft(number, **wish))
    except ValueError:
        problem = visit.t("rolling.wrong_numbers")
    except ControlError as error:
        problem, status = " ".join(refusal(error).values()), face_of(error).status
    else:
        return go_to("/policies")
    return visit.render("policies/refused.html", status=status, problem=problem)


@router.post("/{number}/{action}")
def change(visit: Operating, number: Number, action: Action, form: FormDep) -> Response:
    """Promote, pause, resume or abort it; a refusal is a sentence for the dialog that asked."""
    wish = ChangeWish(number, form.text("reason")[:500], {form.text("version")})
    try:
        if action == "promote":
            promote_rollout(visit.plane, visit.principal, wish, force=form.has("force"))
        else:
            _CHANGES[action](visit.plane, visit.principal, wish)
    except ControlError as error:
        return PlainTextResponse(error.detail, face_of(error).status)
    return visit.render("policies/rollout.html", **rollout_context(visit.plane, visit.base))


def rollout_context(plane: ControlPlane, base: str) -> dict[str, Any]:
    """What the panel shows: the open roll-out, else the last one while its revision is still the newest."""
    with plane.database.reading() as session:
        stored = find_open_rollout(session)
        if stored is None:
            last = load_rollouts(session, 1)
            newest = load_revisions(session, 1)
            is_recent = last and newest and newest[0].number <= max(last[0].row.revision, last[0].row.reverted_to or 0)
            stored = last[0] if is_recent else None
    view = rollout_view(stored) if stored else None
    command = curl_command(base, "POST", f"/rollouts/{view.id}/promote", {"reason": "…"}) if view else ""
    return {"rollout": view, "now": plane.now(), "rollout_command": command}


def _wish(form: Typed, base: int, reason: str) -> dict[str, Any]:
    """What a form says of the canary; an empty field leaves it to the policy.

    Raises:
        ValueError: a number is none.
    """
    share, bake_s, site = form.text("canary_share"), form.text("bake_s"), form.text("canary_site")
    return {
        "reason": reason,
        "site": site or None,
        "share": None if site or not share else _within(float(share.replace(",", ".")) / 100, 0.001, 0.9),
        "bake_s": _within(float(bake_s.replace(",", ".")), 1, 86_400) if bake_s else None,
        "base_revision": base,
    }


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError("out of bounds")
    return value
