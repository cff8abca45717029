"""The state of the fleet in one word, with the written threshold behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

WAN_FULL_RATIO = 0.95
RELAY_BUSY_RATIO = 0.85
RISE_RATIO = 1.5
ERROR_RATIO = 0.01
RECENT_SLOTS = 12

Tone = Literal["ok", "relay", "warn", "bad", "none"]

THRESHOLDS: tuple[tuple[str, str], ...] = (
    ("Healthy", "TTFT within its objectives, nothing relayed."),
    ("Relaying", "TTFT within its objectives, RLD at work."),
    ("Degraded", "TTFT P90 or P99 over its objective, more than 1 % failed, a node down, or a source stale."),
    (
        "Collapsing",
        "RLD share up by half in two minutes, WAN at 95 % or more, RLD at 85 % or more: a link that no longer drains.",
    ),
    ("No traffic", "Nothing was asked for five minutes."),
    ("No data", "No gateway has reported."),
)


@dataclass(frozen=True, slots=True)
class FleetState:
    """One word, its tone, and the sentence that says why now."""

    word: str
    tone: Tone
    why: str


def fleet_state(tick: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> FleetState:
    """Judge a tick; `slots` are the closed slots before it, oldest first."""
    tiles: Mapping[str, Any] = tick.get("tiles") or {}
    sources: Sequence[Mapping[str, Any]] = tick.get("sources") or ()
    gateways = [source for source in sources if source.get("kind") == "gateway"]
    if not gateways or all(source.get("stale") for source in gateways):
        return FleetState("No data", "none", "No gateway has reported.")
    if _is_collapsing(tiles, slots):
        return FleetState("Collapsing", "bad", "RLD share rises while the WAN and RLD are full.")
    trouble = _trouble(tiles, sources, tick.get("nodes") or (), slots)
    if trouble:
        return FleetState("Degraded", "warn", trouble)
    if not tiles.get("requests"):
        return FleetState("No traffic", "none", "Nothing was asked for five minutes.")
    if tiles.get("rld_share"):
        return FleetState("Relaying", "relay", "TTFT within its objectives, RLD at work.")
    return FleetState("Healthy", "ok", "TTFT within its objectives, nothing relayed.")


def _is_collapsing(tiles: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> bool:
    wan = (tiles.get("wan_use") or {}).get("ratio") or 0.0
    busy = tiles.get("relay_utilization") or 0.0
    before, now = _share(slots[-3 * RECENT_SLOTS : -RECENT_SLOTS]), _share(slots[-RECENT_SLOTS:])
    rises = before is not None and now is not None and before > 0 and now >= RISE_RATIO * before
    return wan >= WAN_FULL_RATIO and busy >= RELAY_BUSY_RATIO and rises


def _share(slots: Sequence[Mapping[str, Any]]) -> float | None:
    """RLD's share of the output tokens; None where nothing was put out."""
    eager = sum(slot.get("eager_tokens") or 0 for slot in slots)
    output = sum(slot.get("output_tokens") or 0 for slot in slots)
    return eager / output if output else None


def _trouble(
    tiles: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
    slots: Sequence[Mapping[str, Any]],
) -> str:
    stale = next((source for source in sources if source.get("stale")), None)
    if stale is not None:
        return f"{stale.get('name')} has not reported for {stale.get('age_s') or 0:.0f} s."
    down = [node for node in nodes if node.get("state") == "unreachable"]
    if down:
        return f"{down[0].get('name') or down[0].get('node')} does not answer."
    quantiles, slo = tiles.get("ttft") or {}, tiles.get("slo") or {}
    for name, label in (("p90", "P90"), ("p99", "P99")):
        value, limit = quantiles.get(name), slo.get(f"ttft_{name}_s")
        if value is not None and limit is not None and value > limit:
            return f"TTFT {label} {value:.1f} s is over its {limit:g} s."
    recent = slots[-3 * RECENT_SLOTS :]
    asked, failed = (sum(slot.get(key) or 0 for slot in recent) for key in ("requests", "errors"))
    if asked and failed / asked > ERROR_RATIO:
        return f"{100 * failed / asked:.1f} % of requests failed."
    return ""
