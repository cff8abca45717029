"""`pdd annotation`: remarks on moments, which charts show as marks."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

annotation_app = typer.Typer(no_args_is_help=True, help="Remark on moments.")


@annotation_app.command("add")
def add(
    text: Annotated[str, typer.Argument(help="What happened.")],
    data: DataOption = DEFAULT_DATA,
    at: Annotated[str, typer.Option(help="When, as in 2030-01-02T03:04:05Z. Default: now.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Remark on a moment."""
    from control.cli.fleet_client import call_api

    body = {"text": text, **({"at": at} if at else {})}
    made = call_api(_fleet(data), "POST", "/annotations", body)
    print(json.dumps(made) if as_json else f"annotation {made['id']} at {made['at']}")


@annotation_app.command("list")
def list_annotations(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Every remark, the one made last first."""
    from control.cli.fleet_client import fetch_all

    found = fetch_all(_fleet(data), "/annotations")
    if as_json:
        print(json.dumps(found))
        return
    for one in found:
        print(f"{one['id']}  {one['at'][:19]}Z  {one['actor']}  {one['text']}")


@annotation_app.command("delete")
def delete(
    number: Annotated[int, typer.Argument(min=1, help="Number of the annotation.")], data: DataOption = DEFAULT_DATA
) -> None:
    """Take a remark back; the audit trail keeps it."""
    from control.cli.fleet_client import send_request

    send_request(_fleet(data), "DELETE", f"/annotations/{number}")
    print(f"removed annotation {number}")


def _fleet(data: Path) -> Any:
    from control.cli.fleet_client import find_fleet

    return find_fleet(data)
