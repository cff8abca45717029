"""The inventory as its page shows it: rows, plans, and the four axes of a chip. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from control.domain.fleet_plan import FleetPlan
from control.domain.inventory import ChipProfile, Inventory, ItemRef, Kind
from webapp.inventory_form import SPECS, InputSpec, show_fact
from webapp.spans import scaled

RADIUS: Final = 56.0
CENTRE: Final = (120.0, 76.0)
# How far a value a thousand times below the largest reaches: four chips of one kind must still be told apart.
DECADES: Final = 3.0
_DIRECTIONS: Final = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass(frozen=True, slots=True)
class AxisView:
    """One axis of a chip: where its end and its value are drawn."""

    key: str
    x: float
    y: float
    end_x: float
    end_y: float
    value: str
    ratio: float


@dataclass(frozen=True, slots=True)
class ChipView:
    """A chip, its four axes, and the outline that joins their values."""

    chip: ChipProfile
    axes: tuple[AxisView, ...]
    outline: str
    users: int


@dataclass(frozen=True, slots=True)
class PlanLine:
    """What becomes of one item: each changed field with its values before and after."""

    kind: str
    name: str
    action: str
    changes: tuple[tuple[str, str, str, str], ...]


def chip_views(inventory: Inventory) -> list[ChipView]:
    """Every chip on four logarithmic axes, each against the largest value among all chips."""
    return [
        _chip_view(chip, inventory.chips, len(inventory.users_of(ItemRef(Kind.CHIP, chip.name))))
        for chip in inventory.chips
    ]


def _chip_view(chip: ChipProfile, others: Sequence[ChipProfile], users: int) -> ChipView:
    measures = (
        ("flops", chip.peak_flops, max(other.peak_flops for other in others), "FLOP/s"),
        ("bandwidth", chip.memory_bytes_per_s, max(other.memory_bytes_per_s for other in others), "B/s"),
        ("memory", float(chip.memory_bytes), float(max(other.memory_bytes for other in others)), "B"),
        (
            "interconnect",
            chip.interconnect_bytes_per_s,
            max(other.interconnect_bytes_per_s for other in others),
            "B/s",
        ),
    )
    axes = []
    for (dx, dy), (key, value, largest, unit) in zip(_DIRECTIONS, measures, strict=True):
        ratio = axis_ratio(value, largest)
        reach = RADIUS * ratio
        axes.append(
            AxisView(
                key=key,
                x=round(CENTRE[0] + dx * reach, 1),
                y=round(CENTRE[1] + dy * reach, 1),
                end_x=CENTRE[0] + dx * RADIUS,
                end_y=CENTRE[1] + dy * RADIUS,
                value=scaled(value, unit),
                ratio=ratio,
            )
        )
    return ChipView(chip, tuple(axes), " ".join(f"{axis.x},{axis.y}" for axis in axes), users)


def axis_ratio(value: float, largest: float) -> float:
    """How far a value reaches, 0.1 to 1: a tenth of the largest reaches two thirds of the way."""
    if value <= 0 or largest <= 0:
        return 0.1
    return max(0.1, min(1.0, 1.0 + math.log10(value / largest) / DECADES))


def plan_lines(plan: FleetPlan) -> list[PlanLine]:
    """Exactly what a plan touches, in the units of the forms."""
    lines = [
        PlanLine("fleet", "", "changed", ((fact.path, _plain(fact.before), _plain(fact.after), ""),))
        for fact in plan.facts
    ]
    for change in plan.items:
        specs = {spec.name: spec for spec in SPECS[change.ref.kind]}
        fields = tuple(
            (
                field.path,
                _side(specs.get(field.path), field.before),
                _side(specs.get(field.path), field.after),
                specs[field.path].unit if field.path in specs else "",
            )
            for field in change.changes
        )
        lines.append(PlanLine(change.ref.kind.value, change.ref.name, change.action.value, fields))
    return lines


def counts_of(inventory: Inventory) -> dict[str, int]:
    """How many items there are of each kind."""
    return {kind.value: len(inventory.items(kind)) for kind in Kind}


def labels_line(labels: Iterable[tuple[str, str]]) -> str:
    """Labels in one line."""
    return ", ".join(f"{key}={value}" for key, value in labels)


def _side(spec: object, value: object) -> str:
    return show_fact(spec, value).replace("\n", ", ") if isinstance(spec, InputSpec) else _plain(value)


def _plain(value: object) -> str:
    return "" if value is None else str(value)
