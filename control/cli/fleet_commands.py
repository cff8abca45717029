"""`pdd fleet`: the inventory as a document, as tables, and item by item."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from control.cli.completion import complete_items, complete_words
from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA, DataOption, JsonOption, ReasonOption

fleet_app = typer.Typer(no_args_is_help=True, help="Look at the inventory and change it.")

KINDS = ("sites", "chips", "models", "nodes", "links", "gateways")
TABLES = ("nodes", "links")
FILTERS = {"nodes": ("site", "role", "state", "model", "label"), "gateways": ("site",)}
EXIT_DIFFERS = 3
FileOption = Annotated[Path, typer.Option("-f", "--file", help="The document; - reads standard input.")]
OutOption = Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
KindArgument = Annotated[str, typer.Argument(help=", ".join(KINDS), autocompletion=complete_words(*KINDS))]
TableArgument = Annotated[str, typer.Argument(help=" or ".join(TABLES), autocompletion=complete_words(*TABLES))]
NameArgument = Annotated[str, typer.Argument(help="Name of the item.", autocompletion=complete_items(""))]
FieldsArgument = Annotated[list[str], typer.Argument(help='FIELD=VALUE, as in slots=8 or labels={"rack":"r1"}.')]
DEFAULT_REASON = "Changed with pdd fleet"


@fleet_app.command("plan")
def plan(
    file: FileOption,
    data: DataOption = DEFAULT_DATA,
    *,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 where something would change.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what applying a fleet document would add, change and remove."""
    from control.cli.fleet_file import read_fleet

    planned, _ = _put_fleet(data, read_fleet(file), DEFAULT_REASON, dry_run=True)
    _print_plan(planned, as_json=as_json)
    if exit_code and (planned["facts"] or planned["items"]):
        raise typer.Exit(EXIT_DIFFERS)


