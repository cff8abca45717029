"""`pdd link transfers`, `pause`, `resume` and `cut`: single KV transfers on a link."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

LinkArgument = Annotated[str, typer.Argument(help="Name of the link.")]
TransferArgument = Annotated[str, typer.Argument(help="Id of the transfer, as `pdd link transfers` shows it.")]


def add_transfer_commands(link_app: typer.Typer) -> None:
    """Put all of them into the group of links."""
    for command in (transfers, pause, resume, cut):
        link_app.command()(command)


def transfers(link: LinkArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Transfers that are under way on a link."""
    from control.cli.fleet_client import call_api, find_fleet

    seen = call_api(find_fleet(data), "GET", f"/links/{link}/transfers")
    print(json.dumps(seen) if as_json else render(seen))


def pause(
    link: LinkArgument,
    transfer: TransferArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Let one transfer send nothing more for now; its place goes to who waits."""
    _order(data, "PUT", f"/links/{link}/transfers/{transfer}", "pause", reason, as_json=as_json)


def resume(
    link: LinkArgument,
    transfer: TransferArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Let a paused transfer go on."""
    _order(data, "PUT", f"/links/{link}/transfers/{transfer}", "resume", reason, as_json=as_json)


def cut(
    link: LinkArgument,
    transfer: TransferArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Cut one transfer's streams; whoever pulls asks again for what has not landed."""
    _order(data, "DELETE", f"/links/{link}/transfers/{transfer}", "cut", reason, as_json=as_json)


def render(seen: dict[str, Any]) -> str:
    """One line for each transfer."""
    lines = [
        f"{one['transfer_id']}  {one['state']}  {one['pipeline']}/{one['service_class']}  {one['streams']} streams  "
        f"{one['size_bytes']} bytes sent  {one['queued_bytes']} queued  waited {one['waited_s']:.2f} s  "
        f"{one['age_s']:.1f} s old"
        for one in seen["items"]
    ]
    return "\n".join(lines) or "No transfer is under way."


def _order(data: Path, method: str, path: str, verb: str, reason: str, *, as_json: bool) -> None:
    from control.cli.fleet_client import find_fleet, send_request

    reason = reason or f"Asked with pdd link {verb}"
    if method == "DELETE":
        answer = send_request(find_fleet(data), method, path, params={"reason": reason}).json()
    else:
        body = {"paused": verb == "pause", "reason": reason}
        answer = send_request(find_fleet(data), method, path, json=body).json()
    print(json.dumps(answer) if as_json else f"ordered: {verb} {answer['transfer_id']}, which was {answer['state']}")
