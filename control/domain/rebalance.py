"""Which nodes of a site change their role so that its P : RLD : MD numbers become the wanted ones. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.domain.topology import Node, NodeState, Role

ROLES = (Role.PREFILL, Role.RELAY, Role.MAIN)


class RebalanceError(ValueError):
    """A target that cannot be met; its text says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """One node and the role it gets."""

    node: Node
    role: Role


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The moves in their order, and the number of nodes of each role before and after."""

    moves: tuple[Move, ...]
    before: Mapping[Role, int]
    after: Mapping[Role, int]


def parse_ratio(text: str) -> dict[Role, int]:
    """P : RLD : MD as in `3:1:2`.

    Raises:
        RebalanceError: it is none.
    """
    parts = text.split(":")
    if len(parts) != len(ROLES) or not all(part.strip().isdecimal() for part in parts):
        raise RebalanceError(f"a target looks like P:RLD:MD, for example 3:1:2, not {text}")
    return dict(zip(ROLES, (int(part) for part in parts), strict=True))


def target_counts(ratio: Mapping[Role, int], total: int) -> dict[Role, int]:
    """Nodes of each role out of `total`, as near to the ratio as whole nodes allow; a role in it gets at least one.

    Raises:
        RebalanceError: the ratio is all zero, or has more roles than there are nodes.
    """
    wanted = [role for role in ROLES if ratio.get(role, 0) > 0]
    parts = sum(ratio[role] for role in wanted)
    if not wanted:
        raise RebalanceError("a target needs at least one role above zero")
    if len(wanted) > total:
        raise RebalanceError(f"{total} nodes cannot have {len(wanted)} roles")
    counts = dict.fromkeys(ROLES, 0) | dict.fromkeys(wanted, 1)
    for _ in range(total - len(wanted)):
        # The role that is furthest below its share; the earlier of equals.
        short = max(wanted, key=lambda role: ratio[role] * total / parts - counts[role])
        counts[short] += 1
    return counts


def plan_rebalance(nodes: Sequence[Node], ratio: Mapping[Role, int]) -> RebalancePlan:
    """The fewest moves to the ratio among ready nodes of one site and model, ordered so that no role in use runs dry.

    Raises:
        RebalanceError: the nodes cannot have that ratio, or are of several models.
    """
    ready = [node for node in nodes if node.state is NodeState.READY]
    if len({node.model for node in ready}) > 1:
        raise RebalanceError("the site's nodes serve several models; switch roles one by one")
    before = {role: sum(node.role is role for node in ready) for role in ROLES}
    after = target_counts(ratio, len(ready))
    surplus = {
        role: sorted((node for node in ready if node.role is role), key=lambda node: node.name) for role in ROLES
    }
    missing = [role for role in ROLES for _ in range(after[role] - before[role])]
    moves: list[Move] = []
    for role in missing:
        # From where most are left, so that what is short of nodes is drawn on last.
        giver = max(ROLES, key=lambda other: len(surplus[other]) - after[other])
        moves.append(Move(surplus[giver].pop(), role))
    return RebalancePlan(tuple(moves), before, after)
