"""Brings a database to the newest schema."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from control.store.session import Database

LOCK_TIMEOUT_S = 10


def alembic_config(connection: Connection) -> Config:
    """Alembic bound to an open connection, wherever the process was started."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config


def upgrade_schema(database: Database, revision: str = "head") -> None:
    """Apply the missing migrations in one transaction; none missing changes nothing."""
    with database.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        command.upgrade(alembic_config(connection), revision)
