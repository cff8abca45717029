"""`pdd node`, `pdd link`, `pdd rebalance` and `pdd operation`: what changes a running fleet."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.completion import complete_items, complete_words
from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption, link_app, node_app

operation_app = typer.Typer(no_args_is_help=True, help="Watch, cancel and retry operations.")

NodeArgument = Annotated[str, typer.Argument(help="Name of the node.", autocompletion=complete_items("nodes"))]
LinkArgument = Annotated[str, typer.Argument(help="Name of the link.", autocompletion=complete_items("links"))]
SiteArgument = Annotated[str, typer.Argument(help="Name of the site.", autocompletion=complete_items("sites"))]
RoleArgument = Annotated[
    str, typer.Argument(help="prefill, relay or main.", autocompletion=complete_words("prefill", "relay", "main"))
]
OperationArgument = Annotated[
    int, typer.Argument(help="Number of the operation.", autocompletion=complete_items("operations", "id"))
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Follow it to its end: 0 done, 2 failed, 3 cancelled.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Also the last ready node of its role.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1, help="Seconds the node has to come to rest.")]
DEFAULT_TIMEOUT_S = 300.0


def add_operation_commands(app: typer.Typer) -> None:
    """Put all of them where they belong."""
    app.add_typer(operation_app, name="operation")
    app.command("rebalance")(rebalance)


@node_app.command("drain")
def drain(
    node: NodeArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    *,
    force: ForceOption = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take a node from the gateways and wait until nothing is in flight on it."""
    body = {"kind": "drain", "node": node, "timeout_s": timeout, "force": force}
    _run(data, body, reason, wait=wait, dry_run=dry_run, as_json=as_json)


