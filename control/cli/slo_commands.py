"""`pdd slo`: objectives, how fast their budgets burn, and what is left."""

import json
from typing import Annotated, Any

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

slo_app = typer.Typer(no_args_is_help=True, help="Look at objectives and set them.")

NameArgument = Annotated[str, typer.Argument(help="Name of the objective.")]
_FIELDS = ("indicator", "target", "threshold_s", "service_class", "site", "description")


@slo_app.command("list")
def list_slos(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """All objectives with their state; unknown where there are no data."""
    from control.cli.fleet_client import fetch_all, find_fleet
    from control.cli.fleet_report import table_text

    items = fetch_all(find_fleet(data), "/slos")
    print(json.dumps(items) if as_json else table_text([_row(item) for item in items]))


@slo_app.command("show")
def show(name: NameArgument, data: DataOption = DEFAULT_DATA) -> None:
    """One objective with the burn rates of every window, as JSON."""
    from control.cli.alert_client import read

    print(json.dumps(read(data, f"/slos/{name}"), indent=2))


@slo_app.command("add")
def add(
    name: NameArgument,
    indicator: Annotated[str, typer.Argument(help="ttft, tpot or availability.")],
    target: Annotated[float, typer.Option(help="Share of good events, as in 0.99.")],
    data: DataOption = DEFAULT_DATA,
    threshold: Annotated[float | None, typer.Option(help="TTFT and TPOT: good is within this, seconds.")] = None,
    service_class: Annotated[str, typer.Option("--class", help="Only requests of this class.")] = "",
    site: Annotated[str, typer.Option(help="Only requests at this site.")] = "",
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Set an objective, also in place of one of the same name that the policy states."""
    from control.cli.alert_client import create, print_item

    body = {
        "name": name,
        "indicator": indicator,
        "target": target,
        "threshold_s": threshold,
        "service_class": service_class or None,
        "site": site or None,
        "description": description,
    }
    print_item(create(data, "/slos", body), f"set objective {name}", as_json=as_json)


@slo_app.command("set")
def set_fields(
    name: NameArgument,
    data: DataOption = DEFAULT_DATA,
    target: Annotated[float | None, typer.Option(help="Share of good events, as in 0.99.")] = None,
    threshold: Annotated[float | None, typer.Option(help="TTFT and TPOT: good is within this, seconds.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Change an objective that somebody has set."""
    from control.cli.alert_client import change, print_item

    wanted = {"target": target, "threshold_s": threshold, "description": description}
    changes = {field: value for field, value in wanted.items() if value is not None}
    print_item(change(data, f"/slos/{name}", _FIELDS, changes), f"changed objective {name}", as_json=as_json)


@slo_app.command("delete")
def delete_slo(name: NameArgument, data: DataOption = DEFAULT_DATA) -> None:
    """Take back an objective that somebody has set."""
    from control.cli.alert_client import delete

    delete(data, f"/slos/{name}")
    print(f"deleted objective {name}")


def _row(item: dict[str, Any]) -> dict[str, Any]:
    rates = {burn["pair"]: burn for burn in item["burn"]}
    return {
        "name": item["name"],
        "state": item["state"],
        "target": item["target"],
        "threshold_s": item["threshold_s"],
        "burn_1h": _rounded(rates["fast"]["long_rate"]),
        "burn_5m": _rounded(rates["fast"]["short_rate"]),
        "burn_6h": _rounded(rates["slow"]["long_rate"]),
        "burn_30m": _rounded(rates["slow"]["short_rate"]),
        "budget_left": _rounded(item["budget_left"]),
        "source": item["source"],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
