"""The state of the fleet in one word, with the written threshold behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

WAN_FULL_RATIO = 0.95
RELAY_BUSY_RATIO = 0.85
RISE_RATIO = 1.5
ERROR_RATIO = 0.01
RECENT_SLOTS = 12

Tone = Literal["ok", "relay", "warn", "bad", "none"]

# In the order of the legend; each has a name and a written threshold among the texts of the pages.
WORDS: tuple[str, ...] = ("healthy", "relaying", "degraded", "collapsing", "no_traffic", "no_data")


@dataclass(frozen=True, slots=True)
class FleetState:
    """One word, its tone, and which sentence says why now, with the figures for its placeholders.

    Words and sentences are names of texts: every browser reads the same state in its own language.
    """

    word: str
    tone: Tone
    why: str
    values: dict[str, str] = field(default_factory=dict)


def fleet_state(tick: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> FleetState:
    """Judge a tick; `slots` are the closed slots before it, oldest first."""
    tiles: Mapping[str, Any] = tick.get("tiles") or {}
    sources: Sequence[Mapping[str, Any]] = tick.get("sources") or ()
    gateways = [source for source in sources if source.get("kind") == "gateway"]
    if not gateways or all(source.get("stale") for source in gateways):
        return FleetState("no_data", "none", "no_data")
    if _is_collapsing(tiles, slots):
        return FleetState("collapsing", "bad", "collapsing")
    trouble = _trouble(tiles, sources, tick.get("nodes") or (), slots)
    if trouble:
        return FleetState("degraded", "warn", *trouble)
    if not tiles.get("requests"):
        return FleetState("no_traffic", "none", "no_traffic")
    if tiles.get("rld_share"):
        return FleetState("relaying", "relay", "relaying")
    return FleetState("healthy", "ok", "healthy")


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
) -> tuple[str, dict[str, str]] | None:
    """What is wrong, as the name of a sentence and its figures; None where nothing is."""
    stale = next((source for source in sources if source.get("stale")), None)
    if stale is not None:
        return "silent", {"name": str(stale.get("name")), "age": f"{stale.get('age_s') or 0:.0f}"}
    down = [node for node in nodes if node.get("state") == "unreachable"]
    if down:
        return "node_down", {"name": str(down[0].get("name") or down[0].get("node"))}
    quantiles, slo = tiles.get("ttft") or {}, tiles.get("slo") or {}
    for name in ("p90", "p99"):
        value, limit = quantiles.get(name), slo.get(f"ttft_{name}_s")
        if value is not None and limit is not None and value > limit:
            return "ttft", {"quantile": name.upper(), "value": f"{value:.1f}", "limit": f"{limit:g}"}
    recent = slots[-3 * RECENT_SLOTS :]
    asked, failed = (sum(slot.get(key) or 0 for slot in recent) for key in ("requests", "errors"))
    if asked and failed / asked > ERROR_RATIO:
        return "errors", {"share": f"{100 * failed / asked:.1f}"}
    return None
