"""Policy revisions: created, applied and taken back, each with its reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from control.domain.access import Scope
from control.domain.policy import FieldChange, FieldProblem, PolicyError, apply_changes, diff_policies, parse_policy
from control.domain.policy_scopes import find_scoped_field
from control.errors import (
    InvalidError,
    InvalidPolicyError,
    NotFoundError,
    PreconditionRequiredError,
    StaleRevisionError,
)
from control.services.access import Principal, Role, require_role, require_scope
from control.services.audit import record_event
from control.services.canaries import load_canary
from control.services.fleet import load_snapshot
from control.services.link_rollout import shape_orders
from control.services.plane import ControlPlane
from control.services.policy_scopes import check_targets
from control.services.rollout import push_orders
from control.services.rollout_store import refuse_during_rollout
from control.store.named_lock import lock_name
from control.store.session import UnitOfWork
from control.store.tables import PolicyActivationRow, PolicyRevisionRow

MAX_DOCUMENT_BYTES = 65_536
POLICY_LOCK = "policy"


@dataclass(frozen=True, slots=True)
class RevisionDraft:
    """A wish for a new revision: a whole document, or changes by path to the active one and paths to take out of it.

    `base_revision` is the active revision that its author looked at.
    """

    reason: str
    base_revision: int | None
    document: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] | None = None
    apply: bool = False
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Active:
    """What should run, and since when."""

    revision: PolicyRevisionRow
    activation: PolicyActivationRow


def load_active(session: Session) -> Active:
    """The revision that was applied last.

    Raises:
        NotFoundError: none ever was.
    """
    activation = session.exec(select(PolicyActivationRow).order_by(col(PolicyActivationRow.id).desc())).first()
    if activation is None:
        raise NotFoundError("No policy has been applied yet.")
    return Active(load_revision(session, activation.revision), activation)


def find_active_number(session: Session) -> int | None:
    """Number of the revision that was applied last; None before the first."""
    return session.exec(select(PolicyActivationRow.revision).order_by(col(PolicyActivationRow.id).desc())).first()


def load_revision(session: Session, number: int) -> PolicyRevisionRow:
    """One revision.

    Raises:
        NotFoundError: no revision has that number.
    """
    row = session.get(PolicyRevisionRow, number)
    if row is None:
        raise NotFoundError(f"There is no policy revision {number}.")
    return row


def load_revisions(session: Session, limit: int, before_number: int | None = None) -> list[PolicyRevisionRow]:
    """Revisions, newest first, older than the given one."""
    query = select(PolicyRevisionRow).order_by(col(PolicyRevisionRow.number).desc()).limit(limit)
    if before_number is not None:
        query = query.where(col(PolicyRevisionRow.number) < before_number)
    return list(session.exec(query))


def load_activations(session: Session, limit: int) -> list[PolicyActivationRow]:
    """What was applied when, newest first."""
    return list(session.exec(select(PolicyActivationRow).order_by(col(PolicyActivationRow.id).desc()).limit(limit)))


def preview_revision(session: Session, draft: RevisionDraft) -> tuple[dict[str, Any], list[FieldChange]]:
    """The document that a draft would make, and what it would change; writes nothing.

    Raises:
        InvalidPolicyError, InvalidError, StaleRevisionError, PreconditionRequiredError: as `create_revision`.
    """
    active = load_active(session)
    _check_base(draft.base_revision, active)
    document, changes = _drafted(draft, active.revision.document)
    check_targets(session, active.revision.document, document)
    return document, changes


def create_revision(plane: ControlPlane, principal: Principal, draft: RevisionDraft) -> PolicyRevisionRow:
    """Store a new revision on top of the active one, and apply it where the draft says so.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: no reason, or nothing would change.
        InvalidPolicyError: the document cannot be obeyed.
        PreconditionRequiredError, StaleRevisionError: the base is missing or no longer active.
        RolloutOpenError: it should be applied while a roll-out is under way.
    """
    require_role(principal, Role.OPERATOR)
    require_scope(principal, Scope.POLICIES_WRITE)
    _check_reason(draft.reason)
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        if draft.apply:
            refuse_during_rollout(work.session)
        active = load_active(work.session)
        _check_base(draft.base_revision, active)
        document, changes = _drafted(draft, active.revision.document)
        check_targets(work.session, active.revision.document, document)
        if not changes:
            raise InvalidError("Nothing would change.")
        row = _add_revision(
            work.session, plane, principal, draft=draft, document=document, base_number=active.revision.number
        )
        _audit_creation(work.session, plane, row, changes)
        if draft.apply:
            _activate(work, plane, principal, row=row, reason=draft.reason, active=active)
    return row


def apply_revision(
    plane: ControlPlane, principal: Principal, number: int, reason: str, base_revision: int | None = None
) -> Active:
    """Make a revision the active one and send it to every gateway.

    Gateways obey only rising numbers, so that a late order cannot undo a newer one. An older revision therefore
    comes back as a copy under a new number; look at the answer for which.

    Raises:
        ForbiddenError, InvalidError, NotFoundError: no operator, no reason, no such revision.
        StaleRevisionError: `base_revision` is given and no longer active.
        RolloutOpenError: a roll-out is under way.
    """
    require_role(principal, Role.OPERATOR)
    require_scope(principal, Scope.POLICIES_WRITE)
    _check_reason(reason)
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        refuse_during_rollout(work.session)
        row = load_revision(work.session, number)
        active = load_active(work.session)
        if base_revision is not None:
            _check_base(base_revision, active)
        if row.number < active.revision.number:
            row = _copied(work.session, plane, principal, row=row, reason=reason, active=active)
        activation = _activate(work, plane, principal, row=row, reason=reason, active=active)
    return Active(row, activation)


def revert_revision(
    plane: ControlPlane, principal: Principal, number: int, reason: str, base_revision: int | None = None
) -> Active:
    """Make a new revision with the content of another one, and apply it.

    Raises:
        ForbiddenError, InvalidError, NotFoundError: no operator, no reason or no difference, no such revision.
        StaleRevisionError: `base_revision` is given and no longer active.
        RolloutOpenError: a roll-out is under way.
    """
    require_role(principal, Role.OPERATOR)
    _check_reason(reason)
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        refuse_during_rollout(work.session)
        active = load_active(work.session)
        if not preview_revert(work.session, number, base_revision):
            raise InvalidError("Nothing would change.")
        row = load_revision(work.session, number)
        row = _copied(work.session, plane, principal, row=row, reason=reason, active=active)
        activation = _activate(work, plane, principal, row=row, reason=reason, active=active)
    return Active(row, activation)


def preview_revert(session: Session, number: int, base_revision: int | None = None) -> list[FieldChange]:
    """What going back to a revision would change.

    Raises:
        NotFoundError, StaleRevisionError: as `revert_revision`.
    """
    active = load_active(session)
    if base_revision is not None:
        _check_base(base_revision, active)
    return diff_policies(active.revision.document, load_revision(session, number).document)


def activate_copy(
    work: UnitOfWork, plane: ControlPlane, principal: Principal, *, row: PolicyRevisionRow, reason: str
) -> PolicyRevisionRow:
    """Apply the content of a revision inside the caller's transaction, which holds `POLICY_LOCK`.

    One that is older than the active revision comes back as a copy, see `apply_revision`; returns what is active now.
    """
    active = load_active(work.session)
    if row.number < active.revision.number:
        row = copy_revision(work.session, plane, principal, row=row, reason=reason)
    _activate(work, plane, principal, row=row, reason=reason, active=active)
    return row


def copy_revision(
    session: Session, plane: ControlPlane, principal: Principal, *, row: PolicyRevisionRow, reason: str
) -> PolicyRevisionRow:
    """The content of a revision under a new number, in a transaction that holds `POLICY_LOCK`."""
    return _copied(session, plane, principal, row=row, reason=reason, active=load_active(session))


def found_policy(plane: ControlPlane, actor: str, document: Mapping[str, Any], reason: str) -> bool:
    """Store and apply revision 1; False and no change where one is active already.

    Raises:
        PolicyError: the document cannot be obeyed.
    """
    parse_policy(document)
    with plane.database.unit_of_work(plane.send) as work:
        lock_name(work.session, POLICY_LOCK)
        session = work.session
        if session.exec(select(PolicyActivationRow.id)).first() is not None:
            return False
        at = plane.now()
        session.add(PolicyRevisionRow(number=1, document=dict(document), reason=reason, actor=actor, created_at=at))
        session.flush()
        session.add(PolicyActivationRow(revision=1, actor=actor, reason=reason, activated_at=at))
        record_event(session, at, actor, "policy.apply", "policy/r1", after={"revision": 1}, reason=reason)
    return True


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise InvalidError("Say why: a change needs a reason.")


def _check_base(base_revision: int | None, active: Active) -> None:
    if base_revision is None:
        raise PreconditionRequiredError
    if base_revision != active.revision.number:
        raise StaleRevisionError(
            f"The change was made against revision {base_revision}; {active.revision.number} is active now."
        )


def _drafted(draft: RevisionDraft, base: Mapping[str, Any]) -> tuple[dict[str, Any], list[FieldChange]]:
    is_partial = draft.changes is not None or bool(draft.removed)
    if (draft.document is None) != is_partial:
        raise InvalidError("Send either a document or changes.")
    try:
        if draft.document is not None:
            document = dict(draft.document)
        else:
            document = apply_changes(base, draft.changes or {}, draft.removed)
        _check_storable(document)
        changes = diff_policies(base, document)
    except PolicyError as error:
        raise InvalidPolicyError(problems=error.problems) from error
    locked = _locked(changes)
    if locked:
        raise InvalidPolicyError(problems=locked)
    return document, changes


def _locked(changes: list[FieldChange]) -> list[FieldProblem]:
    problems = []
    for change in changes:
        field = find_scoped_field(change.path)
        if field is None or not field.disabled_reason:
            continue
        # A class that comes or goes has such fields too; only another value than the default asks for something.
        before, after = (field.default if value is None else value for value in (change.before, change.after))
        if before != after:
            problems.append(FieldProblem(change.path, field.disabled_reason))
    return problems


def _check_storable(document: Mapping[str, Any]) -> None:
    # Unknown fields are kept unchecked, so the document as a whole must be JSON that every reader can take.
    try:
        size_bytes = len(json.dumps(document, allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError("The document holds what JSON cannot: NaN, infinity or broken text.") from error
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise InvalidPolicyError(f"The document is larger than {MAX_DOCUMENT_BYTES} bytes.")


def _add_revision(
    session: Session,
    plane: ControlPlane,
    principal: Principal,
    *,
    draft: RevisionDraft,
    document: dict[str, Any],
    base_number: int,
) -> PolicyRevisionRow:
    newest = load_revisions(session, 1)[0].number
    row = PolicyRevisionRow(
        number=newest + 1,
        document=document,
        reason=draft.reason,
        actor=principal.name,
        created_at=plane.now(),
        base_number=base_number,
    )
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        # Whoever writes without the lock, such as a release before it.
        raise StaleRevisionError("Somebody else made a revision at the same moment.") from error
    return row


def _copied(
    session: Session, plane: ControlPlane, principal: Principal, *, row: PolicyRevisionRow, reason: str, active: Active
) -> PolicyRevisionRow:
    """The content of a revision under a new number, on top of the active one."""
    number = active.revision.number
    changes = diff_policies(active.revision.document, row.document)
    draft = RevisionDraft(reason, number)
    copy = _add_revision(session, plane, principal, draft=draft, document=dict(row.document), base_number=number)
    _audit_creation(session, plane, copy, changes)
    return copy


def _audit_creation(session: Session, plane: ControlPlane, row: PolicyRevisionRow, changes: list[FieldChange]) -> None:
    record_event(
        session,
        plane.now(),
        row.actor,
        "policy.create",
        f"policy/r{row.number}",
        before={change.path: change.before for change in changes},
        after={change.path: change.after for change in changes},
        reason=row.reason,
    )


def _activate(
    work: UnitOfWork,
    plane: ControlPlane,
    principal: Principal,
    *,
    row: PolicyRevisionRow,
    reason: str,
    active: Active,
) -> PolicyActivationRow:
    at = plane.now()
    activation = PolicyActivationRow(revision=row.number, actor=principal.name, reason=reason, activated_at=at)
    work.session.add(activation)
    work.session.flush()
    record_event(
        work.session,
        at,
        principal.name,
        "policy.apply",
        f"policy/r{row.number}",
        before={"revision": active.revision.number},
        after={"revision": row.number},
        reason=reason,
    )
    fleet = load_snapshot(work.session)
    pushes = push_orders(fleet, fleet.gateways, row.number, row.document, canary=load_canary(work.session))
    for order in (*pushes, *shape_orders(fleet.links, row.number, row.document)):
        work.enqueue(order)
    return activation
