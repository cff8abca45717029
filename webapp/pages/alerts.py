"""Alerts: objectives and their budgets, what fires, and since when."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse

from control.api.schemas import MAX_NUMBER
from control.domain.alerts import AlertState
from control.errors import ControlError, face_of
from control.services.alert_rules import load_rules
from control.services.alerts import AlertFilter, acknowledge_alert, close_alert, load_alert, load_alerts, load_history
from control.services.plane import ControlPlane
from control.services.slos import load_slos, load_statuses
from webapp.alert_view import alert_view, slo_card, timeline, timeline_span
from webapp.commands import curl_command
from webapp.form_fields import FormDep, Typed
from webapp.pages import alert_rules, silences, slo_forms, webhooks
from webapp.visit import Looking, Operating, Visit

router = APIRouter(prefix="/alerts", include_in_schema=False)
for _router in (slo_forms.router, alert_rules.router, silences.router, webhooks.router):
    router.include_router(_router)

TABS: Final = ("now", "rules", "silences", "webhooks")
SHOWN: Final = 50
TIMELINE_EPISODES: Final = 500
AlertId = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Word = Annotated[str, Query(max_length=2000)]


@router.get("")
def alerts_page(visit: Looking, *, tab: Word = "now", matchers: Word = "") -> HTMLResponse:
    """One of four tabs."""
    chosen = tab if tab in TABS else "now"
    contexts = {
        "now": lambda: now_context(visit.plane),
        "rules": lambda: alert_rules.context(visit.plane),
        "silences": lambda: silences.context(visit.plane, matchers),
        "webhooks": lambda: webhooks.context(visit.plane, visit.principal),
    }
    with visit.plane.database.reading() as session:
        firing = len(load_alerts(session, visit.plane.now(), AlertFilter([AlertState.FIRING]), SHOWN))
    context = contexts[chosen]()
    return visit.page("alerts", "alerts/page.html", **context, tab=chosen, tabs=TABS, firing_count=firing)


@router.get("/now")
def alerts_now(visit: Looking) -> HTMLResponse:
    """Objectives, what fires, and the timeline; they ask again by themselves."""
    return visit.render("alerts/now.html", **now_context(visit.plane))


@router.get("/{alert_id}")
def alert_detail(alert_id: AlertId, visit: Looking) -> HTMLResponse:
    """One alert's history, and what can be done about it."""
    return _detail(visit, alert_id=alert_id)


@router.post("/{alert_id}/acknowledge")
def acknowledge(alert_id: AlertId, visit: Operating, form: FormDep) -> HTMLResponse:
    """Say that somebody looks after it."""
    return _act(visit, alert_id=alert_id, form=form, is_close=False)


@router.post("/{alert_id}/close")
def close(alert_id: AlertId, visit: Operating, form: FormDep) -> HTMLResponse:
    """End an alert whose data will not come back."""
    return _act(visit, alert_id=alert_id, form=form, is_close=True)


def now_context(plane: ControlPlane) -> dict[str, Any]:
    """What the first tab shows."""
    now = plane.now()
    open_states = AlertFilter([AlertState.PENDING, AlertState.FIRING])
    with plane.database.reading() as session:
        slos = load_slos(session)
        statuses = load_statuses(session, [stated.slo for stated in slos], now.timestamp())
        alerts = [alert_view(seen) for seen in load_alerts(session, now, open_states, SHOWN)]
        recent = [seen.row for seen in load_alerts(session, now, AlertFilter(), TIMELINE_EPISODES)]
        units = {stated.rule.name: stated.rule.metric for stated in load_rules(session)}
    covered = timeline_span(recent, now)
    return {
        "cards": [slo_card(stated, statuses[stated.slo.name]) for stated in slos],
        "alerts": alerts,
        "metrics": units,
        "timeline": timeline(recent, now, covered),
        "timeline_span_s": covered.total_seconds(),
        "now": now,
    }


def _act(
    visit: Visit,
    *,
    alert_id: int,
    form: Typed,
    is_close: bool,
) -> HTMLResponse:
    comment = form.text("comment")[:500]
    problem, status = "", 200
    if not comment:
        problem, status = visit.t("alerts.comment_missing"), 422
    else:
        try:
            (close_alert if is_close else acknowledge_alert)(visit.plane, visit.principal, alert_id, comment)
        except ControlError as error:
            problem, status = error.detail, face_of(error).status
    reply = _detail(visit, alert_id=alert_id, problem=problem, status=status)
    if not problem:
        reply.headers["HX-Trigger"] = "alerts-changed"
    return reply


def _detail(
    visit: Visit,
    *,
    alert_id: int,
    problem: str = "",
    status: int = 200,
) -> HTMLResponse:
    now = visit.plane.now()
    with visit.plane.database.reading() as session:
        seen = load_alert(session, now, alert_id)
        history = load_history(session, alert_id)
    base = visit.base
    return visit.render(
        "alerts/detail.html",
        status=status,
        alert=alert_view(seen),
        history=history,
        problem=problem,
        now=now,
        command=curl_command(base, "POST", f"/alerts/{alert_id}/acknowledge", {"comment": "…"}),
    )
