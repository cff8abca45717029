"""The inventory as a document that people edit: what is as usual is left out, and reading it gives the same back."""

from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any

from control.domain.inventory import Inventory, Item, Kind, item_facts


def export_document(inventory: Inventory) -> dict[str, Any]:
    """The whole inventory as plain JSON data.

    A node that is ready has no state in it, so that applying the document again leaves alone what an operator drains.
    """
    head = {"model": inventory.model} if inventory.model else {}
    return head | {kind.value: [_told(item) for item in inventory.items(kind)] for kind in Kind}


def _told(item: Item) -> dict[str, Any]:
    usual = {field.name: _usual(field) for field in fields(item)}
    return {path: value for path, value in item_facts(item).items() if value != usual[path]}


def _usual(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    default = field.default
    return default.value if isinstance(default, StrEnum) else list(default) if isinstance(default, tuple) else default
