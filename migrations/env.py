"""Runs migrations on the connection that the caller passes, or on the database that the settings name."""

from alembic import context
from sqlalchemy import Connection

from control.settings import Settings
from control.store.session import open_database
from control.store.tables import Row


def run(connection: Connection) -> None:
    # Batch mode lets SQLite, which cannot alter a column in place, copy the table instead.
    context.configure(connection=connection, target_metadata=Row.metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


def print_sql() -> None:
    """Write the statements to standard output instead, for whoever applies them by hand."""
    context.configure(
        url=Settings.from_environment().database_url,
        target_metadata=Row.metadata,
        literal_binds=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if context.is_offline_mode():
    print_sql()
elif given is not None:
    run(given)
else:
    with open_database(Settings.from_environment().database_url).engine.connect() as opened:
        run(opened)
        opened.commit()
