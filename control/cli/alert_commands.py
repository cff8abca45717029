"""`pdd alert`: what fires, and the rules by which it does."""

import json
from typing import Annotated, Any

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption
from control.cli.silence_commands import silence_app
from control.cli.slo_commands import slo_app
from control.cli.webhook_commands import webhook_app

alert_app = typer.Typer(no_args_is_help=True, help="Look at alerts, look after them, and change their rules.")
rule_app = typer.Typer(no_args_is_help=True, help="Look at alert rules and change them.")
alert_app.add_typer(rule_app, name="rule")

NumberArgument = Annotated[int, typer.Argument(help="Number of the alert.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the rule.")]
CommentOption = Annotated[str, typer.Option("--comment", help="What is being done about it.")]
LabelOption = Annotated[list[str] | None, typer.Option(help="Only series with NAME=VALUE; may be repeated.")]
EXIT_FIRING = 3
_COLUMNS = ("id", "state", "severity", "rule", "labels", "value", "is_unknown", "fired_at", "acknowledged_by")
_RULE_FIELDS = (
    *("metric", "threshold", "above", "clear_threshold", "window_s", "for_s", "clear_for_s"),
    *("severity", "enabled", "labels", "summary"),
)


def add_alert_commands(app: typer.Typer) -> None:
    """Put all of them where they belong."""
    app.add_typer(slo_app, name="slo")
    app.add_typer(alert_app, name="alert")
    app.add_typer(silence_app, name="silence")
    app.add_typer(webhook_app, name="webhook")


@alert_app.command("list")
def list_alerts(
    data: DataOption = DEFAULT_DATA,
    state: Annotated[list[str] | None, typer.Option(help="pending, firing or resolved; may be repeated.")] = None,
    rule: Annotated[str, typer.Option(help="Only of this rule.")] = "",
    *,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 where one is listed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Alerts, newest first; without --state those that are not over."""
    from control.cli.fleet_client import fetch_all, find_fleet
    from control.cli.fleet_report import table_text

    params: dict[str, Any] = {"state": state or ["pending", "firing"], **({"rule": rule} if rule else {})}
    items = fetch_all(find_fleet(data), "/alerts", params)
    print(json.dumps(items) if as_json else table_text([{name: item[name] for name in _COLUMNS} for item in items]))
    if exit_code and items:
        raise typer.Exit(EXIT_FIRING)


@alert_app.command("show")
def show(number: NumberArgument, data: DataOption = DEFAULT_DATA) -> None:
    """One alert with its history, as JSON."""
    from control.cli.alert_client import read

    print(json.dumps(read(data, f"/alerts/{number}"), indent=2))


@alert_app.command("ack")
def acknowledge(
    number: NumberArgument, comment: CommentOption, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False
) -> None:
    """Say that somebody looks after an alert; it is not told again until it is over."""
    from control.cli.alert_client import create, print_item

    answer = create(data, f"/alerts/{number}/acknowledge", {"comment": comment})
    print_item(answer, f"acknowledged alert {number}", as_json=as_json)


@alert_app.command("close")
def close(
    number: NumberArgument, comment: CommentOption, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False
) -> None:
    """End an alert whose data will not come back."""
    from control.cli.alert_client import create, print_item

    answer = create(data, f"/alerts/{number}/close", {"comment": comment})
    print_item(answer, f"closed alert {number}", as_json=as_json)


@alert_app.command("metrics")
def list_metrics(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """The figures that rules may watch."""
    from control.cli.alert_client import print_list

    print_list(data, "/alert-metrics", ("name", "unit", "labels", "help"), as_json=as_json)


@rule_app.command("list")
def list_rules(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """All rules, built-in ones included."""
    from control.cli.alert_client import print_list

    columns = ("name", "enabled", "severity", "metric", "above", "threshold", "window_s", "for_s", "is_built_in")
    print_list(data, "/alert-rules", columns, as_json=as_json)


@rule_app.command("add")
def add_rule(
    name: NameArgument,
    metric: Annotated[str, typer.Argument(help="See pdd alert metrics.")],
    threshold: Annotated[float, typer.Argument(help="Alert beyond this.")],
    data: DataOption = DEFAULT_DATA,
    *,
    below: Annotated[bool, typer.Option("--below", help="Alert below it instead of above.")] = False,
    clear: Annotated[float | None, typer.Option(help="The good side begins here; default: at the threshold.")] = None,
    window: Annotated[int, typer.Option(help="Taken over the last so many seconds.")] = 300,
    for_: Annotated[float, typer.Option("--for", help="Beyond it for so many seconds.")] = 60.0,
    clear_for: Annotated[float, typer.Option(help="On the good side for so many seconds.")] = 60.0,
    severity: Annotated[str, typer.Option(help="info, warning or critical.")] = "warning",
    label: LabelOption = None,
    summary: Annotated[str, typer.Option(help="What people are told.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Make a rule."""
    from control.cli.alert_client import create, parse_labels, print_item

    body = {
        "name": name,
        "metric": metric,
        "threshold": threshold,
        "above": not below,
        "clear_threshold": clear,
        "window_s": window,
        "for_s": for_,
        "clear_for_s": clear_for,
        "severity": severity,
        "labels": parse_labels(label or []),
        "summary": summary,
    }
    print_item(create(data, "/alert-rules", body), f"made rule {name}", as_json=as_json)


@rule_app.command("set")
def set_rule(
    name: NameArgument,
    data: DataOption = DEFAULT_DATA,
    threshold: Annotated[float | None, typer.Option(help="Alert beyond this.")] = None,
    clear: Annotated[float | None, typer.Option(help="The good side begins here.")] = None,
    for_: Annotated[float | None, typer.Option("--for", help="Beyond it for so many seconds.")] = None,
    severity: Annotated[str | None, typer.Option(help="info, warning or critical.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Switch it on or off.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Change a rule, a built-in one too."""
    from control.cli.alert_client import change, print_item

    wanted = {
        "threshold": threshold,
        "clear_threshold": clear,
        "for_s": for_,
        "severity": severity,
        "enabled": enabled,
    }
    changes = {field: value for field, value in wanted.items() if value is not None}
    answer = change(data, f"/alert-rules/{name}", _RULE_FIELDS, changes)
    print_item(answer, f"changed rule {name}", as_json=as_json)


@rule_app.command("delete")
def delete_rule(name: NameArgument, data: DataOption = DEFAULT_DATA) -> None:
    """Delete a rule; a built-in one becomes again what it was."""
    from control.cli.alert_client import delete

    delete(data, f"/alert-rules/{name}")
    print(f"deleted rule {name}")
