"""`pdd twin`: the published case and the trace study, run in this process."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from control.cli.errors import CommandError
from control.cli.options import JsonOption

twin_app = typer.Typer(no_args_is_help=True, help="Ask the digital twin what would happen.")
SeedsOption = Annotated[int, typer.Option(min=1, max=20, help="Over how many seeds figures are averaged.")]


@twin_app.command("paper")
def paper(seeds: SeedsOption = 2, as_json: JsonOption = False) -> None:
    """Run the published case: 64K context, 90 % hits, 43 A + 32 B in two sites against 88 A in one."""
    from control.cli.twin_report import render_paper
    from control.twin.paper import PARAMETERS, paper_report
    from control.twin.run import run

    report = paper_report(run, range(1, seeds + 1))
    if as_json:
        for parameter in PARAMETERS:
            print(json.dumps(asdict(parameter), ensure_ascii=False))
        print(json.dumps(report.to_document()))
    else:
        print(render_paper(PARAMETERS, report))


@twin_app.command("trace")
def trace(
    path: Annotated[Path, typer.Argument(help="An agent trace: one session per line, as JSON, plain or .gz.")],
    seeds: SeedsOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Run an agent trace's sessions (prompts up to 64K) over several links: plain, with PDD, and with worse PDDs."""
    import msgspec

    from control.cli.twin_report import render_study
    from control.twin.run import run
    from control.twin.trace_study import MAX_INPUT_TOKENS, MAX_THINK_S, study
    from control.twin.traces import load_agent_sessions

    try:
        sessions = load_agent_sessions(path, MAX_INPUT_TOKENS, MAX_THINK_S)
    except (OSError, EOFError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    except msgspec.DecodeError as error:
        raise CommandError(f"{path} is no agent trace: {error}") from None
    if not sessions:
        raise CommandError(f"{path} has no session with prompts up to {MAX_INPUT_TOKENS} tokens")
    rows = study(run, sessions, range(1, seeds + 1))
    print(json.dumps([asdict(row) for row in rows]) if as_json else render_study(rows))
