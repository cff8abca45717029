"""From what somebody asks for to the steps that it takes, on the fleet as it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlmodel import Session

from control.domain.operation_plans import (
    DRAIN_TIMEOUT_S,
    plan_convergence,
    plan_drain,
    plan_enforcement,
    plan_moves,
    plan_probe,
    plan_restart,
    plan_switch,
    plan_undrain,
)
from control.domain.operations import Kind, StepPlan
from control.domain.pools import wanted_counts
from control.domain.rebalance import RebalanceError, parse_ratio, plan_rebalance
from control.domain.staleness import Health, Sightings, judge_health, why_not_held, why_stale
from control.domain.topology import Link, Node, NodeState, Role
from control.errors import ConflictError, InvalidError
from control.services.access import Principal
from control.services.fleet import find, load_links, load_nodes, load_sites
from control.services.plane import ControlPlane
from control.services.policies import (
    RevisionDraft,
    apply_revision,
    create_revision,
    find_active_number,
    load_revision,
    preview_revision,
)
from control.services.pools import load_pools
from control.services.sightings import load_sightings

DEFAULT_PROBE_BYTES = 4_000_000
SHAPE_FIELDS = ("rate_cap_bytes_per_s", "flow_cap_bytes_per_s", "streams_per_transfer", "max_transfers")

Prepare = Callable[[ControlPlane, Principal, str], tuple[StepPlan, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """An operation before it is opened.

    `subjects` are what no other open one may touch; `prepares` makes the policy revision that the steps wait for.
    """

    kind: Kind
    subjects: tuple[str, ...]
    steps: tuple[StepPlan, ...]
    result: Any = None
    prepares: Prepare | None = None
    target: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def open_key(self) -> str:
        """What only one open operation may have."""
        return open_key_of(self.kind, self.target)

    def prepare(self, plane: ControlPlane, principal: Principal, reason: str) -> "Request":
        """The request with the steps that follow from what had to be done first.

        Raises:
            InvalidError, NotFoundError, StaleRevisionError: as policies do.
        """
        if self.prepares is None:
            return self
        return replace(self, steps=self.prepares(plane, principal, reason), prepares=None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request is planned from."""

    session: Session
    sightings: Sightings
    parameters: Mapping[str, Any]

    def node(self) -> Node:
        return find(load_nodes(self.session), "node", str(self.parameters.get("node")))

    def link(self) -> Link:
        return find(load_links(self.session), "link", str(self.parameters.get("link")))

    def timeout_s(self) -> float:
        return float(self.parameters.get("timeout_s") or DRAIN_TIMEOUT_S)

    def force(self) -> bool:
        return bool(self.parameters.get("force"))


_TARGETS = {
    Kind.REBALANCE: ("site", "site"),
    Kind.SHAPE_LINK: ("link", "link"),
    Kind.PROBE_LINK: ("link", "link"),
    Kind.APPLY_POLICY: ("policy", "revision"),
}


def target_of(kind: Kind, parameters: Mapping[str, Any]) -> str:
    """What an operation is about, as in `node/ams-p-01`."""
    noun, parameter = _TARGETS.get(kind, ("node", "node"))
    return f"{noun}/{parameters.get(parameter)}"


def open_key_of(kind: Kind, target: str) -> str:
    """What only one open operation may have."""
    return f"{kind}:{target}"


def plan_request(plane: ControlPlane, kind: Kind, parameters: Mapping[str, Any]) -> Request:
    """Check a request against the fleet and plan it.

    Raises:
        InvalidError: it cannot be obeyed as it stands.
        NotFoundError: its node, link, site or revision is unknown.
        ConflictError: the fleet, or what is known of it, does not allow it now.
    """
    sightings = load_sightings(plane)
    with plane.database.reading() as session:
        request = _PLANNERS[kind](_Asked(session, sightings, parameters))
    return replace(request, target=target_of(kind, parameters), parameters=dict(parameters))


def _drain(asked: _Asked) -> Request:
    node = asked.node()
    _refuse(asked, node, automatic=False)
    steps = plan_drain(node, asked.timeout_s(), force=asked.force())
    return _node_request(Kind.DRAIN, node, steps)


def _undrain(asked: _Asked) -> Request:
    node = asked.node()
    if node.state is NodeState.DISABLED:
        raise ConflictError(f"{node.name} is disabled.")
    return _node_request(Kind.UNDRAIN, node, plan_undrain(node))


def _switch(asked: _Asked) -> Request:
    node = asked.node()
    role = _role_of(asked.parameters.get("role"))
    if node.role is role:
        raise InvalidError(f"{node.name} is a {role} node already.")
    _refuse(asked, node, automatic=True)
    return _node_request(Kind.SWITCH_ROLE, node, plan_switch(node, role, asked.timeout_s(), force=asked.force()))


def _restart(asked: _Asked) -> Request:
    node = asked.node()
    if node.is_stock:
        raise InvalidError(f"{node.name} is a stock vLLM, which nobody can restart over its API; do it where it runs.")
    _refuse(asked, node, automatic=True)
    return _node_request(Kind.RESTART, node, plan_restart(node, asked.timeout_s(), force=asked.force()))


