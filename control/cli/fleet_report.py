"""Plans and lists of the inventory as text."""

import json
from collections.abc import Sequence
from typing import Any

_SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def plan_text(plan: dict[str, Any]) -> str:
    """A plan, one line for each item, and one for each field of those that change."""
    lines = [f"~ {fact['path']}: {_value(fact['before'])} -> {_value(fact['after'])}" for fact in plan["facts"]]
    for item in plan["items"]:
        lines.append(f"{_SIGNS[item['action']]} {item['kind'].removesuffix('s')} {item['name']}")
        if item["action"] == "changed":
            lines += [
                f"    {field['path']}: {_value(field['before'])} -> {_value(field['after'])}"
                for field in item["changes"]
            ]
    if not lines:
        return "nothing changes"
    return "\n".join([*lines, f"{plan['added']} added, {plan['changed']} changed, {plan['removed']} removed"])


def table_text(items: Sequence[dict[str, Any]]) -> str:
    """Items as a table with a header; the columns are those of the first."""
    if not items:
        return "none"
    columns = list(items[0])
    rows = [columns, *([_value(item.get(column)) for column in columns] for item in items)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value)) or "-"
    if isinstance(value, list):
        return ",".join(str(part) for part in value) or "-"
    return value if isinstance(value, str) and value else json.dumps(value)
