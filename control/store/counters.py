"""Numbers in SQL that only rise, each a row that stays locked until the commit of whoever raises it."""

from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from control.store.tables import SettingRow


def lock_counter(session: Session, key: str, at: datetime, actor: str) -> SettingRow:
    """The counter's row, made at 0 where there is none; nobody else gets it before this transaction ends."""
    row = session.get(SettingRow, key, with_for_update=True, populate_existing=True)
    if row is not None:
        return row
    try:
        with session.begin_nested():
            row = SettingRow(key=key, value=0, updated_at=at, updated_by=actor)
            session.add(row)
    except IntegrityError:  # somebody else was first, where writers do not wait for each other from the start
        row = session.get_one(SettingRow, key, with_for_update=True, populate_existing=True)
    return row


def raise_counter(session: Session, row: SettingRow, value: int, at: datetime, actor: str) -> int:
    """Give a locked counter its next value."""
    row.value = value
    row.updated_at = at
    row.updated_by = actor
    session.add(row)
    session.flush()
    return value
