"""The `pdd` command. Each subcommand loads only what it needs, so that all start quickly."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.access_commands import add_access_commands
from control.cli.alert_commands import add_alert_commands
from control.cli.annotation_commands import annotation_app
from control.cli.audit_commands import add_audit_commands
from control.cli.errors import CommandError
from control.cli.fleet_commands import fleet_app
from control.cli.operation_commands import add_operation_commands
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, link_app, node_app
from control.cli.policy_commands import policy_app
from control.cli.rollout_commands import rollout_app
from control.cli.scene_commands import add_scene_command
from control.cli.secret_commands import add_secret_commands
from control.cli.tenant_commands import add_tenant_commands
from control.cli.transfer_commands import add_transfer_commands
from control.cli.twin_commands import twin_app
from control.processes import die_with_parent

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
check_app = typer.Typer(no_args_is_help=True, help="Check that a running fleet does what it should.")
app.add_typer(check_app, name="check")
app.add_typer(policy_app, name="policy")
app.add_typer(rollout_app, name="rollout")
app.add_typer(annotation_app, name="annotation")
app.add_typer(fleet_app, name="fleet")
app.add_typer(node_app, name="node")
app.add_typer(link_app, name="link")
app.add_typer(twin_app, name="twin")
add_access_commands(app)
add_audit_commands(app)
add_tenant_commands(app)
add_secret_commands(app)
add_operation_commands(app)
add_transfer_commands(link_app)
add_alert_commands(app)
add_scene_command(app)


@app.callback()
def pdd() -> None:
    """Control plane, gateway and dashboard for LLM serving across datacenters."""


@app.command()
def up(
    data: DataOption = DEFAULT_DATA,
    engine: Annotated[str, typer.Option(help="What the nodes are: llama or emulated.")] = "llama",
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of dashboard and REST API.")] = 8080,
    gateway_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the OpenAI API.")] = 8000,
    host: Annotated[str, typer.Option(help="Address that dashboard and gateway listen on.")] = "127.0.0.1",
    demo: Annotated[bool, typer.Option(help="Send demo traffic.")] = True,
    die_with_parent_: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
) -> None:
    """Start a whole fleet on this machine: two sites, three nodes, gateway, dashboard. Ctrl-C stops it."""
    if die_with_parent_:
        die_with_parent()
    from control.cli.fleet_plan import Engine, FleetOptions
    from control.cli.up import run_up

    try:
        kind = Engine(engine)
    except ValueError:
        raise CommandError(f"--engine is one of {', '.join(Engine)}, not {engine}") from None
    options = FleetOptions(data.absolute(), kind, host, web_port, gateway_port, demo, die_with_parent_)
    began_s = time.monotonic()
    run_up(options, lambda line: print(f"{time.monotonic() - began_s:6.1f} s  {line}", flush=True))


@app.command()
def load(
    url: Annotated[str | None, typer.Argument(help="Base of an OpenAI API, with /v1; else the running fleet.")] = None,
    data: DataOption = DEFAULT_DATA,
    model: Annotated[str | None, typer.Option(help="Default: the first one the endpoint lists.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed sends the same sessions.")] = 1,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions at a time.")] = 4,
    requests: Annotated[int | None, typer.Option(min=1, help="Stop after this many requests.")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="Stop after this many seconds.")] = None,
    scale: Annotated[float, typer.Option(min=0.1, help="Prompts so many times as long as 200 to 1,000 tokens.")] = 1.0,
    think: Annotated[float, typer.Option(min=0, help="Think times so many times as long as 1.5 to 6 s.")] = 1.0,
    slo_ttft: Annotated[float, typer.Option(help="Goodput: first token within this, seconds.")] = 10.0,
    slo_tpot: Annotated[float, typer.Option(help="Goodput: time per further token within this, seconds.")] = 0.05,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = None,
    demo: Annotated[bool, typer.Option("--demo", hidden=True)] = False,
    as_json: JsonOption = False,
) -> None:
    """Send closed-loop agent sessions to an OpenAI endpoint and report TTFT, TTST, TPOT, ITL and goodput."""
    from control.cli import load_command
    from control.cli.load_report import Objectives, render

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base_url = url or f"{_fleet(data).gateway_url}/v1"
    options = load_command.LoadOptions(
        base_url=base_url.rstrip("/"),
        model=model or "",
        seed=seed,
        sessions=sessions,
        requests=requests,
        duration_s=duration,
        shape=load_command.WorkloadShape().scaled(scale),
        headers=headers,
        think_scale=think,
    )
    if demo:
        asyncio.run(load_command.run_demo(options))
        return
    if requests is None and duration is None:
        raise CommandError("Say when to stop: --requests N, --duration SECONDS, or both")
    report = asyncio.run(load_command.run_load(options, Objectives(slo_ttft, slo_tpot)))
    print(json.dumps(report) if as_json else render(report))
    if not report["completed"]:
        raise typer.Exit(1)


@check_app.command("handoff")
def check_handoff(
    data: DataOption = DEFAULT_DATA,
    requests: Annotated[int, typer.Option(min=1, help="How many to send.")] = 40,
    concurrency: Annotated[int, typer.Option(min=1, max=16, help="How many at a time.")] = 3,
    seed: Annotated[int | None, typer.Option(help="The same seed makes the same prompts. Default: a new one.")] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="A tenant's, where there are any.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Compare answers that went through each pipeline and handoff mode with one node's own, token by token."""
    from control.cli.check import HandoffCheck

    chosen = seed if seed is not None else int.from_bytes(os.urandom(4))
    print(f"seed {chosen}", file=sys.stderr, flush=True)
    tally = asyncio.run(HandoffCheck(_fleet(data), chosen, api_key).run(requests, concurrency))
    document = tally.document()
    if as_json:
        print(json.dumps(document, separators=(",", ":")))
    else:
        modes = {**document["pipelines"], **document["handoff_modes"], **document["texts"]}
        print(
            f"{tally.exact} of {tally.requests} exact; " + ", ".join(f"{name} {count}" for name, count in modes.items())
        )
    if not tally.is_proof:
        raise typer.Exit(1)


@app.command()
def leases(
    data: DataOption = DEFAULT_DATA,
    node: Annotated[str, typer.Option(help="One prefill node only.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Give back what nobody reads.")] = False,
    older_than: Annotated[float, typer.Option(min=0, help="Only what has stood so many seconds.")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Show the KV that prefill nodes hold for consumers, or give back what is stranded."""
    from control.cli.leases import ask_gateway, render

    document = ask_gateway(data, node, older_than if release else None)
    print(json.dumps(document) if as_json else render(document))


def _fleet(data: Path) -> Any:
    from control.cli.fleet_client import find_fleet

    return find_fleet(data)


def main() -> int:
    """Run the command; its exit code. What it cannot do is one plain text on stderr and 1, a misuse of it is 2."""
    try:
        app(prog_name="pdd")
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
