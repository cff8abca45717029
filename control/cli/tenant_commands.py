"""`pdd tenant`: who may use the gateways."""

import json
from typing import Annotated

import typer

from control.cli.options import DEFAULT_DATA, DataOption, JsonOption

tenant_app = typer.Typer(no_args_is_help=True, help="Let tenants use the gateways, and shut them out.")


def add_tenant_commands(app: typer.Typer) -> None:
    """Put them where they belong."""
    app.add_typer(tenant_app, name="tenant")


@tenant_app.command("list")
def tenant_list(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """All tenants with their service classes."""
    from control.cli.fleet_client import call_api, find_fleet

    document = call_api(find_fleet(data), "GET", "/tenants")
    if as_json:
        print(json.dumps(document))
        return
    for tenant in document["items"]:
        print(f"{tenant['name']:24} {', '.join(tenant['classes'])}")


@tenant_app.command("create")
def tenant_create(
    name: Annotated[str, typer.Argument(help="Name of the tenant.")],
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="A service class it may use; the first is the usual one.")
    ] = None,
    data: DataOption = DEFAULT_DATA,
    *,
    as_json: JsonOption = False,
) -> None:
    """Let a tenant in and print its API key, once."""
    from control.cli.fleet_client import call_api, find_fleet

    made = call_api(find_fleet(data), "POST", "/tenants", {"name": name, "classes": classes or ["default"]})
    print(json.dumps(made) if as_json else made["key"])


@tenant_app.command("delete")
def tenant_delete(
    name: Annotated[str, typer.Argument(help="Name of the tenant.")], data: DataOption = DEFAULT_DATA
) -> None:
    """Shut a tenant out."""
    from control.cli.fleet_client import find_fleet, send_request

    send_request(find_fleet(data), "DELETE", f"/tenants/{name}")
