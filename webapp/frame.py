"""What surrounds every page: the sites there are, what the address selects, and the policy in force."""

from dataclasses import dataclass
from datetime import datetime

from fastapi import Request

from control.errors import NotFoundError
from control.services.fleet import load_snapshot
from control.services.plane import ControlPlane
from control.services.policies import load_active
from webapp.selection import Selection, link_with


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """Which revision is in force, who made it so, when and why."""

    number: int
    actor: str
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The bar of one page."""

    path: str
    parameters: dict[str, str]
    sites: tuple[str, ...]
    model: str
    selection: Selection
    policy: ActivePolicy | None
    now: datetime

    def link(self, **changes: str) -> str:
        """This page with some parameters of its address changed."""
        return link_with(self.path, self.parameters, **changes)


def load_frame(plane: ControlPlane, request: Request) -> Frame:
    """The frame of a page as the fleet is now."""
    with plane.database.reading() as session:
        fleet = load_snapshot(session)
        try:
            active = load_active(session)
        except NotFoundError:
            policy = None
        else:
            activation = active.activation
            policy = ActivePolicy(active.revision.number, activation.actor, activation.activated_at, activation.reason)
    sites = tuple(site.name for site in fleet.sites)
    parameters = dict(request.query_params)
    selection = Selection.of(parameters, sites)
    return Frame(request.url.path, parameters, sites, fleet.model, selection, policy, plane.now())
