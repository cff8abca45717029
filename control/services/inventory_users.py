"""Who needs an item of the inventory, beside other items: the active policy, and operations that are under way."""

from sqlmodel import Session, col, select

from control.domain.inventory import ItemRef, Kind
from control.domain.policy import FieldProblem
from control.services.policies import find_active_number, load_revision
from control.services.policy_scopes import overrides_for
from control.store.tables import OperationRow


def outside_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    """Each user with its path, such as `policy.overrides.sites.fra` or `operations.7`."""
    return [*_policy_users(session, ref), *_operation_users(session, ref)]


def _policy_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    number = find_active_number(session)
    if number is None:
        return []
    paths = overrides_for(load_revision(session, number).document, ref)
    return [FieldProblem(f"policy.{path}", f"Policy r{number} has overrides for the {ref}.") for path in paths]


def _operation_users(session: Session, ref: ItemRef) -> list[FieldProblem]:
    if ref.kind not in {Kind.NODE, Kind.LINK}:
        return []
    rows = session.exec(
        select(OperationRow).where(col(OperationRow.open_key).is_not(None)).order_by(col(OperationRow.id))
    )
    subject = f"{ref.kind.singular}/{ref.name}"
    return [
        FieldProblem(f"operations.{row.id}", f"The operation {row.kind} is under way on the {ref}.")
        for row in rows
        if subject in row.subjects or subject == row.target
    ]
