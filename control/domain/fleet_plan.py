"""What would change between two inventories: what is added, changed and removed, field by field."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from control.domain.inventory import Inventory, Item, ItemRef, Kind, item_facts
from control.domain.policy import FieldChange


class Action(StrEnum):
    """What becomes of an item."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ItemChange:
    """What becomes of one item; `changes` are its fields with their values before and after."""

    ref: ItemRef
    action: Action
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """All that changes: facts of the fleet itself, then items, kind by kind and by name."""

    facts: tuple[FieldChange, ...] = ()
    items: tuple[ItemChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.facts and not self.items

    def of(self, action: Action, kind: Kind | None = None) -> list[ItemChange]:
        """The items that one thing becomes of, of one kind or all."""
        return [change for change in self.items if change.action is action and kind in {None, change.ref.kind}]


def plan_fleet(current: Inventory, wanted: Inventory) -> FleetPlan:
    """The way from one inventory to another."""
    facts = () if current.model == wanted.model else (FieldChange("model", current.model, wanted.model),)
    return FleetPlan(facts, tuple(_item_changes(current, wanted)))


def _item_changes(current: Inventory, wanted: Inventory) -> Iterator[ItemChange]:
    for kind in Kind:
        before, after = current.by_name(kind), wanted.by_name(kind)
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old == new:
                continue
            action = Action.ADDED if old is None else Action.REMOVED if new is None else Action.CHANGED
            yield ItemChange(ItemRef(kind, name), action, tuple(_field_changes(old, new)))


def _field_changes(old: Item | None, new: Item | None) -> Iterator[FieldChange]:
    before, after = (item_facts(item) if item else {} for item in (old, new))
    for path in before or after:
        if before.get(path) != after.get(path) and path != "name":
            yield FieldChange(path, before.get(path), after.get(path))