@fleet_app.command("apply")
def apply(
    file: FileOption,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the inventory to a fleet document; sections that it leaves out stay as they are."""
    from control.cli.fleet_file import read_fleet

    document = read_fleet(file)
    planned, tag = _put_fleet(data, document, reason, dry_run=True)
    if not dry_run:
        planned, _ = _put_fleet(data, document, reason, dry_run=False, tag=tag)
    _print_plan(planned, as_json=as_json)


@fleet_app.command("pools")
def pools(data: DataOption = DEFAULT_DATA, *, as_json: JsonOption = False) -> None:
    """Ready nodes by site and role, and how far they are from the policy's targets."""
    from control.cli.fleet_client import fetch_all, find_fleet
    from control.cli.fleet_report import table_text

    items = fetch_all(find_fleet(data), "/pools")
    print(json.dumps(items) if as_json else table_text(items))


@fleet_app.command("export")
def export(
    data: DataOption = DEFAULT_DATA,
    output: OutOption = None,
    table: Annotated[str, typer.Option("--csv", help="Only nodes or links, as CSV.")] = "",
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the inventory as a fleet document that `pdd fleet apply` takes."""
    from control.cli.fleet_client import send_request
    from control.cli.fleet_file import write_fleet

    if table:
        _check(table, TABLES)
        _emit(send_request(_fleet(data), "GET", f"/{table}.csv").text, output)
        return
    document = send_request(_fleet(data), "GET", "/fleet").json()
    _emit(json.dumps(document) + "\n" if as_json else write_fleet(document), output)


@fleet_app.command("import")
def import_table(
    table: TableArgument,
    file: FileOption,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add and change the nodes or links of a CSV table; others stay."""
    from control.cli.fleet_client import send_request

    _check(table, TABLES)
    try:
        content = Path("/dev/stdin" if str(file) == "-" else file).read_bytes()
    except OSError as error:
        raise CommandError(f"Cannot read {file}: {error.strerror}") from error
    answer = send_request(
        _fleet(data),
        "POST",
        f"/{table}.csv",
        params=_terms(reason, dry_run=dry_run),
        content=content,
        headers={"Content-Type": "text/csv"},
    )
    _print_plan(answer.json(), as_json=as_json)


@fleet_app.command("list")
def list_items(
    kind: KindArgument,
    data: DataOption = DEFAULT_DATA,
    site: Annotated[str, typer.Option(help="Nodes and gateways of this site.")] = "",
    role: Annotated[str, typer.Option(help="Nodes: prefill, relay or main.")] = "",
    state: Annotated[str, typer.Option(help="Nodes: ready, draining or disabled.")] = "",
    model: Annotated[str, typer.Option(help="Nodes that serve this model.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="Nodes: KEY=VALUE, or KEY; may be repeated.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List sites, chips, models, nodes, links or gateways."""
    from control.cli.fleet_client import fetch_all
    from control.cli.fleet_report import table_text

    _check(kind, KINDS)
    query = {"site": site, "role": role, "state": state, "model": model, "label": label}
    query = {name: value for name, value in query.items() if value}
    for name in query:
        _check(name, FILTERS.get(kind, ()))
    items = fetch_all(_fleet(data), f"/{kind}", query)
    print(json.dumps(items) if as_json else table_text(items))


@fleet_app.command("show")
def show(kind: KindArgument, name: NameArgument, data: DataOption = DEFAULT_DATA) -> None:
    """Print one item as JSON."""
    from control.cli.fleet_client import send_request

    _check(kind, KINDS)
    print(json.dumps(send_request(_fleet(data), "GET", f"/{kind}/{name}").json(), indent=2))


@fleet_app.command("add")
def add(
    kind: KindArgument,
    name: NameArgument,
    fields: FieldsArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Add one item."""
    from control.cli.fleet_client import send_request

    _check(kind, KINDS)
    body = {"name": name, **_fields(fields)}
    answer = send_request(_fleet(data), "POST", f"/{kind}", params=_terms(reason, dry_run=dry_run), json=body).json()
    _print_answer(answer, f"added {kind.removesuffix('s')} {name}", dry_run=dry_run)


@fleet_app.command("set")
def set_fields(
    kind: KindArgument,
    name: NameArgument,
    fields: FieldsArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Change some fields of one item."""
    from control.cli.fleet_client import send_request

    _check(kind, KINDS)
    read = send_request(_fleet(data), "GET", f"/{kind}/{name}")
    known = {key: value for key, value in read.json().items() if kind != "gateways" or key in {"name", "site", "url"}}
    answer = send_request(
        _fleet(data),
        "PUT",
        f"/{kind}/{name}",
        params=_terms(reason, dry_run=dry_run),
        json={**known, **_fields(fields)},
        headers={"If-Match": read.headers["etag"]},
    )
    _print_answer(answer.json(), f"changed {kind.removesuffix('s')} {name}", dry_run=dry_run)


@fleet_app.command("delete")
def delete(
    kind: KindArgument,
    name: NameArgument,
    data: DataOption = DEFAULT_DATA,
    reason: ReasonOption = "",
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Remove one item that nothing needs."""
    from control.cli.fleet_client import send_request

    _check(kind, KINDS)
    tag = send_request(_fleet(data), "GET", f"/{kind}/{name}").headers["etag"]
    terms = _terms(reason, dry_run=dry_run)
    answer = send_request(_fleet(data), "DELETE", f"/{kind}/{name}", params=terms, headers={"If-Match": tag})
    _print_answer(answer.json() if dry_run else {}, f"removed {kind.removesuffix('s')} {name}", dry_run=dry_run)


def _put_fleet(
    data: Path, document: dict[str, Any], reason: str, *, dry_run: bool, tag: str = ""
) -> tuple[dict[str, Any], str]:
    from control.cli.fleet_client import send_request

    answer = send_request(
        _fleet(data),
        "PUT",
        "/fleet",
        params=_terms(reason, dry_run=dry_run),
        json=document,
        headers={"If-Match": tag} if tag else {},
    )
    plan_: dict[str, Any] = answer.json()
    return plan_, answer.headers["etag"]


def _terms(reason: str, *, dry_run: bool) -> dict[str, str]:
    return {"reason": reason or DEFAULT_REASON, **({"dry_run": "true"} if dry_run else {})}


def _fields(texts: list[str]) -> dict[str, Any]:
    """Fields by name: a value is JSON where it is JSON, else a word."""
    fields: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise CommandError(f"A field looks like FIELD=VALUE, not {text}")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _check(word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise CommandError(f"{word} is none of what is known here: {', '.join(known) or 'nothing'}")


def _print_plan(planned: dict[str, Any], *, as_json: bool) -> None:
    from control.cli.fleet_report import plan_text

    print(json.dumps(planned) if as_json else plan_text(planned))


def _print_answer(answer: dict[str, Any], told: str, *, dry_run: bool) -> None:
    if dry_run:
        _print_plan(answer, as_json=False)
    else:
        print(told)


def _emit(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise CommandError(f"Cannot write {output}: {error.strerror}") from error


def _fleet(data: Path) -> Any:
    from control.cli.fleet_client import find_fleet

    return find_fleet(data)
