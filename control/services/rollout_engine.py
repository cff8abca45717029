"""Moves roll-outs on: looks, decides, and does what follows; as often as anybody asks, with the same effect."""

import logging
from dataclasses import dataclass

from control.domain.rollout import Phase, Rollout, advance
from control.errors import NotFoundError
from control.services.access import Principal, Role
from control.services.audit import record_event
from control.services.fleet_push import tell_gateways
from control.services.fleet_revision import raise_fleet_revision
from control.services.plane import ControlPlane
from control.services.policies import POLICY_LOCK, activate_copy, load_revision
from control.services.rollout_readings import Look, look_at
from control.services.rollout_store import (
    StoredRollout,
    find_open_rollout,
    judgement_document,
    load_rollout,
    save_rollout,
)
from control.store.named_lock import lock_name
from control.store.session import UnitOfWork
from control.store.tables import AnnotationRow

# What nobody asked for at that moment: the guard and the clock decide.
GUARD = Principal("system", Role.OPERATOR)
# A roll-out holds and goes on as data come and go; of its phases only these change what runs.
_MARKED = {
    Phase.CANARY: "canary began",
    Phase.PROMOTING: "goes to all",
    Phase.ABORTING: "is taken back",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a roll-out inside a transaction that holds `POLICY_LOCK`, and who makes it."""

    work: UnitOfWork
    plane: ControlPlane
    stored: StoredRollout
    principal: Principal
    reason: str


def sweep_rollouts(plane: ControlPlane) -> int | None:
    """Move the open roll-out on.

    Returns:
        Its number while it is open still; None where nothing is under way.
    """
    with plane.database.reading() as session:
        stored = find_open_rollout(session)
    if stored is None:
        return None
    return stored.id if advance_rollout(plane, stored.id) else None


def advance_rollout(plane: ControlPlane, number: int) -> bool:
    """Look at a roll-out once and do what follows; of several at a time the slower ones change nothing.

    Returns:
        Whether it is open still.
    """
    with plane.database.reading() as session:
        try:
            seen = load_rollout(session, number)
        except NotFoundError:
            return False
        if not seen.rollout.phase.is_open:
            return False
        look = look_at(session, seen, plane.now())
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        stored = load_rollout(work.session, number, lock=True)
        if (stored.row.version, stored.rollout) != (seen.row.version, seen.rollout):
            log.info("roll-out %d has been moved on meanwhile", number)
            return stored.rollout.phase.is_open
        if stored.rollout.has_canary:
            stored.row.judgement = judgement_document(look.sight.judgement, look.groups)
        after = advance(stored.rollout, look.sight)
        move_on(Move(work, plane, stored, GUARD, after.ending or stored.row.reason), after, look)
    return after.phase.is_open


def move_on(move: Move, after: Rollout, look: Look | None = None) -> None:
    """Store where a roll-out is now, and what a new phase brings: orders to gateways, an audit event, a mark."""
    stored, session = move.stored, move.work.session
    before = stored.rollout
    now = move.plane.now()
    if after.phase is Phase.CANARY and stored.row.canary_at is None and look is not None:
        stored.row.canary_at = now
        stored.row.before = look.before.to_values()
    save_rollout(session, stored, after, now)
    if after.phase is before.phase:
        return
    _audit(move, before, after)
    if after.phase is Phase.PROMOTING:
        row = load_revision(session, stored.row.revision)
        activate_copy(move.work, move.plane, move.principal, row=row, reason=_why(stored, move.reason))
    elif after.phase is Phase.ABORTING and before.phase is Phase.PROMOTING:
        row = load_revision(session, stored.row.base_revision)
        stored.row.reverted_to = activate_copy(
            move.work, move.plane, move.principal, row=row, reason=_why(stored, move.reason)
        ).number
        session.add(stored.row)
    elif after.has_canary != before.has_canary:
        # The fleet's revision rises, so that an order from before cannot bring back what ends here.
        raise_fleet_revision(session, now, move.principal.name)
        tell_gateways(move.work)
    log.info("roll-out %d is %s: %s", stored.id, after.phase, move.reason)


def _why(stored: StoredRollout, reason: str) -> str:
    return f"Roll-out {stored.id}: {reason}"[:500]


def _audit(move: Move, before: Rollout, after: Rollout) -> None:
    stored, session, now = move.stored, move.work.session, move.plane.now()
    row = stored.row
    record_event(
        session,
        now,
        move.principal.name,
        f"rollout.{after.phase}",
        f"rollout/{stored.id}",
        before={"phase": before.phase.value},
        after={"phase": after.phase.value, "revision": row.revision, "ending": after.ending},
        reason=move.reason,
    )
    words = _MARKED.get(after.phase)
    if words and not (after.phase is Phase.CANARY and before.phase is Phase.PAUSED):
        text = f"Roll-out {stored.id} of r{row.revision} {words}"
        session.add(AnnotationRow(at=now, text=text, actor=move.principal.name, created_at=now))
