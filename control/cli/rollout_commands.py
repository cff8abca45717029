"""`pdd rollout`: a policy revision to some requests first, and to all if it does no harm."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

rollout_app = typer.Typer(no_args_is_help=True, help="Roll policy revisions out to a canary first.")

NumberArgument = Annotated[int, typer.Argument(min=1, help="Number of the roll-out.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Follow it to its end: 0 done, 3 aborted.")]


@rollout_app.command("start")
def start(
    revision: Annotated[int | None, typer.Argument(min=1, help="Number of a stored revision; or use --set.")] = None,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="PATH=VALUE: store a revision with it first; may be repeated.")
    ] = None,
    site: Annotated[str, typer.Option(help="The canary is this site.")] = "",
    share: Annotated[
        float | None, typer.Option(min=0.001, max=0.9, help="The canary is this share of all requests.")
    ] = None,
    bake: Annotated[float | None, typer.Option(min=1, help="Seconds that signals must be good.")] = None,
    wait: WaitOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be tried.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a revision to some requests, and to all once it has baked without harm."""
    from control.cli.fleet_client import call_api, find_fleet
    from control.cli.rollout_client import render_plan

    if (revision is None) == (not changes):
        raise CommandError("Say what to roll out: the number of a stored revision, or --set PATH=VALUE")
    if changes and dry_run:
        raise CommandError("A dry run stores no revision: use pdd policy set --no-apply first, then its number")
    fleet = find_fleet(data)
    why = reason or "Asked with pdd rollout start"
    if changes:
        revision = _store(fleet, changes, why)
    optional = {"site": site or None, "share": share, "bake_s": bake}
    body = {"revision": revision, "reason": why, **{name: value for name, value in optional.items() if value}}
    answer = call_api(fleet, "POST", f"/rollouts{'?dry_run=true' if dry_run else ''}", body)
    if dry_run:
        print(json.dumps(answer) if as_json else render_plan(answer))
        return
    _finish(fleet, answer, wait=wait, as_json=as_json)


@rollout_app.command("list")
def list_rollouts(
    data: DataOption = DEFAULT_DATA,
    phase: Annotated[list[str] | None, typer.Option(help="draft, canary, baking, paused, …; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Roll-outs, newest first."""
    from control.cli.fleet_client import find_fleet, send_request
    from control.cli.rollout_client import progress_line

    params: dict[str, Any] = {"limit": limit, "phase": phase or []}
    found = send_request(find_fleet(data), "GET", "/rollouts", params=params).json()
    print(json.dumps(found) if as_json else "\n".join(progress_line(item) for item in found["items"]))


@rollout_app.command("show")
def show(number: NumberArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """One roll-out with its signals: before, control group, canary, bound and verdict."""
    from control.cli.fleet_client import call_api, find_fleet

    _print(call_api(find_fleet(data), "GET", f"/rollouts/{number}"), as_json=as_json)


@rollout_app.command("watch")
def watch(number: NumberArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Follow a roll-out to its end: exit code 0 done, 3 aborted."""
    from control.cli.fleet_client import call_api, find_fleet

    fleet = find_fleet(data)
    _finish(fleet, call_api(fleet, "GET", f"/rollouts/{number}"), wait=True, as_json=as_json)


@rollout_app.command("promote")
def promote(
    number: NumberArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    force: Annotated[bool, typer.Option("--force", help="Also where the guard would hold it.")] = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give the revision to all now."""
    _change(data, number, "promote", {"reason": reason, "force": force}, wait=wait, as_json=as_json)


@rollout_app.command("pause")
def pause(
    number: NumberArgument, data: DataOption = DEFAULT_DATA, reason: ReasonOption = "", *, as_json: JsonOption = False
) -> None:
    """Stop going forward; the canary stays, and so does the guard that may abort it."""
    _change(data, number, "pause", {"reason": reason}, as_json=as_json)


@rollout_app.command("resume")
def resume(
    number: NumberArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on where it was paused."""
    _change(data, number, "resume", {"reason": reason}, wait=wait, as_json=as_json)


@rollout_app.command("abort")
def abort(
    number: NumberArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to the revision that was active before."""
    _change(data, number, "abort", {"reason": reason}, wait=wait, as_json=as_json, wants=("aborted",))


def _store(fleet: Any, changes: list[str], reason: str) -> int:
    """Store a revision with some fields changed, without applying it; its number."""
    from control.cli.fleet_client import call_api
    from control.cli.policy_commands import parse_change

    active = call_api(fleet, "GET", "/policies/active")["revision"]
    wanted = {"reason": reason, "base_revision": active, "changes": dict(parse_change(change) for change in changes)}
    number: int = call_api(fleet, "POST", "/policies/revisions", wanted)["number"]
    return number


def _change(
    data: Path,
    number: int,
    verb: str,
    body: dict[str, Any],
    *,
    wait: bool = False,
    as_json: bool,
    wants: tuple[str, ...] = ("done",),
) -> None:
    from control.cli.fleet_client import call_api, find_fleet

    fleet = find_fleet(data)
    wanted = {**body, "reason": body["reason"] or f"Asked with pdd rollout {verb}"}
    _finish(
        fleet, call_api(fleet, "POST", f"/rollouts/{number}/{verb}", wanted), wait=wait, as_json=as_json, wants=wants
    )


def _finish(
    fleet: Any, rollout: dict[str, Any], *, wait: bool, as_json: bool, wants: tuple[str, ...] = ("done",)
) -> None:
    """Print a roll-out, at its end where that is waited for; an end that was not wanted is an exit code."""
    from control.cli.operation_client import tell
    from control.cli.rollout_client import exit_code, follow

    if wait:
        rollout = follow(fleet, rollout, tell)
    _print(rollout, as_json=as_json)
    if wait and rollout["phase"] not in wants:
        raise typer.Exit(exit_code(rollout))


def _print(rollout: dict[str, Any], *, as_json: bool) -> None:
    from control.cli.rollout_client import render_rollout

    print(json.dumps(rollout) if as_json else render_rollout(rollout))
