"""Opens the database, and frames reads and writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlmodel import Session

from control.errors import DatabaseUnavailableError, InvalidError
from control.orders import Order, Send

BUSY_TIMEOUT_S = 5.0
_BEGIN = "sqlite_begin"
_POSTGRESQL_DRIVER = "postgresql+psycopg"


@dataclass(slots=True)
class UnitOfWork:
    """One write transaction, and the orders that leave once it is committed."""

    session: Session
    orders: list[Order] = field(default_factory=list)

    def enqueue(self, order: Order) -> None:
        """Send this order after the commit; a rolled back unit sends nothing."""
        self.orders.append(order)


@dataclass(frozen=True, slots=True)
class Database:
    """An engine with its two ways to use it."""

    engine: Engine

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one moment and writes nothing.

        Raises:
            DatabaseUnavailableError: the database is away or busy.
        """
        with _lost_connections_told(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def unit_of_work(self, send: Send) -> Iterator[UnitOfWork]:
        """A transaction that commits at its end, and only then sends its orders.

        On SQLite it takes the write lock at once, so that what it has read cannot change under it.

        Raises:
            DatabaseUnavailableError: the database is away or busy; nothing was stored, unless the connection broke
                during the commit itself.
        """
        writer = self.engine.execution_options(**{_BEGIN: "IMMEDIATE"})
        with _lost_connections_told(), Session(writer, expire_on_commit=False) as session:
            work = UnitOfWork(session)
            yield work
            session.commit()
        for order in work.orders:
            send(order)


@contextmanager
def _lost_connections_told() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise DatabaseUnavailableError from error
    except DataError as error:
        # PostgreSQL keeps no NUL in a text, and no number beyond its column's size.
        raise InvalidError("A value cannot be stored: a text holds a NUL, or a number is out of bounds.") from error


def open_database(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Database:
    """Open an SQLite file (its folder is made) or a PostgreSQL database; connects on first use.

    `busy_timeout_s` is how long an SQLite writer waits for another one.
    """
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        if address.drivername == "postgresql":
            address = address.set(drivername=_POSTGRESQL_DRIVER)
        return Database(create_engine(address, pool_pre_ping=True, hide_parameters=True))
    if address.database and address.database != ":memory:":
        Path(address.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(address, connect_args={"timeout": busy_timeout_s}, hide_parameters=True)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return Database(engine)


def _prepare_sqlite(connection: Any, entry: ConnectionPoolEntry) -> None:
    del entry
    connection.isolation_level = None  # sqlite3 would begin on its own, late and without the write lock
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get(_BEGIN, "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
