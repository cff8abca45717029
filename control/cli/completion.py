"""Completes names of a running fleet's things in the shell; where it cannot be asked, nothing is offered."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from control.cli.errors import CommandError
from control.cli.options import DEFAULT_DATA

# A shell waits for this at a key press.
_TIMEOUT_S = 1.0
_MOST = 200

Complete = Callable[[typer.Context, str], list[str]]


def complete_items(kind: str, field: str = "name") -> Complete:
    """Offers the items of one list of the REST API by one of their fields.

    Args:
        kind: last part of the list's path; "" takes it from the command's own argument `kind`.
        field: what is offered of each item.
    """

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        listed = kind or context.params.get("kind") or ""
        data = context.params.get("data") or os.environ.get("PDD_DATA_DIR") or DEFAULT_DATA
        found = [str(item[field]) for item in _ask(Path(data), listed)] if listed else []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Offers words that are always the same."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _ask(data: Path, listed: str) -> list[dict[str, Any]]:
    from control.cli.fleet_client import find_fleet, send_request  # noqa: PLC0415 - commands that complete nothing

    try:
        answer = send_request(find_fleet(data), "GET", f"/{listed}", params={"limit": _MOST}, timeout_s=_TIMEOUT_S)
        items: list[dict[str, Any]] = answer.json()["items"]
    except (CommandError, ValueError, KeyError):
        return []
    return items
