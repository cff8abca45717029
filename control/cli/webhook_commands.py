"""`pdd webhook`: who is told of alerts."""

from typing import Annotated

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

webhook_app = typer.Typer(no_args_is_help=True, help="Say who is told of alerts.")

NameArgument = Annotated[str, typer.Argument(help="Name of the receiver.")]
MatchOption = Annotated[
    list[str] | None, typer.Option("--match", help="Only alerts with site=ams, severity!=info, …; may be repeated.")
]
EXIT_NOT_DELIVERED = 2
_FIELDS = ("url", "matchers", "enabled")


@webhook_app.command("list")
def list_webhooks(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """All receivers, without their secrets."""
    from control.cli.alert_client import print_list

    print_list(data, "/webhooks", ("name", "enabled", "url", "matchers", "failures", "dropped"), as_json=as_json)


@webhook_app.command("add")
def add(
    name: NameArgument,
    url: Annotated[str, typer.Argument(help="Where alerts are posted, as Alertmanager does.")],
    data: DataOption = DEFAULT_DATA,
    match: MatchOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Let somebody be told. Prints the secret that signs the messages; it cannot be read again."""
    from control.cli.alert_client import create, parse_matchers, print_item

    answer = create(data, "/webhooks", {"name": name, "url": url, "matchers": parse_matchers(match or [])})
    print_item(answer, f"made webhook {name}; secret, shown once: {answer['secret']}", as_json=as_json)


@webhook_app.command("set")
def set_fields(
    name: NameArgument,
    data: DataOption = DEFAULT_DATA,
    url: Annotated[str | None, typer.Option(help="Where alerts are posted.")] = None,
    match: MatchOption = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Switch it on or off.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Change a receiver; its secret stays."""
    from control.cli.alert_client import change, parse_matchers, print_item

    wanted = {"url": url, "matchers": parse_matchers(match) if match else None, "enabled": enabled}
    changes = {field: value for field, value in wanted.items() if value is not None}
    print_item(change(data, f"/webhooks/{name}", _FIELDS, changes), f"changed webhook {name}", as_json=as_json)


@webhook_app.command("test")
def send_test(name: NameArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Send a test message now; exits with 2 where it was not taken."""
    from control.cli.alert_client import create, print_item

    receipt = create(data, f"/webhooks/{name}/test", {})
    told = f"delivered ({receipt['status']})" if receipt["is_delivered"] else f"not delivered: {receipt['error']}"
    print_item(receipt, told, as_json=as_json)
    if not receipt["is_delivered"]:
        raise typer.Exit(EXIT_NOT_DELIVERED)


@webhook_app.command("renew-secret")
def renew_secret(name: NameArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Sign with a new secret from now on. Prints it; it cannot be read again."""
    from control.cli.alert_client import create, print_item

    answer = create(data, f"/webhooks/{name}/secret", {})
    print_item(answer, f"new secret of {name}, shown once: {answer['secret']}", as_json=as_json)


@webhook_app.command("deliveries")
def list_deliveries(name: NameArgument, data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """What a receiver was sent or is to be sent, newest first."""
    from control.cli.alert_client import print_list

    columns = ("id", "state", "attempts", "error", "created_at", "finished_at")
    print_list(data, f"/webhooks/{name}/deliveries", columns, as_json=as_json)


@webhook_app.command("delete")
def delete_webhook(name: NameArgument, data: DataOption = DEFAULT_DATA) -> None:
    """Tell a receiver nothing more."""
    from control.cli.alert_client import delete

    delete(data, f"/webhooks/{name}")
    print(f"deleted webhook {name}")
