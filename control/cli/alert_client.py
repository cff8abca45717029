"""What the commands about objectives and alerts share: reading, changing by version, and short tables."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from control.cli.errors import CommandError
from control.cli.fleet_client import fetch_all, find_fleet, send_request
from control.cli.fleet_report import table_text

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(!=|=|~)(.*)")


def read(data: Path, path: str) -> dict[str, Any]:
    """One item.

    Raises:
        CommandError: it cannot be read.
    """
    document: dict[str, Any] = send_request(find_fleet(data), "GET", path).json()
    return document


def create(data: Path, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A POST; its answer.

    Raises:
        CommandError: it was refused.
    """
    document: dict[str, Any] = send_request(find_fleet(data), "POST", path, json=dict(body)).json()
    return document


def change(data: Path, path: str, fields: Sequence[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read an item, change some of its `fields`, and put it back if nobody else has changed it meanwhile.

    Raises:
        CommandError: it was refused.
    """
    fleet = find_fleet(data)
    found = send_request(fleet, "GET", path)
    known = found.json()
    body = {name: known[name] for name in fields} | dict(changes)
    document: dict[str, Any] = send_request(
        fleet, "PUT", path, json=body, headers={"If-Match": found.headers["etag"]}
    ).json()
    return document


def delete(data: Path, path: str) -> None:
    """Delete an item as it is now.

    Raises:
        CommandError: it was refused.
    """
    fleet = find_fleet(data)
    tag = send_request(fleet, "GET", path).headers["etag"]
    send_request(fleet, "DELETE", path, headers={"If-Match": tag})


def print_list(
    data: Path, path: str, columns: Sequence[str], *, as_json: bool, params: Mapping[str, Any] | None = None
) -> None:
    """All items of a list, whole as JSON or some columns as a table.

    Raises:
        CommandError: it cannot be read.
    """
    items = fetch_all(find_fleet(data), path, params)
    print(json.dumps(items) if as_json else table_text([{name: item[name] for name in columns} for item in items]))


def print_item(item: Mapping[str, Any], told: str, *, as_json: bool) -> None:
    """One item as JSON, or a sentence about it."""
    print(json.dumps(item) if as_json else told)


def parse_matchers(texts: Sequence[str]) -> list[dict[str, str]]:
    """Conditions such as `site=ams`, `severity!=info` and `alertname~slo*`.

    Raises:
        CommandError: one is none.
    """
    matchers = []
    for text in texts:
        found = _MATCHER.fullmatch(text)
        if found is None:
            raise CommandError(f"A matcher looks like LABEL=VALUE, LABEL!=VALUE or LABEL~PATTERN, not {text}")
        matchers.append(dict(zip(("label", "operator", "value"), found.groups(), strict=True)))
    return matchers


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Labels such as `site=ams`.

    Raises:
        CommandError: one is none.
    """
    parts = [text.partition("=") for text in texts]
    if not all(sign and name for name, sign, _ in parts):
        raise CommandError("A label looks like NAME=VALUE")
    return {name: value for name, _, value in parts}


def moment_after(duration: str, now: datetime | None = None) -> str:
    """The moment a duration from now, such as `90m` or `2h`.

    Raises:
        CommandError: it is no duration.
    """
    found = _DURATION.fullmatch(duration.strip())
    if found is None:
        raise CommandError(f"A duration looks like 90s, 30m, 2h or 1d, not {duration}")
    length = timedelta(seconds=float(found[1]) * _UNITS_S[found[2]])
    return ((now or datetime.now(UTC)) + length).isoformat()
