"""Guarded roll-outs as they are asked for: planned, opened, promoted, paused, aborted."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from control.domain.access import Scope
from control.domain.canary import Trial, plan_trial
from control.domain.guard_rules import GroupFigures, Guard
from control.domain.policy import PolicyError, effective_values
from control.domain.rollout import Phase, Rollout, RolloutError, abort, pause, promote, resume
from control.errors import ConflictError, InvalidError, InvalidPolicyError, StaleRevisionError
from control.services.access import Principal, Role, require_role, require_scope
from control.services.audit import record_event
from control.services.fleet import find, load_gateways, load_sites
from control.services.plane import ControlPlane
from control.services.policies import POLICY_LOCK, copy_revision, find_active_number, load_active, load_revision
from control.services.rollout_engine import Move, move_on
from control.services.rollout_readings import Look, load_before, look_at, why_not_begun
from control.services.rollout_store import (
    OPEN_KEY,
    StoredRollout,
    judgement_document,
    load_rollout,
    refuse_during_rollout,
    rollout_of,
)
from control.store.named_lock import lock_name
from control.store.tables import PolicyRevisionRow, RolloutRow


@dataclass(frozen=True, slots=True)
class RolloutDraft:
    """A wish for a roll-out. Without a site the canary is a share of all requests, the policy's where none is given.

    `base_revision` is the active revision that its author looked at; `bake_s` None leaves it to the policy.
    """

    revision: int
    reason: str
    site: str | None = None
    share: float | None = None
    bake_s: float | None = None
    base_revision: int | None = None


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a roll-out would do: what its canary tries, what waits for all, and what it would be compared with."""

    base: PolicyRevisionRow
    candidate: PolicyRevisionRow
    site: str | None
    share: float
    guard: Guard
    trial: Trial
    before: GroupFigures
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeWish:
    """A wish to change a roll-out; `expected` are the versions that its author may have looked at, None for any."""

    number: int
    reason: str
    expected: Collection[str] | None = None


def plan_rollout(session: Session, draft: RolloutDraft, now: datetime) -> RolloutPlan:
    """Check a wish and plan it; writes nothing.

    Raises:
        NotFoundError: there is no such revision or site.
        InvalidError, InvalidPolicyError: it cannot be tried by some requests only, or is no canary.
        StaleRevisionError: the base is no longer active.
        RolloutOpenError: another one is under way.
    """
    refuse_during_rollout(session, also_ending=True)
    active = load_active(session).revision
    if draft.base_revision is not None and draft.base_revision != active.number:
        raise StaleRevisionError(
            f"The roll-out was made against revision {draft.base_revision}; {active.number} is active now."
        )
    candidate = load_revision(session, draft.revision)
    if candidate.number == active.number:
        raise InvalidError(f"Revision {candidate.number} is active already.")
    trial = _trial(active, candidate)
    values = effective_values(active.document)
    guard = Guard.from_values(values)
    if draft.bake_s is not None:
        guard = replace(guard, bake_s=draft.bake_s)
    share = _canary_share(session, draft, float(values["guard.canary_share"]))
    before = load_before(session, guard, active.number, draft.site, now)
    lacks = tuple(why_not_begun(session, guard, before, now))
    return RolloutPlan(active, candidate, draft.site, share, guard, trial, before, lacks)


def open_rollout(plane: ControlPlane, principal: Principal, draft: RolloutDraft) -> StoredRollout:
    """Begin a roll-out: a draft, whose canary begins once there is enough to compare it with.

    A revision older than the active one goes out as a copy under a new number, as gateways obey only rising ones.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError, InvalidError, InvalidPolicyError, StaleRevisionError, RolloutOpenError: as `plan_rollout`.
    """
    _require(principal)
    if not draft.reason.strip():
        raise InvalidError("Say why: a change needs a reason.")
    now = plane.now()
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        lock_name(session, POLICY_LOCK)
        plan = plan_rollout(session, draft, now)
        candidate = plan.candidate
        if candidate.number < plan.base.number:
            candidate = copy_revision(session, plane, principal, row=candidate, reason=draft.reason)
        row = RolloutRow(
            revision=candidate.number,
            base_revision=plan.base.number,
            open_key=OPEN_KEY,
            canary_site=plan.site,
            canary_share=plan.share,
            guard=plan.guard.to_values(),
            phase=Phase.DRAFT.value,
            waiting_for=list(plan.waiting_for),
            actor=principal.name,
            reason=draft.reason,
            created_at=now,
        )
        session.add(row)
        try:
            session.flush()
        except IntegrityError as error:
            raise ConflictError("Another roll-out was opened at this moment.") from error
        after = {"revision": row.revision, "base_revision": row.base_revision, "guard": row.guard}
        canary = {"site": row.canary_site, "share": row.canary_share}
        record_event(
            session,
            now,
            principal.name,
            "rollout.open",
            f"rollout/{row.id}",
            after={**after, "canary": canary},
            reason=draft.reason,
        )
    return StoredRollout(row, rollout_of(row))


