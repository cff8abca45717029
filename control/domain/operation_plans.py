"""Which steps each kind of operation has, and how long each may take. Pure."""

from collections.abc import Sequence

from control.domain.operations import Stage, StepPlan
from control.domain.topology import Link, Node, Role

DRAIN_TIMEOUT_S = 300.0
DEADLINES_S = {
    Stage.HOLD: 10.0,
    Stage.CONVERGE: 60.0,
    Stage.EMPTY: DRAIN_TIMEOUT_S,
    Stage.SWITCH: 10.0,
    Stage.ASSIGN: 60.0,
    Stage.RESTART: 180.0,
    Stage.WARM: 90.0,
    Stage.ADMIT: 10.0,
    Stage.ENFORCE: 60.0,
    Stage.PROBE: 60.0,
}
# What a step takes on a quiet fleet: the first guess, until such steps have been measured.
TYPICAL_S = {
    Stage.HOLD: 0.1,
    Stage.CONVERGE: 2.0,
    Stage.EMPTY: 10.0,
    Stage.SWITCH: 0.1,
    Stage.ASSIGN: 1.0,
    Stage.RESTART: 15.0,
    Stage.WARM: 2.0,
    Stage.ADMIT: 0.1,
    Stage.ENFORCE: 2.0,
    Stage.PROBE: 5.0,
    Stage.RESTORE: 0.1,
}


def plan_drain(node: Node, timeout_s: float = DRAIN_TIMEOUT_S, *, force: bool = False) -> tuple[StepPlan, ...]:
    """Take a node from the gateways and see it come to rest; `force` lets it be the last of its role."""
    return (
        _local(Stage.HOLD, node.name, {"force": force}),
        _local(Stage.CONVERGE, node.name),
        StepPlan(Stage.EMPTY, node.name, node.site, timeout_s),
    )


def plan_undrain(node: Node) -> tuple[StepPlan, ...]:
    """Give a node back."""
    return (_local(Stage.ADMIT, node.name), _local(Stage.CONVERGE, node.name))


def plan_switch(
    node: Node, role: Role, timeout_s: float = DRAIN_TIMEOUT_S, *, force: bool = False
) -> tuple[StepPlan, ...]:
    """Drain, switch, warm, admit."""
    return (
        *plan_drain(node, timeout_s, force=force),
        _local(Stage.SWITCH, node.name, {"role": role.value}),
        _at_site(Stage.ASSIGN, node, {"role": role.value, "draining": False}),
        _at_site(Stage.WARM, node),
        *plan_undrain(node),
    )


def plan_restart(node: Node, timeout_s: float = DRAIN_TIMEOUT_S, *, force: bool = False) -> tuple[StepPlan, ...]:
    """Drain, restart, warm, admit."""
    return (
        *plan_drain(node, timeout_s, force=force),
        _at_site(Stage.RESTART, node),
        _at_site(Stage.ASSIGN, node, {"role": node.role.value, "draining": False}),
        _at_site(Stage.WARM, node),
        *plan_undrain(node),
    )


def plan_moves(moves: Sequence[tuple[Node, Role]], timeout_s: float = DRAIN_TIMEOUT_S) -> tuple[StepPlan, ...]:
    """One switch after the other."""
    return tuple(step for node, role in moves for step in plan_switch(node, role, timeout_s))


def plan_enforcement(link: Link, revision: int) -> tuple[StepPlan, ...]:
    """Wait until the relay of a link enforces a revision."""
    return (_local(Stage.ENFORCE, link.name, {"revision": revision}),)


def plan_convergence(revision: int) -> tuple[StepPlan, ...]:
    """Wait until every gateway runs a revision."""
    return (_local(Stage.CONVERGE, "", {"revision": revision}),)


def plan_probe(link: Link, size_bytes: int) -> tuple[StepPlan, ...]:
    """Measure a link from its target site."""
    return (StepPlan(Stage.PROBE, link.name, link.target, DEADLINES_S[Stage.PROBE], {"size_bytes": size_bytes}),)


def _local(stage: Stage, subject: str, arguments: dict[str, object] | None = None) -> StepPlan:
    return StepPlan(stage, subject, "", DEADLINES_S[stage], arguments or {})


def _at_site(stage: Stage, node: Node, arguments: dict[str, object] | None = None) -> StepPlan:
    return StepPlan(stage, node.name, node.site, DEADLINES_S[stage], arguments or {})