def _rebalance(asked: _Asked) -> Request:
    site = find(load_sites(asked.session), "site", str(asked.parameters.get("site")))
    nodes = [node for node in load_nodes(asked.session) if node.site == site.name]
    stale = [
        node.name
        for node in nodes
        if node.state is NodeState.READY and judge_health(asked.sightings.get(node.name)) is Health.STALE
    ]
    if stale:
        raise ConflictError("; ".join(why_stale(name, asked.sightings.get(name)) for name in stale) + ".")
    try:
        plan = plan_rebalance(nodes, _ratio(asked, site.name))
    except RebalanceError as error:
        raise InvalidError(f"{error}.") from None
    if not plan.moves:
        raise InvalidError(f"Site {site.name} has that ratio already.")
    moves = [(move.node, move.role) for move in plan.moves]
    result = {
        "before": {role.value: count for role, count in plan.before.items()},
        "after": {role.value: count for role, count in plan.after.items()},
        "moves": [{"node": node.name, "from": node.role.value, "to": role.value} for node, role in moves],
    }
    return Request(
        Kind.REBALANCE,
        tuple(f"node/{node.name}" for node, _ in moves),
        plan_moves(moves, asked.timeout_s()),
        result,
    )


def _ratio(asked: _Asked, site: str) -> Mapping[Role, int]:
    """P : RLD : MD as somebody gave it, or as the active policy has it for the site."""
    target = asked.parameters.get("target")
    if bool(target) == bool(asked.parameters.get("to_policy")):
        raise InvalidError("Say either a target, as in 3:1:2, or that the policy's is meant.")
    if target:
        return parse_ratio(str(target))
    pools = load_pools(asked.session, site)
    if all(pool.target is None for pool in pools):
        raise InvalidError(f"The active policy has no pools.{site}.<role>.target.")
    return wanted_counts(pools)


def _shape_link(asked: _Asked) -> Request:
    link = asked.link()
    if not link.admin_url:
        raise InvalidError(f"Nothing shapes link {link.name}: it has no WAN relay.")
    shape = dict(asked.parameters.get("shape") or {})
    unknown = sorted(set(shape) - set(SHAPE_FIELDS))
    if unknown or not shape:
        raise InvalidError(f"A shape has some of {', '.join(SHAPE_FIELDS)}.")
    changes = {f"link.{link.name}.{name}": value for name, value in shape.items()}
    base = find_active_number(asked.session)
    _, differences = preview_revision(asked.session, RevisionDraft("", base, changes=changes))

    def prepares(plane: ControlPlane, principal: Principal, reason: str) -> tuple[StepPlan, ...]:
        draft = RevisionDraft(reason, base, changes=changes, apply=True)
        return plan_enforcement(link, create_revision(plane, principal, draft).number)

    result = {"changes": [{"path": d.path, "before": d.before, "after": d.after} for d in differences]}
    steps = plan_enforcement(link, (base or 0) + 1)
    return Request(Kind.SHAPE_LINK, (f"link/{link.name}", "policy"), steps, result, prepares)


def _probe_link(asked: _Asked) -> Request:
    link = asked.link()
    if not link.relay_host:
        raise InvalidError(f"Link {link.name} has no WAN relay to measure through.")
    size_bytes = int(asked.parameters.get("size_bytes") or DEFAULT_PROBE_BYTES)
    return Request(Kind.PROBE_LINK, (), plan_probe(link, size_bytes))


def _apply_policy(asked: _Asked) -> Request:
    number = int(asked.parameters.get("revision") or 0)
    load_revision(asked.session, number)
    base = find_active_number(asked.session)

    def prepares(plane: ControlPlane, principal: Principal, reason: str) -> tuple[StepPlan, ...]:
        return plan_convergence(apply_revision(plane, principal, number, reason, base).revision.number)

    return Request(Kind.APPLY_POLICY, ("policy",), plan_convergence(number), None, prepares)


_PLANNERS: dict[Kind, Callable[[_Asked], Request]] = {
    Kind.DRAIN: _drain,
    Kind.UNDRAIN: _undrain,
    Kind.SWITCH_ROLE: _switch,
    Kind.RESTART: _restart,
    Kind.REBALANCE: _rebalance,
    Kind.SHAPE_LINK: _shape_link,
    Kind.PROBE_LINK: _probe_link,
    Kind.APPLY_POLICY: _apply_policy,
}


def _node_request(kind: Kind, node: Node, steps: tuple[StepPlan, ...]) -> Request:
    return Request(kind, (f"node/{node.name}",), steps)


def _refuse(asked: _Asked, node: Node, *, automatic: bool) -> None:
    if node.state is NodeState.DISABLED:
        raise ConflictError(f"{node.name} is disabled.")
    nodes = load_nodes(asked.session)
    reason = why_not_held(nodes, node, asked.sightings, automatic=automatic, force=asked.force())
    if reason:
        raise ConflictError(f"{reason}.")


def _role_of(value: Any) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise InvalidError(f"A role is one of {', '.join(Role)}.") from None
