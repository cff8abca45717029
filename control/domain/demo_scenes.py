"""The scenes of a demo fleet: what each changes so that charts and alerts show something. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SQUEEZED_BYTES_PER_S = 300_000.0
DEAD_PORT = 9


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """What a scene is planned on: nodes and links as the API lists them, and the active policy document."""

    nodes: Sequence[Mapping[str, Any]]
    links: Sequence[Mapping[str, Any]]
    policy: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Storm:
    """Requests of its own that a scene sends: so many sessions at a time, each with a prompt that nothing has seen."""

    sessions: int = 6


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """What a scene does. `rule` makes an alert that fires at once; it goes when the scene does."""

    rule: Mapping[str, Any]
    look_at: str
    policy: Mapping[str, Any] = field(default_factory=dict)
    drain: str = ""
    kill: str = ""
    storm: Storm | None = None


class SceneError(ValueError):
    """The fleet has not what a scene needs; its text says what."""


def plan_scene(name: str, fleet: FleetPicture) -> ScenePlan:
    """What a scene would do to this fleet.

    Raises:
        SceneError: there is no such scene, or the fleet has not what it needs.
    """
    if name not in SCENES:
        raise SceneError(f"There is no scene {name}; there are {', '.join(SCENES)}.")
    return SCENES[name](fleet)


def values_before(document: Mapping[str, Any], paths: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What some paths of a policy document hold, and which of them it does not hold."""
    held: dict[str, Any] = {}
    absent: list[str] = []
    for path in paths:
        value: Any = document
        for part in path.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is _ABSENT:
            absent.append(path)
        else:
            held[path] = value
    return held, absent


_ABSENT = object()


def dead_url(url: str) -> str:
    """The same address on a port where nothing listens."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition(':')[0] or host}:{DEAD_PORT}{slash}{path}"


def _link_squeeze(fleet: FleetPicture) -> ScenePlan:
    link = _shaped_link(fleet)
    rule = _rule("link-squeeze", "transfer_p99_s", 3.0, "KV needs long to cross: the scene holds the link down.")
    policy = {f"link.{link}.rate_cap_bytes_per_s": SQUEEZED_BYTES_PER_S}
    return ScenePlan(rule, f"WAN links ({link}), RLD share and transfer P99", policy)


def _low_hit_storm(_: FleetPicture) -> ScenePlan:
    rule = _rule("low-hit-storm", "rld_share", 0.25, "Prompts that nothing has seen: their KV is long on its way.")
    return ScenePlan(rule, "Requests by hit rate (0-90 %), RLD load, WAN links", storm=Storm())


def _relay_loss(fleet: FleetPicture) -> ScenePlan:
    node = _first(fleet, "relay")
    rule = _rule("relay-loss", "rld_share", 0.001, "No output token comes from RLD.", above=False)
    return ScenePlan(rule, f"Pipelines (all direct) and Topology ({node} draining)", drain=node)


def _cache_lag(fleet: FleetPicture) -> ScenePlan:
    link = _shaped_link(fleet)
    policy = {
        "routing.relay_when_transfer_exceeds_s": 0.0,
        f"link.{link}.rate_cap_bytes_per_s": SQUEEZED_BYTES_PER_S,
    }
    rule = _rule("cache-lag", "cache_lag_tokens", 200.0, "MD waits for what P has cached.")
    return ScenePlan(rule, "Cache lag, RLD share and handoffs", policy)


def _node_death(fleet: FleetPicture) -> ScenePlan:
    node = _first(fleet, "main")
    rule = _rule("node-death", "rld_share", 0.8, "RLD answers alone: no MD can be reached.")
    return ScenePlan(rule, f"State (Degraded), Topology ({node} does not answer), Pipelines", kill=node)


SCENES = {
    "link-squeeze": _link_squeeze,
    "low-hit-storm": _low_hit_storm,
    "relay-loss": _relay_loss,
    "cache-lag": _cache_lag,
    "node-death": _node_death,
}


def _shaped_link(fleet: FleetPicture) -> str:
    found = next((str(link["name"]) for link in fleet.links if link.get("admin_url")), "")
    if not found:
        raise SceneError("No link of this fleet has a WAN relay that could shape it.")
    return found


def _first(fleet: FleetPicture, role: str) -> str:
    ready = (str(node["name"]) for node in fleet.nodes if node["role"] == role and node["state"] == "ready")
    found = next(ready, "")
    if not found:
        raise SceneError(f"This fleet has no ready {role} node.")
    return found


def _rule(scene: str, metric: str, threshold: float, summary: str, *, above: bool = True) -> dict[str, Any]:
    return {
        "name": f"scene-{scene}",
        "metric": metric,
        "threshold": threshold,
        "above": above,
        "window_s": 60,
        "for_s": 0,
        "clear_for_s": 0,
        "summary": f"Scene {scene}: {summary}",
    }
