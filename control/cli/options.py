"""Options that many commands share, and the groups that they are in."""

from pathlib import Path
from typing import Annotated

import typer

DataOption = Annotated[Path, typer.Option("--data", envvar="PDD_DATA_DIR", help="Folder of the fleet's data.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]
DEFAULT_DATA = Path(".data")

node_app = typer.Typer(no_args_is_help=True, help="Look at nodes and change what they are used for.")
link_app = typer.Typer(no_args_is_help=True, help="Look at links, measure and shape them.")
