"""Adds audit events to the chain at the end of the transaction whose change they tell of.

At the end, because the head's lock lets only one writer through at a time: taken last and held for a moment, it can
neither make others wait for slow work nor close a circle of waiting. It also makes ids appear in order: a reader that
has seen event n will not see one below n for the first time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session as OrmSession
from sqlmodel import Session, col, func, select

from control.domain.audit import AuditFacts, ChainedEvent, ChainHead, chain_hash, plain_json
from control.store.tables import AuditEventRow, AuditHeadRow

HEAD_ID = 1
BATCH_EVENTS = 500
_PENDING = "audit_events"


class AuditHeadMissingError(RuntimeError):
    """The audit trail's head is missing. Only somebody with rights on the database can have removed it: find out who.

    To go on, insert into audit_head the row (1, id, hash) of the newest event.
    """


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that waits for the end of its transaction."""

    at: datetime
    actor: str
    action: str
    target: str
    before: Any
    after: Any
    reason: str


@dataclass(frozen=True, slots=True)
class TrailEnds:
    """The head, and the highest id that any event has (0: there is none), of one moment."""

    head: ChainHead | None
    newest_id: int


def add_event(session: Session, pending: PendingEvent) -> None:
    """Let an event become part of what the session commits next; a rollback forgets it."""
    session.connection()  # a transaction that has not begun yet could not be rolled back
    session.info.setdefault(_PENDING, []).append(pending)


def load_ends(session: Session) -> TrailEnds:
    """Where the trail ends, in one statement, so that no append falls between the two."""
    newest = select(func.max(AuditEventRow.id)).scalar_subquery()
    found = session.exec(
        select(AuditHeadRow.event_id, AuditHeadRow.hash, newest).where(AuditHeadRow.id == HEAD_ID)
    ).first()
    if found is None:
        return TrailEnds(None, session.exec(select(func.max(AuditEventRow.id))).one() or 0)
    return TrailEnds(ChainHead(found[0], found[1]), found[2] or 0)


def stream_chain(session: Session) -> Iterator[ChainedEvent]:
    """Every event in the order of ids, a batch at a time."""
    last_id = 0
    while True:
        query = select(AuditEventRow).where(col(AuditEventRow.id) > last_id).order_by(col(AuditEventRow.id))
        rows = session.exec(query.limit(BATCH_EVENTS)).all()
        for row in rows:
            yield chained(row)
        if len(rows) < BATCH_EVENTS:
            return
        last_id = rows[-1].id or 0
        session.expunge_all()


def chained(row: AuditEventRow) -> ChainedEvent:
    """A row as the domain knows it."""
    return ChainedEvent(_facts(row), row.previous_hash, row.hash)


def _facts(row: AuditEventRow) -> AuditFacts:
    return AuditFacts(
        id=row.id or 0,
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        before=row.before,
        after=row.after,
        reason=row.reason,
    )


def _append_pending(session: OrmSession) -> None:
    pending: list[PendingEvent] = session.info.pop(_PENDING, [])
    if not pending:
        return
    head = session.get(AuditHeadRow, HEAD_ID, with_for_update=True, populate_existing=True)
    if head is None:
        raise AuditHeadMissingError(AuditHeadMissingError.__doc__)
    newest: int = session.scalar(select(func.max(AuditEventRow.id))) or 0
    for waiting in pending:
        # An event that was added behind the chain's back must not keep others from being added.
        event_id = max(head.event_id, newest) + 1
        row = AuditEventRow(
            id=event_id,
            at=waiting.at,
            actor=waiting.actor,
            action=waiting.action,
            target=waiting.target,
            before=plain_json(waiting.before),
            after=plain_json(waiting.after),
            reason=waiting.reason,
            previous_hash=head.hash,
            hash="",
        )
        row.hash = chain_hash(head.hash, _facts(row))
        session.add(row)
        head.event_id, head.hash, newest = event_id, row.hash, event_id


def _forget_pending(session: OrmSession) -> None:
    session.info.pop(_PENDING, None)


event.listen(OrmSession, "before_commit", _append_pending)
event.listen(OrmSession, "after_rollback", _forget_pending)
