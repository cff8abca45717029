"""The knobs: from slider to revision, who runs it, and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse

from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import MAX_NUMBER
from control.domain.policy import diff_policies, effective_values
from control.domain.topology import Role
from control.errors import ControlError, InvalidError, StaleRevisionError, face_of
from control.services.access import Principal
from control.services.fleet import load_links, load_nodes
from control.services.plane import ControlPlane
from control.services.policies import (
    Active,
    RevisionDraft,
    apply_revision,
    create_revision,
    load_activations,
    load_active,
    load_revision,
)
from control.services.rollout import RolloutState, load_statuses
from webapp.knobs import CEILING, THRESHOLD, changes_of, knobs_of
from webapp.render import Pages, PagesDep
from webapp.strings import Strings
from webapp.words import ago, number

router = APIRouter(prefix="/live/knob", include_in_schema=False)

SHOWN_CHANGES: Final = 3
OFFER_REVERT_S: Final = 900
MAX_REASON_LENGTH: Final = 500


@dataclass(frozen=True, slots=True)
class Entered:
    """What somebody typed, kept when it is refused; errors by field, `reason` or `form`."""

    values: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)


async def _typed(request: Request) -> dict[str, str]:
    form = await request.form(max_files=0, max_fields=200)
    return {name: value for name, value in form.items() if isinstance(value, str)}


Typed = Annotated[dict[str, str], Depends(_typed)]


@router.get("")
def knob_form(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The form on the active revision."""
    return _form(request, pages, plane, principal)


@router.post("")
def change_policy(request: Request, pages: PagesDep, plane: Plane, principal: Operator, typed: Typed) -> HTMLResponse:
    """Make a revision of all knobs that were moved, and apply it; a refusal comes back at its field."""
    t = pages.strings(request)
    base, reason = _revision(typed.get("base_revision", "")), typed.get("reason", "")
    with plane.database.reading() as session:
        knobs = knobs_of(load_links(session))
        live = effective_values(load_active(session).revision.document)
    changes, wrong = changes_of(knobs, typed, live)
    errors = {path: t(f"knob.error_{name}") for path, name in wrong.items()}
    if not reason.strip():
        errors["reason"] = t("knob.error_reason")
    elif len(reason) > MAX_REASON_LENGTH:
        errors["reason"] = t("knob.error_long", most=MAX_REASON_LENGTH, count=len(reason))
    if base is None:
        errors["form"] = t("knob.error_base")
    if base is None or errors:
        return _form(request, pages, plane, principal, Entered(typed, reason, errors), status=422)
    draft = RevisionDraft(reason.strip(), base, changes=changes, apply=True)
    try:
        create_revision(plane, principal, draft)
    except ControlError as error:
        entered = Entered(typed, reason, _at_fields(error, {knob.path for knob in knobs}, t))
        return _form(request, pages, plane, principal, entered, status=face_of(error).status)
    response = _form(request, pages, plane, principal)
    response.headers["HX-Trigger"] = "policy-changed"
    return response


@router.get("/state")
def knob_state(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """Which gateway runs what, and the last changes; asks again by itself until all gateways agree."""
    return _state(request, pages, plane, principal)


@router.post("/revert")
def revert(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    principal: Operator,
    *,
    base_revision: Annotated[int, Form(ge=1, le=MAX_NUMBER)],
    to_revision: Annotated[int, Form(ge=1, le=MAX_NUMBER)],
) -> HTMLResponse:
    """Bring an earlier revision back, as a copy under a new number."""
    problem = ""
    try:
        apply_revision(plane, principal, to_revision, f"Revert r{base_revision} to r{to_revision}", base_revision)
    except ControlError as error:
        problem = error.detail
    response = _state(request, pages, plane, principal, problem)
    response.headers["HX-Trigger"] = "policy-reverted"
    return response


def _revision(text: str) -> int | None:
    try:
        found = int(text)
    except ValueError:
        return None
    return found if 1 <= found <= MAX_NUMBER else None


def _at_fields(error: ControlError, paths: set[str], t: Strings) -> dict[str, str]:
    if isinstance(error, StaleRevisionError):
        return {"form": f"{error.detail} {t('knob.stale')}"}
    if isinstance(error, InvalidError) and error.problems:
        return {
            found.path if found.path in paths else "form": found.message
            if found.path in paths
            else f"{found.path}: {found.message}"
            for found in error.problems
        }
    return {"form": error.detail}


def _form(
    request: Request,
    pages: Pages,
    plane: ControlPlane,
    principal: Principal,
    entered: Entered | None = None,
    *,
    status: int = 200,
) -> HTMLResponse:
    with plane.database.reading() as session:
        active = load_active(session)
        knobs = knobs_of(load_links(session))
        nodes = load_nodes(session)
    live = effective_values(active.revision.document)
    shown = {knob.path: knob.shown(live.get(knob.path, knob.field.default)) for knob in knobs}
    return pages.render(
        request,
        "live/knob.html",
        principal,
        status=status,
        knobs=knobs,
        live=shown,
        revision=active.revision.number,
        entered=entered or Entered(),
        pools=[sum(node.role is role for node in nodes) for role in (Role.PREFILL, Role.RELAY, Role.MAIN)],
        may_change=principal.role != "viewer",
    )


def _state(
    request: Request, pages: Pages, plane: ControlPlane, principal: Principal, problem: str = ""
) -> HTMLResponse:
    now = plane.now()
    strings = pages.strings(request)
    with plane.database.reading() as session:
        active = load_active(session)
        gateways = load_statuses(session, active.revision.number, now)
        activations = load_activations(session, SHOWN_CHANGES + 1)
        documents = {row.revision: load_revision(session, row.revision).document for row in activations}
    history = []
    for newer, older in zip(activations, [*activations[1:], None], strict=True):
        before = documents[older.revision] if older else None
        history.append(
            {
                "revision": newer.revision,
                "reason": newer.reason,
                "actor": newer.actor,
                "ago": ago(newer.activated_at, now, strings),
                "change": _change(before, documents[newer.revision], strings),
            }
        )
    applied = sum(1 for gateway in gateways if gateway.state is RolloutState.APPLIED)
    return pages.render(
        request,
        "live/knob_state.html",
        principal,
        active=active,
        since=ago(active.activation.activated_at, now, strings),
        ceiling=effective_values(active.revision.document)[CEILING],
        gateways=gateways,
        applied=applied,
        is_settled=applied == len(gateways),
        history=history[:SHOWN_CHANGES],
        revert_to=_revert_target(active, activations, now),
        problem=problem,
        may_change=principal.role != "viewer",
    )


def _change(before: dict[str, Any] | None, after: dict[str, Any], t: Strings) -> str:
    """The change in a few characters: the threshold where it moved, else how many fields."""
    if before is None:
        return ""
    changes = diff_policies(before, after)
    for change in changes:
        if change.path == THRESHOLD:
            return f"{number(change.before)} → {number(change.after)} s"
    return t("knob.fields", count=len(changes)) if changes else t("knob.no_field")


def _revert_target(active: Active, activations: list[Any], now: Any) -> int | None:
    """The revision before, for as long as taking the last change back is likely to be wanted."""
    is_recent = (now - active.activation.activated_at).total_seconds() <= OFFER_REVERT_S
    if not is_recent or len(activations) < 2:
        return None
    return int(activations[1].revision)
