"""What may be believed of a node that is only known from samples. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from control.domain.topology import Node, NodeState

STALE_AFTER_S = 10.0
AGENT_SILENT = "agent_silent"


class Health(StrEnum):
    """What was last seen of a node. Stale is neither healthy nor dead: nobody knows."""

    HEALTHY = "healthy"
    STALLED = "stalled"
    UNREACHABLE = "unreachable"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node's newest sample: its state as the observer put it, and the sample's age in seconds."""

    state: str
    age_s: float


Sightings = Mapping[str, Sighting]
NOTHING_SEEN: Sightings = {}


def judge_health(sighting: Sighting | None) -> Health:
    """A node without a fresh sample is stale, whatever its last one said."""
    if sighting is None or sighting.age_s > STALE_AFTER_S:
        return Health.STALE
    if sighting.state == "ready":
        return Health.HEALTHY
    return Health.STALLED if sighting.state == "stalled" else Health.UNREACHABLE


def why_stale(node: str, sighting: Sighting | None) -> str:
    """The words for a refusal."""
    if sighting is None:
        return f"{node} is stale: no observer has reported it"
    if sighting.state == AGENT_SILENT:
        return f"{node} is stale: the agent of its site has been silent for {sighting.age_s:.0f} s"
    return f"{node} is stale: last seen {sighting.age_s:.0f} s ago"


def why_not_held(nodes: Iterable[Node], node: Node, sightings: Sightings, *, automatic: bool, force: bool) -> str:
    """Why a node may not be taken from the gateways; empty where it may.

    A role in use keeps one ready node that is seen to be healthy. What acts on a node by itself (`automatic`) also
    wants to see the node itself; an operator may drain one that nobody sees. `force` waives the minimum, never the
    node's own sight.
    """
    own = sightings.get(node.name)
    if automatic and judge_health(own) is Health.STALE:
        return why_stale(node.name, own)
    if force or node.state is not NodeState.READY:
        return ""
    others = [
        other
        for other in nodes
        if other.name != node.name
        and (other.role, other.model, other.state) == (node.role, node.model, NodeState.READY)
    ]
    if not others:
        return f"{node.name} is the last ready {node.role} node"
    healths = {other.name: judge_health(sightings.get(other.name)) for other in others}
    if Health.HEALTHY in healths.values():
        return ""
    stale = [name for name, health in healths.items() if health is Health.STALE]
    if stale:
        return f"no other {node.role} node is known to be healthy: " + "; ".join(
            why_stale(name, sightings.get(name)) for name in stale
        )
    return f"no other {node.role} node is healthy"
