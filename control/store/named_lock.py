"""A lock by name, held to the end of the transaction: alone between a check and the write that rests on it."""

from sqlmodel import Session, text


def lock_name(session: Session, name: str) -> None:
    """Wait for the lock. On SQLite a unit of work is alone anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection().execute(text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})
