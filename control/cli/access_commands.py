"""`pdd user`, `pdd token` and `pdd session`: who may come in."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

user_app = typer.Typer(no_args_is_help=True, help="Let people in, change what they may do, shut them out.")
token_app = typer.Typer(no_args_is_help=True, help="Let programs in, and shut them out.")
session_app = typer.Typer(no_args_is_help=True, help="See who is signed in, and sign them out.")

RoleOption = Annotated[str, typer.Option("--role", help="viewer, operator or admin.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the account.")]


def add_access_commands(app: typer.Typer) -> None:
    """Put all of them where they belong."""
    for name, group in (("user", user_app), ("token", token_app), ("session", session_app)):
        app.add_typer(group, name=name)


@user_app.command("list")
def user_list(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """All accounts."""
    users = _list(data, "/users")
    lines = [f"{one['username']:24} {one['role']:9} {'disabled' if one['disabled'] else 'active'}" for one in users]
    _print(users, lines, as_json=as_json)


@user_app.command("create")
def user_create(
    name: NameArgument, data: DataOption = DEFAULT_DATA, role: RoleOption = "viewer", *, as_json: JsonOption = False
) -> None:
    """Make an account and print its password, once."""
    made = _call(data, "POST", "/users", {"username": name, "role": role})
    _print(made, [f"{name} may sign in as {role} with the password {made['password']}"], as_json=as_json)


@user_app.command("role")
def user_role(
    name: NameArgument,
    role: Annotated[str, typer.Argument(help="viewer, operator or admin.")],
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Give somebody another role."""
    _change_user(data, name, {"role": role, "reason": reason}, f"{name} is {role} now", as_json=as_json)


@user_app.command("disable")
def user_disable(
    name: NameArgument, data: DataOption = DEFAULT_DATA, reason: ReasonOption = "", *, as_json: JsonOption = False
) -> None:
    """Shut somebody out and sign them out everywhere."""
    _change_user(data, name, {"disabled": True, "reason": reason}, f"{name} is shut out", as_json=as_json)


@user_app.command("enable")
def user_enable(
    name: NameArgument, data: DataOption = DEFAULT_DATA, reason: ReasonOption = "", *, as_json: JsonOption = False
) -> None:
    """Let somebody in again."""
    _change_user(data, name, {"disabled": False, "reason": reason}, f"{name} may sign in again", as_json=as_json)


@user_app.command("reset-password")
def user_reset_password(
    name: NameArgument, data: DataOption = DEFAULT_DATA, reason: ReasonOption = "", *, as_json: JsonOption = False
) -> None:
    """Replace somebody's password and print the new one, once."""
    made = _call(data, "POST", f"/users/{name}/password", {"reason": reason})
    _print(made, [f"{name} may sign in with the password {made['password']}"], as_json=as_json)


@token_app.command("list")
def token_list(
    data: DataOption = DEFAULT_DATA,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also what is revoked or has expired.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tokens, newest first."""
    tokens = _list(data, "/tokens", with_invalid="true" if everything else "")
    lines = [
        f"{one['id']:5} {one['name']:24} {', '.join(one['scopes'])}; by {one['created_by']}; "
        f"expires {one['expires_at'] or 'never'}; last used {one['last_used_at'] or 'never'}"
        + ("; revoked" if one["revoked_at"] else "")
        for one in tokens
    ]
    _print(tokens, lines, as_json=as_json)


@token_app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    scope: Annotated[list[str], typer.Option("--scope", help="What it may do; several are allowed.")],
    data: DataOption = DEFAULT_DATA,
    days: Annotated[float, typer.Option("--days", min=0, help="Valid for so long; 0 for ever.")] = 90,
    *,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, once.

    Scopes: read, policies:write, fleet:write, operations:write, alerts:write, annotations:write, access:admin.
    """
    expires_at = (datetime.now(UTC) + timedelta(days=days)).isoformat() if days else None
    made = _call(data, "POST", "/tokens", {"name": name, "scopes": scope, "expires_at": expires_at})
    _print(made, [made["secret"]], as_json=as_json)


@token_app.command("revoke")
def token_revoke(
    token_id: Annotated[int, typer.Argument(help="Number of the token.")],
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
) -> None:
    """Shut a program out."""
    _call(data, "DELETE", f"/tokens/{token_id}", reason=reason)


@session_app.command("list")
def session_list(
    data: DataOption = DEFAULT_DATA,
    user: Annotated[str, typer.Option("--user", help="Only this account's.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Signed-in browsers."""
    sessions = _list(data, "/sessions", user=user)
    lines = [f"{one['id']} {one['username']:24} since {one['created_at']}, to {one['expires_at']}" for one in sessions]
    _print(sessions, lines, as_json=as_json)


@session_app.command("end")
def session_end(
    session_id: Annotated[str, typer.Argument(help="Id of the session.")],
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
) -> None:
    """Sign a browser out."""
    _call(data, "DELETE", f"/sessions/{session_id}", reason=reason)


def _list(data: Path, path: str, **query: str) -> list[dict[str, Any]]:
    from control.cli.access_client import administrator, fetch_all

    with administrator(data) as fleet:
        return fetch_all(fleet, path, **query)


def _call(data: Path, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
    from control.cli.access_client import administrator
    from control.cli.fleet_client import send_request

    with administrator(data) as fleet:
        reply = send_request(fleet, method, path, json=body, params=query)
    document: dict[str, Any] = reply.json() if reply.content else {}
    return document


def _change_user(data: Path, name: str, change: dict[str, Any], told: str, *, as_json: bool) -> None:
    from control.cli.access_client import administrator
    from control.cli.fleet_client import send_request

    with administrator(data) as fleet:
        seen = send_request(fleet, "GET", f"/users/{name}").headers["ETag"]
        changed = send_request(fleet, "PATCH", f"/users/{name}", json=change, headers={"If-Match": seen}).json()
    _print(changed, [told], as_json=as_json)


def _print(document: Any, lines: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"items": document} if isinstance(document, list) else document))
        return
    for line in lines:
        print(line)
