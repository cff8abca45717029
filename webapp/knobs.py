"""The knobs beside the charts: which fields of the policy they turn, in which unit, over which stops. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made_by
from typing import Any, Final

from control.domain.policy_fields import FieldKind, PolicyField, family_fields
from control.domain.policy_scopes import find_scoped_field
from control.domain.topology import Link

THRESHOLD: Final = "routing.relay_when_transfer_exceeds_s"
CEILING: Final = "routing.relay_load_ceiling"
MAX_TYPED: Final = 40
_BITS_PER_MEGABIT: Final = 1e6 / 8
# A fiftieth of a second to ten minutes: fine where transfers are, coarse where they are not.
_SECONDS: Final = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5)
_SECONDS_ABOVE: Final = (2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, 300, 600)
_RATIOS: Final = tuple(step / 100 for step in range(101))
_TOKENS: Final = (0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_TOKENS_ABOVE: Final = (3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152, 65_536, 98_304, 131_072)


@dataclass(frozen=True, slots=True)
class Knob:
    """One field with what it shows: `scale` display units make one unit of the field, `steps` are in display units."""

    field: PolicyField
    name: str
    unit: str = ""
    scale: float = 1.0
    steps: tuple[float, ...] = ()
    is_main: bool = True
    values: Mapping[str, str] = made_by(default_factory=dict)

    @property
    def path(self) -> str:
        """Path of the field; also its name in the form."""
        return self.field.path

    @property
    def id(self) -> str:
        """As an element of the page is called."""
        return "knob-" + self.path.replace(".", "-").replace("_", "-")

    def shown(self, value: Any) -> str:
        """A value of the field as the form has it; empty for none."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value * self.scale:.6g}" if isinstance(value, int | float) else str(value)


def knobs_of(links: Iterable[Link]) -> tuple[Knob, ...]:
    """All knobs of a fleet: those of the policy, and the rate cap of each link."""
    return (
        _knob(THRESHOLD, "threshold", "s", steps=(*_SECONDS, *_SECONDS_ABOVE)),
        _knob("routing.direct_hit_rate", "hit_rate", "%", 100, _RATIOS),
        _knob(CEILING, "ceiling", "%", 100, _RATIOS),
        _knob("handoff.mode", "handoff"),
        _knob("handoff.one_shot_max_tokens", "one_shot", "tok", steps=(*_TOKENS, *_TOKENS_ABOVE)),
        _knob("outlier.enabled", "outlier"),
        _knob("outlier.max_output_tokens", "outlier_output", "tok", steps=(*_TOKENS, *_TOKENS_ABOVE)),
        *(_link_knob(link) for link in links),
        _knob(
            "outlier.min_uncached_tokens", "outlier_uncached", "tok", steps=(*_TOKENS, *_TOKENS_ABOVE), is_main=False
        ),
        _knob("handoff.catch_up_batch_tokens", "catch_up", "tok", steps=(*_TOKENS, *_TOKENS_ABOVE), is_main=False),
        _knob("handoff.relay_max_tokens", "relay_max", "tok", steps=(*_TOKENS, *_TOKENS_ABOVE), is_main=False),
    )


def _knob(
    path: str, name: str, unit: str = "", scale: float = 1.0, steps: Sequence[float] = (), *, is_main: bool = True
) -> Knob:
    found = find_scoped_field(path)
    if found is None:
        raise LookupError(path)
    return Knob(found, name, unit, scale, _within(found, steps, scale), is_main)


def _link_knob(link: Link) -> Knob:
    found = next(one for one in family_fields("link", link.name) if one.path.endswith("rate_cap_bytes_per_s"))
    capacity = link.capacity_bytes_per_s / _BITS_PER_MEGABIT
    steps = tuple(float(f"{capacity * share / 20:.3g}") for share in range(1, 21))
    return Knob(
        found, "rate_cap", "Mb/s", 1 / _BITS_PER_MEGABIT, steps, values={"link": f"{link.source} → {link.target}"}
    )


def _within(found: PolicyField, steps: Sequence[float], scale: float) -> tuple[float, ...]:
    low = -math.inf if found.minimum is None else found.minimum
    high = math.inf if found.maximum is None else found.maximum
    return tuple(round(step * scale, 6) for step in steps if low <= step <= high)


def changes_of(
    knobs: Iterable[Knob], typed: Mapping[str, str], live: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What a form changes, by path, and what is wrong with it: the name of a sentence by path.

    A field that still shows what is live changes nothing, so that a value that a form cannot show in full stays.
    """
    changes: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for knob in knobs:
        text = typed.get(knob.path, "").strip()
        current = live.get(knob.path, knob.field.default)
        if knob.path not in typed or text == knob.shown(current):
            continue
        value, error = _value_of(knob, text)
        if error:
            errors[knob.path] = error
        elif value != current:
            changes[knob.path] = value
    return changes, errors


def _value_of(knob: Knob, text: str) -> tuple[Any, str]:
    found = knob.field
    if found.kind is FieldKind.BOOLEAN:
        return (text == "true", "") if text in {"true", "false"} else (None, "choice")
    if found.kind is FieldKind.CHOICE:
        return (text, "") if text in found.choices else (None, "choice")
    if not text:
        return (None, "") if found.nullable else (None, "number")
    try:
        number = float(text.replace(",", ".")) if len(text) <= MAX_TYPED else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return None, "number"
    value = number / knob.scale
    if found.kind is FieldKind.INTEGER:
        return (int(value), "") if value == int(value) else (None, "whole")
    return float(f"{value:.12g}"), ""
