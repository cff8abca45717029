"""The relay threshold: from slider to revision, who runs it, and the way back."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse

from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import MAX_NUMBER
from control.domain.policy import diff_policies, effective_values
from control.domain.policy_fields import FIELDS_BY_PATH
from control.errors import ControlError, InvalidError, StaleRevisionError, face_of
from control.services.access import Principal
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
from webapp.render import Pages, PagesDep
from webapp.strings import Strings
from webapp.words import ago, number

router = APIRouter(prefix="/live/knob", include_in_schema=False)

THRESHOLD: Final = "routing.relay_when_transfer_exceeds_s"
CEILING: Final = "routing.relay_load_ceiling"
SHOWN_CHANGES: Final = 3
OFFER_REVERT_S: Final = 900
MAX_REASON_LENGTH: Final = 500
_MAX_VALUE_LENGTH: Final = 40

# One slider from a fiftieth of a second to ten minutes: fine where transfers are, coarse where they are not.
_LADDER = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5)
_LADDER_ABOVE = (2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Entered:
    """What somebody typed, kept when it is refused."""

    value: str
    reason: str = ""
    errors: dict[str, str] = field(default_factory=dict)


def slider_steps() -> list[float]:
    """Stops of the slider within the bounds of the field."""
    bounds = FIELDS_BY_PATH[THRESHOLD]
    low, high = bounds.minimum or 0, bounds.maximum or math.inf
    return [step for step in (*_LADDER, *_LADDER_ABOVE) if low <= step <= high]


@router.get("")
def knob_form(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """The form on the active revision."""
    return _form(request, pages, plane, principal)


@router.post("")
def change_threshold(
    request: Request,
    pages: PagesDep,
    plane: Plane,
    principal: Operator,
    *,
    base_revision: Annotated[str, Form()] = "",
    value: Annotated[str, Form()] = "",
    reason: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Make a revision and apply it; a refusal comes back at its field."""
    threshold_s, base = _number(value), _revision(base_revision)
    errors = {}
    if threshold_s is None:
        errors["value"] = "Must be a number of seconds."
    if not reason.strip():
        errors["reason"] = "Say why: it goes to the audit log."
    elif len(reason) > MAX_REASON_LENGTH:
        errors["reason"] = f"Must have at most {MAX_REASON_LENGTH} characters; these are {len(reason)}."
    if base is None:
        errors["form"] = "The form did not say which revision it was made on. Look at the active one, then apply again."
    if threshold_s is None or base is None or errors:
        return _form(request, pages, plane, principal, Entered(value, reason, errors), status=422)
    draft = RevisionDraft(reason.strip(), base, changes={THRESHOLD: threshold_s}, apply=True)
    try:
        create_revision(plane, principal, draft)
    except ControlError as error:
        entered = Entered(value, reason, _at_fields(error))
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


def _number(text: str) -> float | None:
    if len(text) > _MAX_VALUE_LENGTH:
        return None
    try:
        found = float(text.replace(",", "."))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _revision(text: str) -> int | None:
    try:
        found = int(text)
    except ValueError:
        return None
    return found if 1 <= found <= MAX_NUMBER else None


def _at_fields(error: ControlError) -> dict[str, str]:
    if isinstance(error, StaleRevisionError):
        return {"form": f"{error.detail} Reset shows the value that is active now."}
    if isinstance(error, InvalidError) and error.problems:
        return {"value" if found.path == THRESHOLD else "form": found.message for found in error.problems}
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
    live = effective_values(active.revision.document)[THRESHOLD]
    return pages.render(
        request,
        "live/knob.html",
        principal,
        status=status,
        field=FIELDS_BY_PATH[THRESHOLD],
        steps=slider_steps(),
        live=live,
        revision=active.revision.number,
        entered=entered or Entered(number(live)),
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
