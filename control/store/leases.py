"""Leases by name in SQL: what only one process may do at a time."""

from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlmodel import col, update

from control.store.session import Database
from control.store.tables import LeaseRow


def hold_lease(database: Database, name: str, holder: str, now: datetime, duration: timedelta) -> int | None:
    """Take a lease that is free, expired or our own, for a time from now on.

    Returns:
        Its fence, which rises with every change of holder; None where somebody else holds it.
    """
    with database.unit_of_work(_send_nothing) as work:
        session = work.session
        row = session.get(LeaseRow, name, with_for_update=True)
        if row is None:
            session.add(LeaseRow(name=name, holder=holder, fence=1, expires_at=now + duration))
            try:
                session.flush()
            except IntegrityError:  # somebody else was first, where writers do not wait for each other
                session.rollback()
                return None
            return 1
        if row.holder != holder and row.expires_at > now:
            return None
        if row.holder != holder:
            row.fence += 1
        row.holder = holder
        row.expires_at = now + duration
        session.add(row)
        return row.fence


def release_lease(database: Database, name: str, holder: str, now: datetime) -> None:
    """Let others have it at once; one that is somebody else's stays theirs."""
    with database.unit_of_work(_send_nothing) as work:
        work.session.exec(
            update(LeaseRow).where(col(LeaseRow.name) == name, col(LeaseRow.holder) == holder).values(expires_at=now)
        )


def _send_nothing(order: object) -> None:
    del order
