"""Who needs an item of the inventory, beside other items: the active policy, operations and a roll-out under way."""

from collections.abc import Collection

from sqlmodel import Session, col, select

from control.domain.inventory import ItemRef, Kind
from control.domain.policy import FieldProblem
from control.services.policies import find_active_number, load_revision
from control.services.policy_scopes import overrides_for
from control.services.rollout_store import find_open_rollout
from control.store.tables import OperationRow


def outside_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    """Each user with its path, such as `policy.overrides.sites.fra` or `operations.7`."""
    return [*_policy_users(session, ref), *_rollout_users(session, ref), *operations_on(session, [ref])]


def _rollout_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    stored = find_open_rollout(session)
    if stored is None or ref != ItemRef(Kind.SITE, stored.row.canary_site or ""):
        return []
    return [FieldProblem(f"rollouts.{stored.id}", f"The {ref} is the canary of roll-out {stored.id}.")]


def _policy_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    number = find_active_number(session)
    if number is None:
        return []
    paths = overrides_for(load_revision(session, number).document, ref)
    return [FieldProblem(f"policy.{path}", f"Policy r{number} has overrides for the {ref}.") for path in paths]


def operations_on(session: Session, refs: Collection[ItemRef]) -> list[FieldProblem]:
    """The operations that are under way on some nodes or links."""
    subjects = {f"{ref.kind.singular}/{ref.name}": ref for ref in refs if ref.kind in {Kind.NODE, Kind.LINK}}
    if not subjects:
        return []
    is_open = col(OperationRow.open_key).is_not(None)
    rows = session.exec(select(OperationRow).where(is_open).order_by(col(OperationRow.id))).all()
    return [
        FieldProblem(f"operations.{row.id}", f"The operation {row.kind} is under way on the {ref}.")
        for row in rows
        for subject, ref in subjects.items()
        if subject in row.subjects or subject == row.target
    ]
