"""`pdd secret`: the secret that a fleet's programs share, and changing it while they run."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

secret_app = typer.Typer(no_args_is_help=True, help="Look after the secret that the fleet's programs share.")
_POLL_S = 0.5


def add_secret_commands(app: typer.Typer) -> None:
    """Put them where they belong."""
    app.add_typer(secret_app, name="secret")


@secret_app.command("show")
def secret_show(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """How far the newest rotation is, and who lacks the new secret; never the secret itself."""
    _print(_read(data), as_json=as_json)


@secret_app.command("rotate")
def secret_rotate(
    data: DataOption = DEFAULT_DATA,
    grace: Annotated[
        int, typer.Option("--grace", min=60, help="Seconds for which the present secret is accepted as well.")
    ] = 3600,
    reason: ReasonOption = "",
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Until every program has it; 1 where one never got it.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the new secret, once, for programs elsewhere.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give every agent, node, gateway and relay a new secret while they run."""
    from control.cli.access_client import administrator
    from control.cli.fleet_client import call_api

    body = {"grace_s": grace, "reason": reason or "Changed with pdd secret rotate"}
    with administrator(data) as fleet:
        rotation = call_api(fleet, "POST", "/site-secret/rotations", body)
    secret = rotation.pop("secret")
    if wait:
        rotation = _wait(data, rotation, quiet=as_json)
    _print({**rotation, "secret": secret} if show else rotation, as_json=as_json)
    if wait and rotation["state"] != "complete":
        raise typer.Exit(1)


def _wait(data: Path, rotation: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    number, told = rotation["number"], None
    while rotation["state"] == "open":
        if len(rotation["waiting_for"]) != told and not quiet:
            told = len(rotation["waiting_for"])
            print(f"{told} programs to go", flush=True)
        time.sleep(_POLL_S)
        rotation = _read(data)
        if rotation["number"] != number:
            raise CommandError(f"Rotation {rotation['number']} has begun meanwhile")
    return rotation


def _read(data: Path) -> dict[str, Any]:
    from control.cli.fleet_client import call_api, find_fleet

    return call_api(find_fleet(data), "GET", "/site-secret/rotation")


def _print(rotation: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rotation))
        return
    until = rotation["previous_until"]
    print(f"rotation {rotation['number']} is {rotation['state']}; the old secret counts until {until}")
    for name in rotation["waiting_for"]:
        print(f"  {name}: {rotation['failed'].get(name, 'has not been told yet')}")
    if "secret" in rotation:
        print(f"PDD_SITE_SECRET={rotation['secret']}")
