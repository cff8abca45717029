"""The record of who changed what and why: written with each change, read back in parts, checked as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlmodel import Session, col, func, select

from control.domain.audit import Break, ChainedEvent, ChainHead, ChainVerdict, Fault, verify_chain
from control.services.plane import ControlPlane
from control.store.audit_chain import BATCH_EVENTS, PendingEvent, add_event, chained, load_ends, stream_chain
from control.store.tables import AuditEventRow


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which events are wanted; None wants all. `since` is included, `until` is not."""

    actor: str | None = None
    action: str | None = None
    target_prefix: str | None = None
    since: datetime | None = None
    until: datetime | None = None


EVERYTHING = AuditFilter()


def record_event(
    session: Session,
    at: datetime,
    actor: str,
    action: str,
    target: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> None:
    """Add an event to the transaction of the change that it tells of; it gets its place in the chain at the commit."""
    add_event(session, PendingEvent(at, actor, action, target, before, after, reason))


def load_events(
    session: Session, limit: int, before_id: int | None = None, wanted: AuditFilter = EVERYTHING
) -> list[AuditEventRow]:
    """Events, newest first, older than the given one."""
    query = select(AuditEventRow).where(*_conditions(wanted)).order_by(col(AuditEventRow.id).desc()).limit(limit)
    if before_id is not None:
        query = query.where(col(AuditEventRow.id) < before_id)
    return list(session.exec(query))


def load_events_after(
    session: Session, limit: int, after_id: int, wanted: AuditFilter = EVERYTHING
) -> Sequence[AuditEventRow]:
    """Events, oldest first, newer than the given one."""
    query = select(AuditEventRow).where(col(AuditEventRow.id) > after_id, *_conditions(wanted))
    return session.exec(query.order_by(col(AuditEventRow.id)).limit(limit)).all()


def load_newest_id(session: Session) -> int:
    """Id of the newest event; 0 before the first."""
    return session.exec(select(func.max(AuditEventRow.id))).one() or 0


def export_events(plane: ControlPlane, wanted: AuditFilter = EVERYTHING) -> Iterator[ChainedEvent]:
    """All wanted events, oldest first; no session is held between two batches."""
    last_id = 0
    while True:
        with plane.database.reading() as session:
            rows = load_events_after(session, BATCH_EVENTS, last_id, wanted)
        yield from (chained(row) for row in rows)
        if len(rows) < BATCH_EVENTS:
            return
        last_id = rows[-1].id or 0


def verify_trail(plane: ControlPlane, noted: Sequence[ChainHead] = ()) -> ChainVerdict:
    """Check the whole trail against its head, and against heads that were written down earlier.

    Finds events that were changed, removed, moved or inserted, and a missing end. What it cannot find by itself is a
    history that was written anew from some event on, with all later hashes and the head: only a noted head shows that.
    """
    with plane.database.reading() as session:
        ends = load_ends(session)
        # What is added while this reads belongs to a later check.
        events = takewhile(lambda event: event.facts.id <= ends.newest_id, stream_chain(session))
        verdict = verify_chain(events, ends.head, noted)
    if ends.head is None and verdict.broken is None:
        return ChainVerdict(verdict.events, verdict.head, Break(verdict.head.id, Fault.TRUNCATED))
    return verdict


def _conditions(wanted: AuditFilter) -> list[Any]:
    conditions: list[Any] = []
    if wanted.actor is not None:
        conditions.append(AuditEventRow.actor == wanted.actor)
    if wanted.action is not None:
        conditions.append(AuditEventRow.action == wanted.action)
    if wanted.target_prefix is not None:
        conditions.append(col(AuditEventRow.target).startswith(wanted.target_prefix, autoescape=True))
    if wanted.since is not None:
        conditions.append(col(AuditEventRow.at) >= wanted.since)
    if wanted.until is not None:
        conditions.append(col(AuditEventRow.at) < wanted.until)
    return conditions
