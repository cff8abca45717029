"""Ties the changes of a request to its idempotency key: both are committed, or neither.

Without this, a process that dies between its change and its answer would let the repeated request change it again.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session as OrmSession
from sqlmodel import col, update

from control.errors import RequestInProgressError
from control.store.tables import IdempotencyRow


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry a request out."""

    actor: str
    key_hash: str
    token: str = field(repr=False)


current_claim: ContextVar[Claim | None] = ContextVar("current_claim", default=None)


def is_claimed_by(claim: Claim) -> Any:
    """The condition that a row still belongs to a claim."""
    return (
        (col(IdempotencyRow.actor) == claim.actor)
        & (col(IdempotencyRow.key_hash) == claim.key_hash)
        & (col(IdempotencyRow.claim) == claim.token)
    )


def _mark_effect(session: OrmSession) -> None:
    claim = current_claim.get()
    if claim is None:
        return
    marked = session.execute(
        update(IdempotencyRow).where(is_claimed_by(claim)).values(has_effect=True).returning(col(IdempotencyRow.claim))
    ).all()
    if not marked:
        # It took so long that its repetition was let in: what this one would change is dropped.
        raise RequestInProgressError


event.listen(OrmSession, "before_commit", _mark_effect)
