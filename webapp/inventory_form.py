"""The forms of the inventory: which fields each kind has, in which units they are shown, and what was typed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from control.domain.inventory import AttentionKind, Item, Kind, item_facts
from control.domain.inventory_checks import ENGINES
from control.domain.topology import NodeState, Role
from webapp.form_fields import Typed
from webapp.policy_units import show_number


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One field. A number is shown as what is stored times `factor`; `source` names a kind to choose an item of."""

    name: str
    kind: str = "text"
    unit: str = ""
    factor: float = 1.0
    choices: tuple[str, ...] = ()
    source: str = ""
    is_required: bool = True


SPECS: Final[Mapping[Kind, tuple[InputSpec, ...]]] = {
    Kind.SITE: (
        InputSpec("name"),
        InputSpec("label", is_required=False),
        InputSpec("networks", "lines", is_required=False),
    ),
    Kind.CHIP: (
        InputSpec("name"),
        InputSpec("peak_flops", "number", "TFLOP/s", 1e-12),
        InputSpec("memory_bytes", "number", "GB", 1e-9),
        InputSpec("memory_bytes_per_s", "number", "GB/s", 1e-9),
        InputSpec("interconnect_bytes_per_s", "number", "GB/s", 1e-9),
        InputSpec("price_per_hour", "number"),
    ),
    Kind.MODEL: (
        InputSpec("name"),
        InputSpec("kv_bytes_per_token", "number", "bytes"),
        InputSpec("block_tokens", "number", "tok"),
        InputSpec("layers", "number", is_required=False),
        InputSpec("attention", "choice", choices=tuple(AttentionKind), is_required=False),
        InputSpec("quantisation", is_required=False),
        InputSpec("context_tokens", "number", "tok", is_required=False),
        InputSpec("labels", "labels", is_required=False),
    ),
    Kind.NODE: (
        InputSpec("name"),
        InputSpec("site", "choice", source="sites"),
        InputSpec("role", "choice", choices=tuple(Role)),
        InputSpec("url"),
        InputSpec("engine", "choice", choices=ENGINES),
        InputSpec("model", "choice", source="models"),
        InputSpec("slots", "number"),
        InputSpec("state", "choice", choices=tuple(NodeState)),
        InputSpec("chip", "choice", source="chips", is_required=False),
        InputSpec("labels", "labels", is_required=False),
    ),
    Kind.LINK: (
        InputSpec("name"),
        InputSpec("source", "choice", source="sites"),
        InputSpec("target", "choice", source="sites"),
        InputSpec("capacity_bytes_per_s", "number", "Mb/s", 8e-6),
        InputSpec("rtt_s", "number", "ms", 1000.0),
        InputSpec("flow_cap_bytes_per_s", "number", "Mb/s", 8e-6, is_required=False),
        InputSpec("relay_host", is_required=False),
        InputSpec("relay_port", "number", is_required=False),
        InputSpec("admin_url", is_required=False),
    ),
    Kind.GATEWAY: (InputSpec("name"), InputSpec("site", "choice", source="sites"), InputSpec("url")),
}
DEFAULTS: Final[Mapping[str, str]] = {"block_tokens": "64", "slots": "4", "state": NodeState.READY.value}


def shown_texts(kind: Kind, item: Item | None) -> dict[str, str]:
    """What stands in the fields of an item, or of a new one."""
    if item is None:
        return {spec.name: DEFAULTS.get(spec.name, "") for spec in SPECS[kind]}
    facts = item_facts(item)
    return {spec.name: show_fact(spec, facts[spec.name]) for spec in SPECS[kind]}


def show_fact(spec: InputSpec, value: Any) -> str:
    """A stored fact as it is typed."""
    if value is None or value == "":
        return ""
    if spec.kind == "labels":
        return "\n".join(f"{key}={value[key]}" for key in sorted(value))
    if spec.kind == "lines":
        return "\n".join(value)
    if spec.kind == "number":
        # A port of 0 is none.
        return "" if value == 0 and not spec.is_required else show_number(value * spec.factor)
    return str(value)


def typed_texts(kind: Kind, typed: Typed) -> dict[str, str]:
    """What somebody typed, field by field."""
    return {spec.name: typed.text(spec.name) for spec in SPECS[kind]}


def read_body(kind: Kind, texts: Mapping[str, str]) -> dict[str, Any]:
    """The body that the API's schema takes; what is no number stays text and is refused there."""
    body: dict[str, Any] = {}
    for spec in SPECS[kind]:
        text = texts.get(spec.name, "")
        if spec.kind == "labels":
            pairs = (line.partition("=") for line in text.splitlines() if line.strip())
            body[spec.name] = {key.strip(): value.strip() for key, _, value in pairs}
        elif spec.kind == "lines":
            body[spec.name] = [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]
        elif text or spec.is_required:
            body[spec.name] = _number(spec, text) if spec.kind == "number" else text
    return body


def _number(spec: InputSpec, text: str) -> float | int | str:
    try:
        value = float(f"{float(text.replace(',', '.')) / spec.factor:.12g}")
    except (ValueError, OverflowError):
        return text
    return int(value) if value.is_integer() else value
