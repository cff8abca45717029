"""What is known of every node: what its observer saw, unless the agent of its site has fallen silent."""

from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from control.domain.staleness import AGENT_SILENT, Sighting, Sightings
from control.services.fleet import load_nodes
from control.services.plane import ControlPlane
from control.store.tables import SettingRow

AGENT_SILENT_AFTER = timedelta(seconds=30)
_PREFIX = "agent."


def record_agent(plane: ControlPlane, site: str) -> None:
    """The agent of a site has answered."""
    with plane.database.unit_of_work(plane.send) as work:
        work.session.merge(SettingRow(key=_PREFIX + site, value="seen", updated_at=plane.now(), updated_by="agent"))


def load_agents(session: Session) -> dict[str, datetime]:
    """When the agent of each site was last heard; a site whose agent never was is missing."""
    agents = session.exec(select(SettingRow).where(col(SettingRow.key).startswith(_PREFIX)))
    return {agent.key.removeprefix(_PREFIX): agent.updated_at for agent in agents}


def load_sightings(plane: ControlPlane) -> Sightings:
    """What may be judged by; a site whose agent has never answered is known by its observer alone.

    Nothing can be done at a site without its agent, so what its observer still says counts as old as the silence.
    """
    seen = plane.sightings()
    now = plane.now()
    with plane.database.reading() as session:
        agents = session.exec(select(SettingRow).where(col(SettingRow.key).startswith(_PREFIX))).all()
        silent = {
            agent.key.removeprefix(_PREFIX): (now - agent.updated_at).total_seconds()
            for agent in agents
            if now - agent.updated_at > AGENT_SILENT_AFTER
        }
        if not silent:
            return seen
        nodes = load_nodes(session)
    return {**seen, **{node.name: Sighting(AGENT_SILENT, silent[node.site]) for node in nodes if node.site in silent}}
