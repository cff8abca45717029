"""What becomes of the inventory when a fleet starts from its own document, such as the embedded one."""

from collections.abc import Mapping
from dataclasses import replace

from control.domain.inventory import Inventory, Item, ItemRef, Kind, ModelProfile
from control.domain.topology import FleetSnapshot, Link, Node, Site

SEEDED_KINDS = (Kind.NODE, Kind.LINK, Kind.GATEWAY, Kind.SITE)

Names = Mapping[str, list[str]]


def names_of(fleet: FleetSnapshot | Inventory) -> dict[str, list[str]]:
    """Names of what a document brings, by kind."""
    return {kind.value: [item.name for item in getattr(fleet, kind.value)] for kind in SEEDED_KINDS}


def seeded_inventory(current: Inventory, fleet: FleetSnapshot, seeded: Names) -> Inventory:
    """The inventory with a document's items in it; `seeded` names what earlier documents brought.

    What they brought and this one lacks goes, where nothing else needs it. What the operator has added stays, and so
    does what the operator has said of items that stay: a node's role, state, chip and labels, a site's networks, what
    a link carries.
    """
    wanted = current
    for kind in reversed(SEEDED_KINDS):
        wanted = wanted.with_items(kind, [_kept(current, kind, item) for item in getattr(fleet, kind.value)])
    if fleet.model:
        wanted = replace(wanted.with_item(Kind.MODEL, _profile(current, fleet)), model=fleet.model)
    for kind in SEEDED_KINDS:
        here = {item.name for item in getattr(fleet, kind.value)}
        for name in seeded.get(kind.value, ()):
            ref = ItemRef(kind, name)
            if name not in here and not wanted.users_of(ref):
                wanted = wanted.without(ref)
    served = dict.fromkeys(node.model for node in wanted.nodes)
    unknown = [name for name in served if name not in wanted.by_name(Kind.MODEL)]
    figures = replace(_profile(current, fleet), labels={})
    return wanted.with_items(Kind.MODEL, [replace(figures, name=name) for name in unknown])


def _kept(current: Inventory, kind: Kind, item: Item) -> Item:
    before = current.by_name(kind).get(item.name)
    if isinstance(item, Node) and isinstance(before, Node):
        return replace(item, role=before.role, state=before.state, chip=before.chip, labels=before.labels)
    if isinstance(item, Site) and isinstance(before, Site):
        return replace(item, networks=tuple(dict.fromkeys((*before.networks, *item.networks))))
    if isinstance(item, Link) and isinstance(before, Link) and _same_ends(item, before):
        return replace(
            item,
            capacity_bytes_per_s=before.capacity_bytes_per_s,
            rtt_s=before.rtt_s,
            flow_cap_bytes_per_s=before.flow_cap_bytes_per_s,
        )
    return item


def _same_ends(one: Link, other: Link) -> bool:
    return (one.source, one.target) == (other.source, other.target)


def _profile(current: Inventory, fleet: FleetSnapshot) -> ModelProfile:
    before = current.by_name(Kind.MODEL).get(fleet.model)
    figures = ModelProfile(fleet.model, fleet.kv_bytes_per_token, fleet.block_tokens, labels=dict(fleet.labels))
    if not isinstance(before, ModelProfile):
        return figures
    return replace(
        before,
        kv_bytes_per_token=figures.kv_bytes_per_token,
        block_tokens=figures.block_tokens,
        labels={**before.labels, **figures.labels},
    )
