"""What control does itself for a step: it changes the stored fleet, or looks whether others have followed."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlmodel import select

from control.domain.operations import Kind, Report, Stage, Step, Verdict
from control.domain.staleness import Sightings, why_not_held
from control.domain.topology import NodeState, Role
from control.services.audit import record_event
from control.services.fleet import load_nodes
from control.services.fleet_push import send_fleet
from control.services.fleet_revision import load_fleet_revision, raise_fleet_revision
from control.services.operation_store import Stored
from control.services.plane import ControlPlane
from control.services.policies import find_active_number
from control.services.rollout import RolloutState
from control.store.session import UnitOfWork
from control.store.tables import GatewayReportRow, GatewayRow, LinkReportRow, NodeRow


@dataclass(frozen=True, slots=True)
class Scene:
    """The transaction and the operation that a stage acts in, and what was seen of the nodes before it began."""

    work: UnitOfWork
    plane: ControlPlane
    stored: Stored
    sightings: Sightings

    @property
    def actor(self) -> str:
        """Who asked for the operation."""
        return self.stored.row.actor


def perform(scene: Scene, step: Step) -> Report:
    """Carry out a step of control's own; may be called again while it says `again`."""
    return _PERFORMERS[step.plan.stage](scene, step)


def _hold(scene: Scene, step: Step) -> Report:
    node = _lock_node(scene, step.plan.subject)
    if node is None:
        return _gone(step)
    nodes = load_nodes(scene.work.session)
    own = next(other for other in nodes if other.name == node.name)
    if own.state is NodeState.DISABLED:
        return Report(Verdict.FAILED, error=f"{node.name} is disabled")
    reason = why_not_held(
        nodes,
        own,
        scene.sightings,
        automatic=scene.stored.operation.kind is not Kind.DRAIN,
        force=bool(step.plan.arguments.get("force")),
    )
    if reason:
        return Report(Verdict.FAILED, error=reason)
    before = {"role": node.role, "state": node.state}
    _change_node(scene, node, "node.hold", state=NodeState.DRAINING)
    return Report(Verdict.DONE, before)


def _switch(scene: Scene, step: Step) -> Report:
    node = _lock_node(scene, step.plan.subject)
    if node is None:
        return _gone(step)
    _change_node(scene, node, "node.switch", role=Role(step.plan.arguments["role"]))
    return Report(Verdict.DONE)


def _admit(scene: Scene, step: Step) -> Report:
    node = _lock_node(scene, step.plan.subject)
    if node is None:
        return _gone(step)
    if node.state == NodeState.DISABLED:
        return Report(Verdict.FAILED, error=f"{node.name} has been disabled meanwhile")
    _change_node(scene, node, "node.admit", state=NodeState.READY)
    return Report(Verdict.DONE)


def _restore(scene: Scene, step: Step) -> Report:
    node = _lock_node(scene, step.plan.subject)
    if node is None:
        return _gone(step)
    before = step.plan.arguments
    # Whoever disabled it meanwhile meant it.
    state = NodeState.DISABLED if node.state == NodeState.DISABLED else NodeState(before["state"])
    _change_node(scene, node, "node.restore", role=Role(before["role"]), state=state)
    return Report(Verdict.DONE)


def _converge(scene: Scene, step: Step) -> Report:
    """Every gateway has said that it runs what is stored, or something newer."""
    session = scene.work.session
    revision = step.plan.arguments.get("revision") or find_active_number(session) or 0
    fleet_revision = int(step.progress.get("fleet_revision") or load_fleet_revision(session))
    reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    waiting_for = [
        words
        for name in session.exec(select(GatewayRow.name).order_by(GatewayRow.name))
        if (words := _why_behind(name, reports.get(name), int(revision), fleet_revision))
    ]
    progress = {"fleet_revision": fleet_revision, "waiting_for": waiting_for}
    return Report(Verdict.AGAIN if waiting_for else Verdict.DONE, progress)


def _why_behind(name: str, report: GatewayReportRow | None, revision: int, fleet_revision: int) -> str:
    if report is None:
        return f"gateway {name} has not been heard"
    if report.state == RolloutState.FAILED:
        return f"gateway {name}: {report.error}"
    running = (report.revision or 0, report.fleet_revision or 0)
    if running[0] >= revision and running[1] >= fleet_revision:
        return ""
    return f"gateway {name} runs policy {running[0]} on fleet {running[1]}, not {revision} on {fleet_revision}"


def _enforce(scene: Scene, step: Step) -> Report:
    """The relay of a link has said that it enforces the revision, or a newer one."""
    wanted = int(step.plan.arguments["revision"])
    report = scene.work.session.get(LinkReportRow, step.plan.subject, populate_existing=True)
    if report is None:
        waiting_for = ["the relay has not been heard"]
    elif report.state == RolloutState.FAILED:
        waiting_for = [report.error]
    elif (report.revision or 0) < wanted:
        waiting_for = [f"the relay enforces revision {report.revision}"]
    else:
        return Report(Verdict.DONE, {"revision": report.revision, "waiting_for": []})
    return Report(Verdict.AGAIN, {"waiting_for": waiting_for})


_PERFORMERS: dict[Stage, Callable[[Scene, Step], Report]] = {
    Stage.HOLD: _hold,
    Stage.SWITCH: _switch,
    Stage.ADMIT: _admit,
    Stage.RESTORE: _restore,
    Stage.CONVERGE: _converge,
    Stage.ENFORCE: _enforce,
}


def _lock_node(scene: Scene, name: str) -> NodeRow | None:
    """The node as nobody else can change it before this transaction ends; the fleet gets its next revision."""
    raise_fleet_revision(scene.work.session, scene.plane.now(), scene.actor)
    return scene.work.session.get(NodeRow, name, populate_existing=True)


def _change_node(
    scene: Scene, node: NodeRow, action: str, *, role: Role | None = None, state: NodeState | None = None
) -> None:
    before = {"role": node.role, "state": node.state}
    node.role = node.role if role is None else role.value
    node.state = node.state if state is None else state.value
    after = {"role": node.role, "state": node.state}
    scene.work.session.add(node)
    if after != before:
        record_event(
            scene.work.session,
            scene.plane.now(),
            scene.actor,
            action,
            f"node/{node.name}",
            before=before,
            after=after,
            reason=f"operation {scene.stored.id}: {scene.stored.row.reason}",
        )
    send_fleet(scene.work)


def _gone(step: Step) -> Report:
    return Report(Verdict.FAILED, error=f"there is no node {step.plan.subject} any more")
