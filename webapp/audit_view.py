"""Audit events as the Audit page shows them: what differs between before and after, field by field. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from control.store.tables import AuditEventRow

MAX_VALUE_CHARACTERS: Final = 120
MAX_FIELDS: Final = 40


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One field of an event; an empty side had none."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class EventView:
    """One event; `more` counts the fields that are left out."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    reason: str
    hash: str
    fields: tuple[FieldDiff, ...]
    more: int
    address: str


def event_view(row: AuditEventRow) -> EventView:
    """An event with its differences; fields that stayed are left out."""
    before, after = _sides(row.before), _sides(row.after)
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    fields = tuple(FieldDiff(name, before.get(name, ""), after.get(name, "")) for name in names[:MAX_FIELDS])
    return EventView(
        id=row.id or 0,
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        reason=row.reason,
        hash=row.hash,
        fields=fields,
        more=max(0, len(names) - MAX_FIELDS),
        address=target_address(row.target),
    )


def target_address(target: str) -> str:
    """The page that shows what an event is about; empty where there is none."""
    noun, _, name = target.partition("/")
    if noun == "policy" and name.startswith("r") and name[1:].isdecimal():
        return f"/policies/revisions/{name[1:]}"
    if noun == "operation" and name.isdecimal():
        return f"/operations/{name}"
    if noun in {"site", "chip", "model", "node", "link", "gateway"}:
        return f"/inventory?kind={noun}s"
    return ""


def _sides(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(name): _text(inner) for name, inner in value.items()}
    return {"": _text(value)}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
