"""Parts of the inventory's lists, filtered and in the order of their names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col

from control.domain.inventory import Item, ItemRef, Kind
from control.domain.topology import NodeState, Role
from control.errors import InvalidError, NotFoundError
from control.services.inventory_rows import MAPPED, load_items
from control.store.tables import GatewayRow, LinkRow, NodeRow


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes are wanted; None wants all. A label is `key=value`, or `key` for any value; all must be there."""

    site: str | None = None
    role: Role | None = None
    state: NodeState | None = None
    model: str | None = None
    chip: str | None = None
    labels: tuple[str, ...] = ()


ALL_NODES = NodeFilter()


def load_part(session: Session, kind: Kind, after: str | None, limit: int, *conditions: Any) -> list[Any]:
    """At most `limit` items that follow the name `after`."""
    table = MAPPED[kind].table
    bounds = [] if after is None else [col(table.name) > after]
    return load_items(session, kind, *bounds, *conditions, limit=limit)


def load_item(session: Session, ref: ItemRef) -> Item:
    """One item.

    Raises:
        NotFoundError: there is none.
    """
    found: list[Item] = load_items(session, ref.kind, col(MAPPED[ref.kind].table.name) == ref.name)
    if not found:
        raise NotFoundError(f"There is no {ref}.")
    return found[0]


def node_conditions(wanted: NodeFilter) -> list[Any]:
    """What a filter asks of the table of nodes.

    Raises:
        InvalidError: a label has no key.
    """
    columns = {"site": wanted.site, "role": wanted.role, "state": wanted.state, "model": wanted.model}
    columns["chip"] = wanted.chip
    equal = [getattr(NodeRow, name) == str(value) for name, value in columns.items() if value is not None]
    return [*equal, *_label_conditions(wanted.labels)]


def gateway_conditions(site: str | None) -> list[Any]:
    """Gateways of one site, or all."""
    return [] if site is None else [GatewayRow.site == site]


def link_conditions(source: str | None, target: str | None) -> list[Any]:
    """Links from a site, to a site, or all."""
    columns = {LinkRow.source: source, LinkRow.target: target}
    return [column == value for column, value in columns.items() if value is not None]


def _label_conditions(labels: tuple[str, ...]) -> Iterator[Any]:
    for label in labels:
        key, sign, value = label.partition("=")
        if not key:
            raise InvalidError("A label to look for is KEY=VALUE or KEY.")
        stored = col(NodeRow.labels)[key].as_string()
        yield stored == value if sign else stored.is_not(None)
