"""A new secret for all sites: made here, sent once to each site's agent, and followed until every program has it.

The database never holds it: agents keep it, and tell those that were not reached when the sweep asks them to.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlmodel import Session

from control.domain.access import Scope
from control.domain.topology import FleetSnapshot
from control.errors import ConflictError, InvalidError
from control.orders import ROTATE_SECRET, Order, site_queue
from control.services.access import Principal, Role, require_role, require_scope
from control.services.audit import record_event
from control.services.fleet import load_snapshot
from control.services.plane import ControlPlane
from control.services.reports import has_room
from control.store.counters import lock_counter
from control.store.tables import SettingRow

AGENT = "agent"
_SETTING = "site_secret.rotation"
_MAX_ERROR_CHARS = 200


class RotationState(StrEnum):
    """How far a rotation is."""

    OPEN = "open"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Rotation:
    """The newest rotation; `waiting_for` names programs that do not have the new secret, `failed` says why not."""

    number: int
    actor: str
    reason: str
    started_at: datetime
    previous_until: datetime
    state: RotationState
    waiting_for: tuple[str, ...]
    failed: Mapping[str, str]


def load_rotation(session: Session, now: datetime) -> Rotation | None:
    """The newest rotation, judged by the fleet as it is now; None before the first."""
    row = session.get(SettingRow, _SETTING)
    return _judged(row.value, load_snapshot(session), now) if row is not None and row.value else None


def start_rotation(plane: ControlPlane, principal: Principal, grace: timedelta, reason: str) -> tuple[Rotation, str]:
    """Make a new secret and send it to every site; the present one is accepted for the time of `grace`.

    Returns:
        The rotation and its secret, which nobody can read again.

    Raises:
        ForbiddenError: the principal is no administrator.
        InvalidError: no reason.
        ConflictError: the last rotation has not reached everybody, and still may.
    """
    require_role(principal, Role.ADMIN)
    require_scope(principal, Scope.ACCESS_ADMIN)
    if not reason.strip():
        raise InvalidError("Say why: a change needs a reason.")
    secret = secrets.token_urlsafe(32)
    with plane.database.unit_of_work(plane.send) as work:
        at = plane.now()
        row = lock_counter(work.session, _SETTING, at, principal.name)
        fleet = load_snapshot(work.session)
        last = _judged(row.value, fleet, at) if row.value else None
        if last is not None and last.state is RotationState.OPEN:
            raise ConflictError(
                f"Rotation {last.number} still waits for {_listed(last.waiting_for)}: wait for its end, at the latest "
                f"{last.previous_until:%Y-%m-%d %H:%M:%S} UTC."
            )
        facts = {
            "number": last.number + 1 if last else 1,
            "actor": principal.name,
            "reason": reason,
            "started_at": at.isoformat(),
            "previous_until": (at + grace).isoformat(),
            "sites": {},
        }
        row.value, row.updated_at, row.updated_by = facts, at, principal.name
        work.session.add(row)
        after = {"rotation": facts["number"], "grace_s": grace.total_seconds()}
        record_event(work.session, at, principal.name, "site_secret.rotate", "site_secret", after=after, reason=reason)
        for site in fleet.sites:
            work.enqueue(_order(fleet, site.name, facts, secret, expires_s=grace.total_seconds()))
    return _judged(facts, fleet, at), secret


def record_secret_report(plane: ControlPlane, arguments: Mapping[str, Any]) -> bool:
    """Keep which programs of a site an agent has told; False where another rotation is the newest.

    Raises:
        KeyError, TypeError, ValueError: the arguments are no report's.
    """
    site, told = str(arguments["site"]), [str(name) for name in arguments["told"]]
    failed = {str(name): str(error)[:_MAX_ERROR_CHARS] for name, error in dict(arguments["failed"]).items()}
    with plane.database.unit_of_work(plane.send) as work:
        row = work.session.get(SettingRow, _SETTING, with_for_update=True)
        if row is None or not row.value or row.value["number"] != int(arguments["rotation"]):
            return False
        known = row.value["sites"].get(site, {"told": []})["told"]
        heard = {"told": sorted({*known, *told}), "failed": failed}
        row.value = {**row.value, "sites": {**row.value["sites"], site: heard}}
        row.updated_at = plane.now()
        work.session.add(row)
    return True


def sweep_secret(plane: ControlPlane, waiting_orders: Callable[[str], int]) -> list[str]:
    """Ask the agents of sites where somebody lacks the new secret to tell them again, as long as the old one counts.

    Returns:
        Names of the sites that were asked.
    """
    with plane.database.reading() as session:
        row = session.get(SettingRow, _SETTING)
        if row is None or not row.value or plane.now() >= datetime.fromisoformat(row.value["previous_until"]):
            return []
        fleet = load_snapshot(session)
    waiting = _waiting(row.value, fleet)
    sites = [site.name for site in fleet.sites if waiting[site.name] and has_room(waiting_orders, site.name)]
    for site in sites:
        plane.send(_order(fleet, site, row.value))
    return sites


def _order(
    fleet: FleetSnapshot, site: str, facts: Mapping[str, Any], secret: str = "", expires_s: float | None = None
) -> Order:
    arguments = {
        "site": site,
        "rotation": facts["number"],
        "previous_until_s": datetime.fromisoformat(facts["previous_until"]).timestamp(),
        "targets": _targets(fleet, site),
        **({"secret": secret} if secret else {}),
    }
    return Order(ROTATE_SECRET, site_queue(site), arguments, expires_s)


def _targets(fleet: FleetSnapshot, site: str) -> dict[str, str]:
    """Where each program of a site takes a new secret, by its name."""
    nodes = {node.name: f"{node.url}/pdd/v1/secret" for node in fleet.nodes if node.site == site}
    gateways = {gateway.name: f"{gateway.url}/admin/v1/secret" for gateway in fleet.gateways if gateway.site == site}
    relays = {link.name: f"{link.admin_url}/secret" for link in fleet.links if link.source == site and link.admin_url}
    return {**relays, **gateways, **nodes}


def _waiting(facts: Mapping[str, Any], fleet: FleetSnapshot) -> dict[str, list[str]]:
    told = {site: set(heard["told"]) for site, heard in facts["sites"].items()}
    return {
        site.name: [name for name in (AGENT, *_targets(fleet, site.name)) if name not in told.get(site.name, ())]
        for site in fleet.sites
    }


def _judged(facts: Mapping[str, Any], fleet: FleetSnapshot, now: datetime) -> Rotation:
    waiting = [f"{site}/{name}" for site, names in _waiting(facts, fleet).items() for name in names]
    previous_until = datetime.fromisoformat(facts["previous_until"])
    failed = {
        f"{site}/{name}": error for site, heard in facts["sites"].items() for name, error in heard["failed"].items()
    }
    state = RotationState.OPEN if now < previous_until else RotationState.INCOMPLETE
    return Rotation(
        number=facts["number"],
        actor=facts["actor"],
        reason=facts["reason"],
        started_at=datetime.fromisoformat(facts["started_at"]),
        previous_until=previous_until,
        state=state if waiting else RotationState.COMPLETE,
        waiting_for=tuple(waiting),
        failed={name: error for name, error in failed.items() if name in waiting},
    )


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
