"""The number that rises with every stored change of the fleet."""

from datetime import datetime

from sqlmodel import Session

from control.store.counters import lock_counter, raise_counter
from control.store.tables import SettingRow

_SETTING = "fleet.revision"


def load_fleet_revision(session: Session) -> int:
    """The fleet's revision; 0 until it changes for the first time."""
    row = session.get(SettingRow, _SETTING)
    return 0 if row is None else int(row.value)


def raise_fleet_revision(session: Session, at: datetime, actor: str) -> int:
    """The next revision, for the change that this transaction makes.

    The row stays locked until the commit, so that whoever reads the fleet after this call in order to change it is
    alone with it.
    """
    row = lock_counter(session, _SETTING, at, actor)
    return raise_counter(session, row, int(row.value) + 1, at, actor)
