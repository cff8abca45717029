"""`pdd audit`: the record of who changed what, read, exported and checked."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

# Checking or exporting a million events takes most of a minute.
READING_TIMEOUT_S = 600.0

audit_app = typer.Typer(no_args_is_help=True, help="Read, export and check the record of who changed what.")

ActorOption = Annotated[str, typer.Option("--actor", help="Only what this one did.")]
ActionOption = Annotated[str, typer.Option("--action", help="Only this action.")]
TargetOption = Annotated[str, typer.Option("--target", help="Only targets that begin so.")]
SinceOption = Annotated[str, typer.Option("--since", help="From this moment on, as 2030-01-02T03:04:05Z.")]
UntilOption = Annotated[str, typer.Option("--until", help="Before this moment.")]


def add_audit_commands(app: typer.Typer) -> None:
    """Put them where they belong."""
    app.add_typer(audit_app, name="audit")


@audit_app.command("list")
def audit_list(
    data: DataOption = DEFAULT_DATA,
    actor: ActorOption = "",
    action: ActionOption = "",
    target: TargetOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many, newest first.")] = 50,
    *,
    as_json: JsonOption = False,
) -> None:
    """The newest events."""
    query = _query(actor=actor, action=action, target=target, since=since, until=until, limit=str(limit))
    document = _send(data, "/audit", query).json()
    if as_json:
        print(json.dumps(document))
        return
    for event in document["items"]:
        reason = f": {event['reason']}" if event["reason"] else ""
        print(f"{event['id']:6} {event['at']} {event['actor']} {event['action']} {event['target']}{reason}")


@audit_app.command("export")
def audit_export(
    data: DataOption = DEFAULT_DATA,
    actor: ActorOption = "",
    action: ActionOption = "",
    target: TargetOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
) -> None:
    """All events as JSON lines on standard output, oldest first."""
    query = _query(actor=actor, action=action, target=target, since=since, until=until)
    sys.stdout.write(_send(data, "/audit/export", query).text)


@audit_app.command("verify")
def audit_verify(
    data: DataOption = DEFAULT_DATA,
    file: Annotated[Path | None, typer.Option("--file", help="Check a whole export instead of the server.")] = None,
    head: Annotated[str, typer.Option("--head", help="ID:HASH that an earlier check printed.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Check that no event was changed, removed, moved or added behind the chain's back; exit code 1 if one was.

    What a check cannot see by itself is a history that was written anew with all its hashes. Note the printed head
    somewhere else, and give it to a later check.
    """
    noted = _noted(head)
    verdict = _verify_file(file, noted) if file else _verify_server(data, noted)
    if as_json:
        print(json.dumps(verdict))
    elif verdict["valid"]:
        print(f"{verdict['events']} events hold; the head is {verdict['head_id']}:{verdict['head_hash']}")
    else:
        print(verdict["broken"]["detail"])
    if not verdict["valid"]:
        raise typer.Exit(1)


def _verify_server(data: Path, noted: tuple[int, str] | None) -> dict[str, Any]:
    query = _query(noted_id=str(noted[0]), noted_hash=noted[1]) if noted else {}
    verdict: dict[str, Any] = _send(data, "/audit/verify", query).json()
    return verdict


def _verify_file(path: Path, noted: tuple[int, str] | None) -> dict[str, Any]:
    from control.domain.audit import ChainHead, imported, verify_chain

    try:
        events = [imported(json.loads(line)) for line in path.read_text().splitlines()]
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{path} is no export of the audit trail: {error}") from error
    verdict = verify_chain(events, None, [ChainHead(*noted)] if noted else ())
    broken = verdict.broken
    return {
        "valid": broken is None,
        "events": verdict.events,
        "head_id": verdict.head.id,
        "head_hash": verdict.head.hash,
        "broken": {"id": broken.id, "fault": broken.fault, "detail": broken.detail} if broken else None,
    }


def _noted(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    number, _, own_hash = text.partition(":")
    if not number.isdecimal() or not own_hash:
        raise CommandError(f"A head looks like ID:HASH, not {text}")
    return int(number), own_hash


def _query(**wanted: str) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if value}


def _send(data: Path, path: str, query: dict[str, str]) -> Any:
    from control.cli.fleet_client import find_fleet, send_request

    return send_request(find_fleet(data), "GET", path, params=query, timeout_s=READING_TIMEOUT_S)
