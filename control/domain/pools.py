"""How many nodes of each role the policy wants at a site, against how many there are. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.domain.policy import effective_values
from control.domain.rebalance import ROLES
from control.domain.topology import Node, NodeState, Role


@dataclass(frozen=True, slots=True)
class Pool:
    """Ready nodes of one role at one site; `target` is None where the policy says nothing."""

    site: str
    role: Role
    nodes: int
    target: int | None

    @property
    def drift(self) -> int | None:
        """Nodes too many (positive) or missing (negative)."""
        return None if self.target is None else self.nodes - self.target


def pools_of(document: Mapping[str, Any], sites: Sequence[str], nodes: Sequence[Node]) -> list[Pool]:
    """Every role's pool at every site, in the order of the sites.

    Raises:
        PolicyError: the document cannot be obeyed.
    """
    values = effective_values(document)
    return [
        Pool(
            site,
            role,
            sum(node.site == site and node.role is role and node.state is NodeState.READY for node in nodes),
            values.get(f"pools.{site}.{role}.target"),
        )
        for site in sites
        for role in ROLES
    ]


def wanted_counts(pools: Sequence[Pool]) -> dict[Role, int]:
    """The counts that a rebalance of one site aims at: targets, and what is there of roles that have none."""
    return {pool.role: pool.nodes if pool.target is None else pool.target for pool in pools}