@node_app.command("undrain")
def undrain(
    node: NodeArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a drained node back to the gateways."""
    _run(data, {"kind": "undrain", "node": node}, reason, wait=wait, dry_run=dry_run, as_json=as_json)


@node_app.command("switch")
def switch(
    node: NodeArgument,
    role: RoleArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    *,
    force: ForceOption = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain a node, give it another role, warm it up, give it back."""
    body = {"kind": "switch_role", "node": node, "role": role, "timeout_s": timeout, "force": force}
    _run(data, body, reason, wait=wait, dry_run=dry_run, as_json=as_json)


@node_app.command("restart")
def restart(
    node: NodeArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    *,
    force: ForceOption = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain a node, restart its process, warm it up, give it back."""
    body = {"kind": "restart", "node": node, "timeout_s": timeout, "force": force}
    _run(data, body, reason, wait=wait, dry_run=dry_run, as_json=as_json)


def rebalance(
    site: SiteArgument,
    target: Annotated[str, typer.Argument(help="P:RLD:MD, as in 3:1:0; or use --to-policy.")] = "",
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    to_policy: Annotated[
        bool, typer.Option("--to-policy", help="To pools.SITE.<role>.target of the active policy.")
    ] = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Switch roles at a site, one node at a time, until P : RLD : MD is the target."""
    from control.cli.fleet_client import find_fleet
    from control.cli.operation_client import render_plan, request, tell

    if bool(target) == to_policy:
        raise CommandError("Give either a target, as in 3:1:0, or --to-policy")
    body = {"kind": "rebalance", "site": site, **({"to_policy": True} if to_policy else {"target": target})}
    if not dry_run:
        # Which nodes will change is seen before the first one does. One that is under way has no plan any more.
        with suppress(CommandError):
            tell(render_plan(request(find_fleet(data), {**body, "reason": "to show the plan"}, dry_run=True)))
    _run(data, body, reason, wait=wait, dry_run=dry_run, as_json=as_json)


@link_app.command("shape")
def shape(
    link: LinkArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    rate_cap: Annotated[str, typer.Option(help="Bytes per second, or none.")] = "",
    flow_cap: Annotated[str, typer.Option(help="Bytes per second of one stream, or none.")] = "",
    streams: Annotated[int | None, typer.Option(help="Streams per transfer.")] = None,
    max_transfers: Annotated[int | None, typer.Option(help="Transfers that send at a time.")] = None,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change a link's policy under a new revision, and wait until its relay enforces it."""
    from control.cli.operation_client import parse_number

    wanted: dict[str, Any] = {}
    if rate_cap:
        wanted["rate_cap_bytes_per_s"] = parse_number(rate_cap)
    if flow_cap:
        wanted["flow_cap_bytes_per_s"] = parse_number(flow_cap)
    if streams is not None:
        wanted["streams_per_transfer"] = streams
    if max_transfers is not None:
        wanted["max_transfers"] = max_transfers
    _run(
        data, {"kind": "shape_link", "link": link, "shape": wanted}, reason, wait=wait, dry_run=dry_run, as_json=as_json
    )


@link_app.command("probe")
def probe(
    link: LinkArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    size: Annotated[int, typer.Option("--bytes", min=100_000, max=32_000_000, help="How much to send.")] = 4_000_000,
    *,
    history: Annotated[bool, typer.Option("--history", help="Only show what was measured before.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure bandwidth and round trip of a link through its WAN relay."""
    from control.cli.fleet_client import call_api, find_fleet
    from control.cli.operation_client import exit_code, follow, request, tell

    fleet = find_fleet(data)
    if not history:
        body = {"kind": "probe_link", "link": link, "size_bytes": size, "reason": reason or "Asked with pdd link probe"}
        operation = follow(fleet, request(fleet, body), tell)
        if exit_code(operation):
            raise typer.Exit(exit_code(operation))
    probes = call_api(fleet, "GET", f"/links/{link}/probes?limit={20 if history else 1}")["items"]
    if as_json:
        print(json.dumps(probes if history else probes[0]))
        return
    for row in probes:
        rate = row["bandwidth_bytes_per_s"] * 8 / 1e6
        print(f"{row['measured_at']}  {rate:.1f} Mbit/s  {row['rtt_s'] * 1000:.1f} ms  {row['size_bytes']} bytes")


@operation_app.command("list")
def list_operations(
    data: DataOption = DEFAULT_DATA,
    state: Annotated[list[str] | None, typer.Option(help="pending, running, undoing, done, failed, cancelled.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="drain, undrain, switch_role, …")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Operations, newest first."""
    from urllib.parse import urlencode

    from control.cli.fleet_client import call_api, find_fleet
    from control.cli.operation_client import progress_line

    query = urlencode([("limit", limit), *(("state", s) for s in state or ()), *(("kind", k) for k in kind or ())])
    found = call_api(find_fleet(data), "GET", f"/operations?{query}")
    print(json.dumps(found) if as_json else "\n".join(progress_line(item) for item in found["items"]))


@operation_app.command("show")
def show_operation(
    number: OperationArgument,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """One operation with its steps."""
    from control.cli.fleet_client import call_api, find_fleet

    _print(call_api(find_fleet(data), "GET", f"/operations/{number}"), as_json=as_json)


@operation_app.command("watch")
def watch_operation(
    number: OperationArgument,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Follow an operation to its end: exit code 0 done, 2 failed, 3 cancelled."""
    from control.cli.fleet_client import call_api, find_fleet

    fleet = find_fleet(data)
    _finish(fleet, call_api(fleet, "GET", f"/operations/{number}"), wait=True, as_json=as_json)


@operation_app.command("cancel")
def cancel_operation(
    number: OperationArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop an operation, and undo what would leave a node unused."""
    _change(data, number, "cancel", reason, wait=wait, as_json=as_json)


@operation_app.command("retry")
def retry_operation(
    number: OperationArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start anew what failed or was cancelled."""
    _change(data, number, "retry", reason, wait=wait, as_json=as_json)


def _change(data: Path, number: int, verb: str, reason: str, *, wait: bool, as_json: bool) -> None:
    from control.cli.fleet_client import call_api, find_fleet

    fleet = find_fleet(data)
    body = {"reason": reason or f"Asked with pdd operation {verb}"}
    _finish(fleet, call_api(fleet, "POST", f"/operations/{number}/{verb}", body), wait=wait, as_json=as_json)


def _run(data: Path, body: dict[str, Any], reason: str, *, wait: bool, dry_run: bool, as_json: bool) -> None:
    from control.cli.fleet_client import find_fleet
    from control.cli.operation_client import render_plan, request

    fleet = find_fleet(data)
    answer = request(fleet, {**body, "reason": reason or f"Asked with pdd: {body['kind']}"}, dry_run=dry_run)
    if dry_run:
        print(json.dumps(answer) if as_json else render_plan(answer))
        return
    _finish(fleet, answer, wait=wait, as_json=as_json)


def _finish(fleet: Any, operation: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Print an operation, at its end where that is waited for; then its outcome is the exit code."""
    from control.cli.operation_client import exit_code, follow, tell

    if wait:
        operation = follow(fleet, operation, tell)
    _print(operation, as_json=as_json)
    if wait and exit_code(operation):
        raise typer.Exit(exit_code(operation))


def _print(operation: dict[str, Any], *, as_json: bool) -> None:
    from control.cli.operation_client import render_operation

    print(json.dumps(operation) if as_json else render_operation(operation))