def promote_rollout(
    plane: ControlPlane, principal: Principal, wish: ChangeWish, *, force: bool = False
) -> StoredRollout:
    """Give the revision to all without further baking; `force` against the guard's word, or without one.

    Raises:
        ForbiddenError, NotFoundError: the principal is no operator; there is no such roll-out.
        ConflictError: there is no canary, or the guard does not let it go forward.
        StaleRevisionError: it is not as expected.
    """

    def change(rollout: Rollout, look: Look) -> Rollout:
        return promote(rollout, look.sight.judgement, wish.reason, force=force)

    return _change(plane, principal, wish, change)


def pause_rollout(plane: ControlPlane, principal: Principal, wish: ChangeWish) -> StoredRollout:
    """Stop going forward; the canary stays, and the guard may still abort it. Raises as `promote_rollout`."""
    return _change(plane, principal, wish, lambda rollout, _: pause(rollout))


def resume_rollout(plane: ControlPlane, principal: Principal, wish: ChangeWish) -> StoredRollout:
    """Go on where it was paused. Raises as `promote_rollout`."""
    return _change(plane, principal, wish, lambda rollout, _: resume(rollout))


def abort_rollout(plane: ControlPlane, principal: Principal, wish: ChangeWish) -> StoredRollout:
    """Go back to the revision that was active before. Raises as `promote_rollout`."""
    return _change(plane, principal, wish, lambda rollout, _: abort(rollout, wish.reason))


def version_of(stored: StoredRollout) -> str:
    """What stands for a roll-out's phase in an ETag."""
    return f"{stored.id}.{stored.row.version}"


def _change(
    plane: ControlPlane, principal: Principal, wish: ChangeWish, change: Callable[[Rollout, Look], Rollout]
) -> StoredRollout:
    number, reason = wish.number, wish.reason
    _require(principal)
    if not reason.strip():
        raise InvalidError("Say why: a change needs a reason.")
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        stored = load_rollout(work.session, number, lock=True)
        if wish.expected is not None and version_of(stored) not in wish.expected:
            raise StaleRevisionError(f"Roll-out {number} is {stored.row.phase} now.")
        look = look_at(work.session, stored, plane.now())
        try:
            after = change(stored.rollout, look)
        except RolloutError as error:
            raise ConflictError(f"Roll-out {number} cannot be changed so: {error}.") from None
        active = find_active_number(work.session)
        if stored.rollout.phase is Phase.PROMOTING and active != stored.row.revision:
            raise ConflictError(f"Roll-out {number} has nothing to take back: r{active} has been applied since.")
        if stored.rollout.has_canary:
            stored.row.judgement = judgement_document(look.sight.judgement, look.groups)
        move_on(Move(work, plane, stored, principal, reason), after)
    return stored


def _require(principal: Principal) -> None:
    require_role(principal, Role.OPERATOR)
    require_scope(principal, Scope.POLICIES_WRITE)


def _trial(active: PolicyRevisionRow, candidate: PolicyRevisionRow) -> Trial:
    try:
        trial = plan_trial(active.document, candidate.document)
    except PolicyError as error:
        raise InvalidPolicyError(
            "What a canary can try of it is no policy without the rest of it; apply it instead.", error.problems
        ) from error
    if not trial.tried:
        held = ", ".join(change.path for change in trial.held_back) or "nothing"
        raise InvalidError(
            f"Nothing in revision {candidate.number} can be tried by some requests only; it changes {held}."
            " Apply it instead."
        )
    return trial


def _canary_share(session: Session, draft: RolloutDraft, usual: float) -> float:
    """The share of requests that are the canary; 1 for those of a site."""
    if draft.site is None:
        return usual if draft.share is None else draft.share
    if draft.share is not None:
        raise InvalidError("A canary is either a site or a share of all requests.")
    find(load_sites(session), "site", draft.site)
    sites = {gateway.site for gateway in load_gateways(session)}
    if draft.site not in sites:
        raise InvalidError(f"Site {draft.site} has no gateway, so no request would be the canary's.")
    if sites == {draft.site}:
        raise InvalidError(
            f"All gateways are at site {draft.site}, so there would be no control group; take a share of the requests."
        )
    return 1.0
