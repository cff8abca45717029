"""Access: accounts, tokens that are shown once, signed-in browsers, tenants, and one's own password."""

from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlmodel import select

from control.domain.access import ROLE_SCOPES, Role, Scope, in_order
from control.domain.policy_check import class_names
from control.errors import ControlError, InvalidError, face_of
from control.services.access_sessions import end_session, load_sessions
from control.services.access_tokens import create_token, load_tokens, revoke_token
from control.services.access_users import (
    change_own_password,
    change_user,
    create_user,
    load_users,
    reset_password,
    user_version,
)
from control.services.policies import load_active
from control.services.tenants import create_tenant
from control.store.tables import TenantRow
from webapp.commands import curl_command
from webapp.form_fields import FormDep, Typed, refusal
from webapp.visit import Looking, Operating, OwnVisit, Visit, go_to

router = APIRouter(prefix="/access", include_in_schema=False)

SHOWN: Final = 200
LIFETIMES: Final = {"1d": 1, "7d": 7, "30d": 30, "90d": 90, "365d": 365, "never": None}
PANELS: Final = ("users", "tokens", "sessions", "tenants", "password")


@router.get("")
def access_page(visit: Looking) -> HTMLResponse:
    """What the caller may see: everybody's for administrators, else what is their own."""
    context = {name: value for panel in PANELS for name, value in _context(visit, panel).items()}
    return visit.page("access", "access/page.html", **context)


@router.post("/users")
def add_user(visit: Looking, form: FormDep) -> HTMLResponse:
    """Let somebody sign in; their first password is shown once."""
    try:
        row, password = create_user(
            visit.plane, visit.principal, form.text("username"), Role(form.text("role", Role.VIEWER))
        )
    except ControlError as error:
        return _panel(visit, panel="users", error=error, typed=form)
    except ValueError:
        return _panel(visit, panel="users", error=InvalidError(_roles()), typed=form)
    return _panel(visit, panel="users", secret=password, secret_of=row.username)


@router.post("/users/change")
def change(visit: Looking, form: FormDep) -> HTMLResponse:
    """Another role, shut out, or let in again."""
    role, disabled = form.text("role"), form.text("disabled")
    try:
        change_user(
            visit.plane,
            visit.principal,
            form.text("username"),
            {form.text("version")},
            role=Role(role) if role in set(Role) else None,
            disabled={"true": True, "false": False}.get(disabled),
            reason=form.text("reason")[:500],
        )
    except ControlError as error:
        return _panel(visit, panel="users", error=error)
    return _panel(visit, panel="users")


@router.post("/users/reset")
def reset(visit: Looking, form: FormDep) -> HTMLResponse:
    """A new password, shown once; their sessions end."""
    username = form.text("username")
    try:
        password = reset_password(visit.plane, visit.principal, username)
    except ControlError as error:
        return _panel(visit, panel="users", error=error)
    return _panel(visit, panel="users", secret=password, secret_of=username)


@router.post("/own/tokens")
def add_token(visit: OwnVisit, form: FormDep) -> HTMLResponse:
    """Let a program in; its secret is shown once."""
    scopes = [Scope(scope) for scope in form.all("scopes") if scope in set(Scope)]
    days = LIFETIMES.get(form.text("lifetime"), LIFETIMES["30d"])
    expires_at = None if days is None else visit.plane.now() + timedelta(days=days)
    try:
        row, secret = create_token(visit.plane, visit.principal, form.text("name"), scopes, expires_at)
    except ControlError as error:
        return _panel(visit, panel="tokens", error=error, typed=form)
    return _panel(visit, panel="tokens", secret=secret, secret_of=row.name)


@router.post("/own/tokens/revoke")
def revoke(visit: OwnVisit, form: FormDep) -> HTMLResponse:
    """Shut a program out."""
    try:
        revoke_token(visit.plane, visit.principal, form.number("id") or 0)
    except ControlError as error:
        return _panel(visit, panel="tokens", error=error)
    return _panel(visit, panel="tokens")


@router.post("/own/sessions/end")
def end(visit: OwnVisit, form: FormDep) -> HTMLResponse:
    """Sign a browser out; one's own goes to the door."""
    try:
        end_session(visit.plane, visit.principal, form.text("id"))
    except ControlError as error:
        return _panel(visit, panel="sessions", error=error)
    if form.text("id") == visit.principal.session_id:
        return go_to("/login")
    return _panel(visit, panel="sessions")


@router.post("/own/password")
def own_password(visit: OwnVisit, form: FormDep) -> HTMLResponse:
    """Replace one's own password; all other sessions end."""
    try:
        change_own_password(visit.plane, visit.principal, form.raw("current")[:1000], form.raw("new")[:1000])
    except ControlError as error:
        return _panel(visit, panel="password", error=error)
    return _panel(visit, panel="password", is_done=True)


@router.post("/tenants")
def add_tenant(visit: Operating, form: FormDep) -> HTMLResponse:
    """Let a tenant use the gateways; its key is shown once."""
    salt = {"true": True, "false": False}.get(form.text("salt"))
    try:
        tenant, key = create_tenant(visit.plane, visit.principal, form.text("name"), form.all("classes"), salt=salt)
    except ControlError as error:
        return _panel(visit, panel="tenants", error=error, typed=form)
    return _panel(visit, panel="tenants", secret=key, secret_of=tenant.name)


def _context(visit: Visit, panel: str) -> dict[str, Any]:
    """What one panel shows; empty lists where the caller may not see them."""
    now = visit.plane.now()
    is_admin = Scope.ACCESS_ADMIN in visit.principal.granted
    shared: dict[str, Any] = {
        "now": now,
        "is_admin": is_admin,
        "is_person": visit.principal.is_person,
        "errors": {},
        "typed": Typed(),
        "secret": "",
        "secret_of": "",
        "is_done": False,
        "failed": "",
        "roles": [role.value for role in Role],
        "role_scopes": {role.value: [scope.value for scope in in_order(ROLE_SCOPES[role])] for role in Role},
        "granted": [scope.value for scope in in_order(visit.principal.granted)],
        "lifetimes": list(LIFETIMES),
        "base": visit.base,
        "curl_command": curl_command,
    }
    with visit.plane.database.reading() as session:
        if panel == "users":
            rows = load_users(session, SHOWN) if is_admin else []
            shared["users"] = [{"row": row, "version": user_version(row)} for row in rows]
        elif panel == "tokens":
            shared["tokens"] = load_tokens(session, visit.principal, now, SHOWN)
        elif panel == "sessions":
            shared["sessions"] = load_sessions(session, visit.principal, now, SHOWN)
        elif panel == "tenants":
            shared["tenants"] = session.exec(select(TenantRow).order_by(TenantRow.name).limit(SHOWN)).all()
            shared["classes"] = class_names(load_active(session).revision.document)
    return shared


def _panel(
    visit: Visit,
    *,
    panel: str,
    error: ControlError | None = None,
    **more: Any,
) -> HTMLResponse:
    status = 200
    if error is not None:
        more |= {"errors": refusal(error), "failed": panel}
        status = face_of(error).status
    context = _context(visit, panel) | more
    return visit.render(f"access/{panel}.html", status=status, **context)


def _roles() -> str:
    return f"A role is one of {', '.join(Role)}."
