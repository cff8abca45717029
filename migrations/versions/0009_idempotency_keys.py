"""One table of idempotency keys for every POST, in place of the columns that only policy revisions had."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import context, op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_UNIQUE = "uq_policy_revision_actor"
_COLUMNS = ("idempotency_key", "request_digest")


def upgrade() -> None:
    op.create_table(
        "idempotency_key",
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("request_hash", sa.String(), nullable=False),
        sa.Column("claim", sa.String(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("has_effect", sa.Boolean(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key_hash", name=op.f("pk_idempotency_key")),
    )
    op.create_index(op.f("ix_idempotency_key_expires_at"), "idempotency_key", ["expires_at"])
    with _revisions_aside(), op.batch_alter_table("policy_revision") as batch:
        batch.drop_constraint(op.f(_UNIQUE), type_="unique")
        for name in _COLUMNS:
            batch.drop_column(name)


def downgrade() -> None:
    with _revisions_aside(), op.batch_alter_table("policy_revision") as batch:
        for name in _COLUMNS:
            batch.add_column(sa.Column(name, sa.String(), nullable=True))
        batch.create_unique_constraint(op.f(_UNIQUE), ["actor", "idempotency_key"])
    op.drop_table("idempotency_key")


@contextmanager
def _revisions_aside() -> Iterator[None]:
    """On SQLite a table is altered by copying and dropping it, which the keys that point to its rows would forbid."""
    if op.get_context().dialect.name != "sqlite" or context.is_offline_mode():
        yield
        return
    connection = op.get_bind()
    kept = {}
    for name, order in (("policy_activation", "id"), ("policy_revision", "number")):
        table = sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
        kept[name] = connection.execute(sa.select(table).order_by(table.c[order])).mappings().all()
        connection.execute(sa.delete(table))
    yield
    for name in ("policy_revision", "policy_activation"):
        table = sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
        rows = [{key: value for key, value in row.items() if key in table.c} for row in kept[name]]
        if rows:
            connection.execute(sa.insert(table), rows)
