"""`pdd silence`: for a time, nobody is told of some alerts."""

from typing import Annotated

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

silence_app = typer.Typer(no_args_is_help=True, help="Silence alerts for a time.")


@silence_app.command("list")
def list_silences(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Silences, newest first, those that are over included."""
    from control.cli.alert_client import print_list

    print_list(data, "/silences", ("id", "is_active", "matchers", "ends_at", "comment", "created_by"), as_json=as_json)


@silence_app.command("add")
def add(
    matchers: Annotated[list[str], typer.Argument(help="site=ams, severity!=critical, alertname~slo*: all must hold.")],
    for_: Annotated[str, typer.Option("--for", help="How long, as in 30m, 2h or 1d; 30 days at most.")],
    comment: Annotated[str, typer.Option(help="Why.")],
    data: DataOption = DEFAULT_DATA,
    *,
    as_json: JsonOption = False,
) -> None:
    """Tell nobody of alerts that meet every matcher, from now on."""
    from control.cli.alert_client import create, moment_after, parse_matchers, print_item

    body = {"matchers": parse_matchers(matchers), "ends_at": moment_after(for_), "comment": comment}
    answer = create(data, "/silences", body)
    print_item(answer, f"silence {answer['id']} until {answer['ends_at']}", as_json=as_json)


@silence_app.command("end")
def end(number: Annotated[int, typer.Argument(help="Number of the silence.")], data: DataOption = DEFAULT_DATA) -> None:
    """Let a silence end now."""
    from control.cli.alert_client import delete

    delete(data, f"/silences/{number}")
    print(f"ended silence {number}")
