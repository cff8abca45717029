"""`pdd policy`: what should run, what does, and what changes it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

policy_app = typer.Typer(no_args_is_help=True, help="Read and change the policy.")

RevisionArgument = Annotated[int, typer.Argument(min=1, help="Number of the revision.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
ApplyOption = Annotated[bool, typer.Option(help="Make it the active one.")]


@policy_app.command("show")
def show(
    data: DataOption = DEFAULT_DATA,
    site: Annotated[str, typer.Option(help="What holds at this site, and where each value comes from.")] = "",
    model: Annotated[str, typer.Option(help="What holds for this model, and where each value comes from.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """The policy that should run, and what each gateway runs and how long it took to converge."""
    from control.cli.fleet_client import call_api, send_request

    if not site and not model:
        _print_active(call_api(_fleet(data), "GET", "/policies/active"), as_json=as_json)
        return
    query = {name: value for name, value in (("site", site), ("model", model)) if value}
    merged = send_request(_fleet(data), "GET", "/policies/effective", params=query).json()
    if as_json:
        print(json.dumps(merged))
        return
    for field in merged["fields"]:
        print(f"{field['path']} = {json.dumps(field['value'])}  ({field['origin']})")


@policy_app.command("set")
def set_fields(
    changes: Annotated[
        list[str],
        typer.Argument(help="PATH=VALUE, as in routing.direct_hit_rate=0.9 or overrides.sites.fra.PATH=VALUE."),
    ],
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    apply: ApplyOption = True,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Store a new revision with some fields changed, and apply it."""
    wanted = {"changes": dict(parse_change(change) for change in changes)}
    _create(data, wanted, reason or "Changed with pdd policy set", apply=apply, dry_run=dry_run, as_json=as_json)


@policy_app.command("unset")
def unset_fields(
    paths: Annotated[list[str], typer.Argument(help="PATH of a field, or overrides.sites.NAME for all of a site's.")],
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    apply: ApplyOption = True,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take fields out: they have their default again, or in an override the general value."""
    wanted = {"remove": paths}
    _create(data, wanted, reason or "Changed with pdd policy unset", apply=apply, dry_run=dry_run, as_json=as_json)


@policy_app.command("apply")
def apply_revision(
    revision: RevisionArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Make a stored revision the active one."""
    from control.cli.fleet_client import call_api

    body = {"reason": reason or "Applied with pdd policy apply"}
    _print_active(call_api(_fleet(data), "POST", f"/policies/revisions/{revision}/apply", body), as_json=as_json)


@policy_app.command("revert")
def revert(
    revision: RevisionArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to the content of a revision, as a new one."""
    from control.cli.fleet_client import call_api

    body = {"reason": reason or f"Reverted to r{revision} with pdd policy revert"}
    path = f"/policies/revisions/{revision}/revert{'?dry_run=true' if dry_run else ''}"
    answer = call_api(_fleet(data), "POST", path, body)
    if dry_run:
        _print_changes(answer, as_json=as_json)
    else:
        _print_active(answer, as_json=as_json)


@policy_app.command("diff")
def diff(
    before: RevisionArgument, after: RevisionArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False
) -> None:
    """What differs between two revisions, field by field."""
    from control.cli.fleet_client import send_request

    query = {"before": before, "after": after}
    _print_changes(send_request(_fleet(data), "GET", "/policies/diff", params=query).json(), as_json=as_json)


@policy_app.command("log")
def log(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Every revision, the newest first: who made it, when and why."""
    from control.cli.fleet_client import fetch_all

    revisions = fetch_all(_fleet(data), "/policies/revisions")
    if as_json:
        print(json.dumps(revisions))
        return
    for one in revisions:
        print(f"r{one['number']}  {one['created_at'][:19]}Z  {one['actor']}  {one['reason']}")


def _create(data: Path, wanted: dict[str, Any], reason: str, *, apply: bool, dry_run: bool, as_json: bool) -> None:
    from control.cli.fleet_client import call_api

    fleet = _fleet(data)
    active = call_api(fleet, "GET", "/policies/active")
    body = {**wanted, "base_revision": active["revision"], "reason": reason, "apply": apply}
    if dry_run:
        _print_changes(call_api(fleet, "POST", "/policies/revisions?dry_run=true", body), as_json=as_json)
        return
    created = call_api(fleet, "POST", "/policies/revisions", body)
    told = f"revision {created['number']} {'applied' if apply else 'stored, not applied'}"
    print(json.dumps(created) if as_json else told)


def _print_active(active: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(active))
        return
    print(f"revision {active['revision']}: {active['reason']}")
    for section, fields in active["document"].items():
        print(f"  {section}: {json.dumps(fields)}")
    for gateway in active["gateways"]:
        took = "" if gateway["converged_s"] is None else f", converged in {gateway['converged_s']:.1f} s"
        canary = "" if gateway["canary_revision"] is None else f", canary {gateway['canary_revision']}"
        print(f"  gateway {gateway['name']} runs {gateway['revision']}{canary} ({gateway['state']}{took})")


def _print_changes(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer))
        return
    for change in answer["changes"]:
        print(f"{change['path']}: {json.dumps(change['before'])} -> {json.dumps(change['after'])}")
    if not answer["changes"]:
        print("nothing differs")


def parse_change(text: str) -> tuple[str, Any]:
    """A field's path and its value: JSON where it is JSON, else a word.

    Raises:
        CommandError: it is no change.
    """
    path, sign, value = text.partition("=")
    if not sign:
        raise CommandError(f"A change looks like PATH=VALUE, not {text}")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def _fleet(data: Path) -> Any:
    from control.cli.fleet_client import find_fleet

    return find_fleet(data)
