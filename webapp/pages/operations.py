"""Operations: asked for with their plan in view, watched step by step, cancelled, tried again."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import TypeAdapter, ValidationError

from control.api.operation_schemas import OperationIn
from control.api.schemas import MAX_NUMBER
from control.domain.operations import Kind, OperationState
from control.domain.topology import Role
from control.errors import ControlError, face_of
from control.orders import CONTROL_QUEUE, site_queue
from control.services.audit import AuditFilter, load_events
from control.services.fleet import load_links, load_nodes, load_sites
from control.services.operation_store import Stored, load_operation, load_operations, load_typical_s
from control.services.operations import (
    cancel_operation,
    open_operation,
    preview_operation,
    retry_operation,
)
from control.services.plane import ControlPlane
from control.services.sightings import load_agents
from webapp.commands import curl_command
from webapp.form_fields import GENERAL, FormDep, Typed, refusal
from webapp.operation_form import KINDS, read_request
from webapp.operation_view import operation_log, operation_view, planned_steps
from webapp.visit import Looking, Operating, Visit, go_to

router = APIRouter(prefix="/operations", include_in_schema=False)

PAGE_SIZE: Final = 20
AGENT_LATE_S: Final = 30.0
Number = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Word = Annotated[str, Query(max_length=200)]
_request: TypeAdapter[Any] = TypeAdapter(OperationIn)


@router.get("")
def operations_page(
    visit: Looking,
    *,
    kind: Word = "",
    state: Word = "",
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    start: Word = "",
    subject: Word = "",
) -> HTMLResponse:
    """The list, the form that starts one, and who carries them out."""
    context = _list(visit.plane, kind, state, cursor)
    form = _form(visit.plane, start if start in KINDS else KINDS[0], Typed(), subject=subject)
    workers = _workers(visit.plane)
    return visit.page("operations", "operations/page.html", **context, **form, workers=workers)


@router.get("/list")
def operations_list(
    visit: Looking,
    *,
    kind: Word = "",
    state: Word = "",
    cursor: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
) -> HTMLResponse:
    """The rows alone; they ask again by themselves while something is under way."""
    return visit.render("operations/list.html", **_list(visit.plane, kind, state, cursor))


@router.get("/workers")
def operations_workers(visit: Looking) -> HTMLResponse:
    """Queues and agents."""
    return visit.render("operations/workers.html", workers=_workers(visit.plane))


@router.get("/form")
def operation_form(visit: Operating, *, kind: Word = "", subject: Word = "") -> HTMLResponse:
    """The fields of one kind of operation."""
    form = _form(visit.plane, kind if kind in KINDS else KINDS[0], Typed(), subject=subject)
    return visit.render("operations/form.html", **form)


@router.post("/plan")
def plan(visit: Operating, form: FormDep) -> HTMLResponse:
    """What it would do, step by step; changes nothing."""
    return _asked(visit, form=form, is_start=False)


@router.post("/start")
def start_operation(visit: Operating, form: FormDep) -> HTMLResponse:
    """Start it, and go to its page."""
    return _asked(visit, form=form, is_start=True)


@router.get("/{number}")
def operation_page(number: Number, visit: Looking) -> HTMLResponse:
    """One operation."""
    return visit.page(
        "operations",
        "operations/detail.html",
        **_detail(visit.plane, number),
        problem="",
        is_update=False,
    )


@router.get("/{number}/course")
def operation_course(number: Number, visit: Looking) -> HTMLResponse:
    """Its steps and log; they ask again by themselves until it is over, and then the page is loaded anew."""
    context = _detail(visit.plane, number)
    reply = visit.render("operations/course.html", **context, is_update=True)
    if not context["operation"].is_open:
        reply.headers["HX-Refresh"] = "true"
    return reply


@router.post("/{number}/cancel")
def cancel(number: Number, visit: Operating, form: FormDep) -> HTMLResponse:
    """Stop it; what leaves a node unused is undone."""
    return _interfered(visit, number=number, form=form, is_retry=False)


@router.post("/{number}/retry")
def retry(number: Number, visit: Operating, form: FormDep) -> HTMLResponse:
    """Start anew what failed or was cancelled."""
    return _interfered(visit, number=number, form=form, is_retry=True)


def _asked(visit: Visit, *, form: Typed, is_start: bool) -> HTMLResponse:
    kind = form.text("kind") if form.text("kind") in KINDS else KINDS[0]
    errors: dict[str, str] = {}
    found: dict[str, Any] = {}
    status = 200
    try:
        body = _request.validate_python(read_request(kind, form))
        if is_start:
            opened = open_operation(visit.plane, visit.principal, body.kind, body.parameters(), body.reason)
            return go_to(f"/operations/{opened.stored.id}")
        preview = preview_operation(visit.plane, body.kind, body.parameters())
        command = curl_command(visit.base, "POST", "/operations", body.model_dump(mode="json", exclude_none=True))
        found = {"plan": planned_steps(preview.steps), "result": preview.result, "command": command}
    except ValidationError as error:
        status = 422
        t = visit.t
        for one in error.errors(include_url=False):
            name = str(one["loc"][-1]) if one["loc"] else GENERAL
            errors[name] = t("operations.reason_missing") if name == "reason" else one["msg"]
    except ControlError as error:
        errors, status = refusal(error), face_of(error).status
    context = {**_form(visit.plane, kind, form, errors=errors), **found}
    return visit.render("operations/form.html", status=status, **context)


def _interfered(
    visit: Visit,
    *,
    number: int,
    form: Typed,
    is_retry: bool,
) -> HTMLResponse:
    reason = form.text("reason")[:500]
    try:
        if is_retry:
            opened = retry_operation(visit.plane, visit.principal, number, reason)
            return go_to(f"/operations/{opened.stored.id}")
        cancel_operation(visit.plane, visit.principal, number, reason)
        return HTMLResponse("", headers={"HX-Refresh": "true"})
    except ControlError as error:
        status, problem = face_of(error).status, error.detail
    context = _detail(visit.plane, number)
    return visit.render("operations/controls.html", status=status, **context, problem=problem)


def _list(plane: ControlPlane, kind: str, state: str, cursor: int | None) -> dict[str, Any]:
    kinds = [kind] if kind in set(Kind) else []
    states = {"open": [one.value for one in OperationState if one.is_open], "": []}.get(state)
    if states is None:
        states = [state] if state in set(OperationState) else []
    with plane.database.reading() as session:
        found = load_operations(session, limit=PAGE_SIZE + 1, before=cursor, kinds=kinds, states=states)
        typical_s = load_typical_s(session)
    now = plane.now()
    shown = [operation_view(stored, now, typical_s) for stored in found[:PAGE_SIZE]]
    return {
        "operations": shown,
        "next_cursor": shown[-1].id if len(found) > PAGE_SIZE else None,
        "wanted": {"kind": kind, "state": state, "cursor": cursor},
        "kinds": [one.value for one in Kind],
        "states": [one.value for one in OperationState],
        "now": now,
    }


def _detail(plane: ControlPlane, number: int) -> dict[str, Any]:
    now = plane.now()
    with plane.database.reading() as session:
        stored: Stored = load_operation(session, number)
        view = operation_view(stored, now, load_typical_s(session))
        wanted = AuditFilter(action="operation.cancel", target_prefix=f"operation/{number}")
        events = [event for event in load_events(session, 50, None, wanted) if event.target == f"operation/{number}"]
    said = [(event.at, event.actor, event.reason) for event in events]
    return {"operation": view, "log": operation_log(stored, said), "now": now}


def _form(
    plane: ControlPlane, kind: str, typed: Typed, *, subject: str = "", errors: dict[str, str] | None = None
) -> dict[str, Any]:
    with plane.database.reading() as session:
        nodes, links, sites = load_nodes(session), load_links(session), load_sites(session)
    return {
        "start_kinds": KINDS,
        "start_kind": kind,
        "typed": typed,
        "subject": subject,
        "errors": errors or {},
        "nodes": nodes,
        "links": links,
        "sites": sites,
        "roles": [role.value for role in Role],
        "plan": None,
        "result": None,
        "command": "",
    }


def _workers(plane: ControlPlane) -> dict[str, Any]:
    """Each queue with what waits in it, and each site's agent with the age of its last word."""
    now = plane.now()
    with plane.database.reading() as session:
        sites = [site.name for site in load_sites(session)]
        heard = load_agents(session)
    agents = []
    for site in sites:
        age_s = (now - heard[site]).total_seconds() if site in heard else None
        state = "unknown" if age_s is None else "late" if age_s > AGENT_LATE_S else "alive"
        agents.append({"site": site, "age_s": age_s, "state": state, "waiting": plane.waiting(site_queue(site))})
    return {"agents": agents, "control": plane.waiting(CONTROL_QUEUE)}
