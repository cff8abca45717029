"""What all tables share: names of constraints, moments in UTC, and rows that are only ever added."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import Connection, DateTime, MetaData, event
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC; SQLite, which keeps no zone, gives it back with one all the same."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a moment without a zone.

        Raises:
            ValueError: `value` is naive.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs a time zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the moment its zone back."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Row(SQLModel):
    """Base of all tables."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING_CONVENTION)


def moment(*, nullable: bool = False, index: bool = False) -> Any:
    """A column of type `UtcDateTime`; one that may be null is null by default."""
    if nullable:
        return Field(default=None, sa_type=UtcDateTime, nullable=True, index=index)
    return Field(sa_type=UtcDateTime, nullable=False, index=index)


class ImmutableRowError(RuntimeError):
    """Somebody tried to change or delete a row that may only be added."""


def only_add(table: type[Row]) -> None:
    """Refuse to change or delete rows of this table."""
    event.listen(table, "before_update", _refuse_change)
    event.listen(table, "before_delete", _refuse_change)


def _refuse_change(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    del mapper, connection
    raise ImmutableRowError(f"{type(target).__name__} rows are never changed or deleted")
