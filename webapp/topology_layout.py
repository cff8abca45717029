"""Where sites, nodes and links stand on the Topology page: a pure function of the inventory, so that nothing moves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from control.domain.topology import FleetSnapshot, Link, Node, Role, Site

WIDTH: Final = 1000
CARD: Final = 328
TILE: Final = 26
STEP: Final = 30
PER_ROW: Final = 10
_HEAD: Final = 44
_GROUP_HEAD: Final = 30
_GAP: Final = 48
_MARGIN: Final = 16
_PAD: Final = 14


@dataclass(frozen=True, slots=True)
class Tile:
    """One node; x and y are those of its upper left corner."""

    name: str
    role: str
    engine: str
    state: str
    slots: int
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one role at a site, under one line of text."""

    role: str
    y: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One site."""

    name: str
    label: str
    x: int
    y: int
    height: int
    gateways: tuple[str, ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One link as a cubic curve, and where its text stands."""

    name: str
    source: str
    target: str
    path: str
    label_x: int
    label_y: int
    capacity_bytes_per_s: float


def lay_out_fleet(fleet: FleetSnapshot) -> dict[str, Any]:
    """Sites that take requests or prefill on the left, the others on the right, each column by name."""
    entrances = {gateway.site for gateway in fleet.gateways}
    entrances |= {node.site for node in fleet.nodes if node.role is Role.PREFILL}
    left = [site for site in fleet.sites if site.name in entrances]
    right = [site for site in fleet.sites if site.name not in entrances]
    columns = [column for column in (left, right) if column]
    heights = [_column_height(column, fleet) for column in columns]
    cards: list[Card] = []
    for index, column in enumerate(columns):
        x = _MARGIN if index == 0 else WIDTH - CARD - _MARGIN
        y = _MARGIN + (max(heights) - heights[index]) // 2
        for site in column:
            card = _card(site, fleet, x, y)
            cards.append(card)
            y += card.height + _GAP
    places = {card.name: card for card in cards}
    edges = [
        _edge(link, places, order)
        for order, link in enumerate(fleet.links)
        if link.source in places and link.target in places
    ]
    return {
        "width": WIDTH,
        "height": max(heights, default=0) + 2 * _MARGIN,
        "card": CARD,
        "tile": TILE,
        "cards": [asdict(card) for card in cards],
        "edges": [asdict(edge) for edge in edges],
    }


def _column_height(column: Sequence[Site], fleet: FleetSnapshot) -> int:
    return sum(_card(site, fleet, 0, 0).height for site in column) + _GAP * (len(column) - 1)


def _card(site: Site, fleet: FleetSnapshot, x: int, top: int) -> Card:
    gateways = tuple(gateway.name for gateway in fleet.gateways if gateway.site == site.name)
    y = top + _HEAD + (_GROUP_HEAD if gateways else 0)
    groups = []
    for role in Role:
        nodes = [node for node in fleet.nodes if node.site == site.name and node.role is role]
        if nodes:
            groups.append(Group(role.value, y, tuple(_tile(node, index, x, y) for index, node in enumerate(nodes))))
            y += _GROUP_HEAD + STEP * -(-len(nodes) // PER_ROW) + 8
    return Card(site.name, site.label, x, top, max(y - top, _HEAD + 28), gateways, tuple(groups))


def _tile(node: Node, index: int, x: int, y: int) -> Tile:
    column, row = index % PER_ROW, index // PER_ROW
    place = (x + _PAD + column * STEP, y + _GROUP_HEAD - 4 + row * STEP)
    return Tile(node.name, node.role.value, node.engine, node.state.value, node.slots, *place)


def _edge(link: Link, places: dict[str, Card], order: int) -> Edge:
    source, target = places[link.source], places[link.target]
    shift = 34 * (order % 4) + 26
    y1, y2 = source.y + min(shift + 40, source.height - 12), target.y + min(shift + 20, target.height - 12)
    if source.x == target.x:
        x1 = x2 = source.x + (CARD if source.x < WIDTH // 2 else 0)
        bend = 150 if source.x < WIDTH // 2 else -150
        path = f"M{x1} {y1} C{x1 + bend} {y1} {x2 + bend} {y2} {x2} {y2}"
        return Edge(link.name, link.source, link.target, path, x1 + bend, (y1 + y2) // 2, link.capacity_bytes_per_s)
    goes_right = source.x < target.x
    x1, x2 = (source.x + CARD, target.x) if goes_right else (source.x, target.x + CARD)
    middle = (x1 + x2) // 2
    path = f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
    return Edge(link.name, link.source, link.target, path, middle, (y1 + y2) // 2, link.capacity_bytes_per_s)
