"""Policy values as forms show them: shares in percent, rates in Mb/s, everything else in its own unit. Pure."""

import math
from dataclasses import dataclass
from typing import Any, Final

from control.domain.policy_fields import FieldKind, PolicyField

MAX_NUMBER_LENGTH: Final = 40


@dataclass(frozen=True, slots=True)
class ShownUnit:
    """What stands behind a number, and what the stored value is multiplied with to get it."""

    name: str
    factor: float = 1.0


_SHOWN: Final = {
    "ratio": ShownUnit("%", 100.0),
    "bytes/s": ShownUnit("Mb/s", 8e-6),
    "tokens": ShownUnit("tok"),
    "streams": ShownUnit(""),
    "transfers": ShownUnit(""),
    "times mean load": ShownUnit("×"),
    "times the default class": ShownUnit("×"),
    "times the reference": ShownUnit("×"),
    "requests": ShownUnit("req"),
}
# Bounds beyond this keep nobody from typing what they mean.
_UNBOUNDED: Final = 1e9


class NotANumberError(ValueError):
    """What was typed is no number."""


class OutOfBoundsError(ValueError):
    """The number is not within what the field may have."""


def shown_unit(field: PolicyField) -> ShownUnit:
    """How a field's numbers are shown."""
    return _SHOWN.get(field.unit, ShownUnit(field.unit))


def show_value(field: PolicyField, value: Any) -> str:
    """A stored value as somebody would type it; empty for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and field.kind in {FieldKind.NUMBER, FieldKind.INTEGER}:
        return show_number(value * shown_unit(field).factor)
    return str(value)


def show_number(value: float) -> str:
    """A number without trailing zeros or an exponent that nobody would type."""
    text = f"{value:.10g}"
    return f"{value:.0f}" if "e+" in text else text


def show_bounds(field: PolicyField) -> tuple[str, str] | None:
    """Smallest and largest value as they are shown; None where there are none worth showing."""
    if field.minimum is None or field.maximum is None:
        return None
    factor = shown_unit(field).factor
    if field.maximum * factor > _UNBOUNDED:
        return None
    return _grouped(field.minimum * factor), _grouped(field.maximum * factor)


def _grouped(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 10_000 else show_number(value)


def read_value(field: PolicyField, text: str) -> Any:
    """What was typed as a stored value; choices and booleans are left for the policy's own check.

    Raises:
        NotANumberError, OutOfBoundsError: the field takes a number, and this is none, or one that it may not have.
    """
    if field.kind is FieldKind.BOOLEAN:
        return {"true": True, "false": False}.get(text, text)
    if field.kind is FieldKind.CHOICE:
        return text
    return _number(field, text)


def _number(field: PolicyField, text: str) -> float | int:
    try:
        shown = float(text.replace(",", ".")) if len(text) <= MAX_NUMBER_LENGTH else math.nan
    except ValueError:
        shown = math.nan
    if not math.isfinite(shown):
        raise NotANumberError
    # Back through the shown unit: 95 % is 0.95, and not the nearest float to 95 / 100 by another way.
    value = float(f"{shown / shown_unit(field).factor:.12g}")
    if field.minimum is not None and field.maximum is not None and not field.minimum <= value <= field.maximum:
        raise OutOfBoundsError
    return int(value) if value.is_integer() and field.kind is FieldKind.INTEGER else value
