"""Audit events tied by hashes, a head that names the newest, and triggers that refuse to change either."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import context, op

from control.domain.audit import GENESIS, AuditFacts, chain_hash
from control.store.tables import UtcDateTime

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_EVENT = sa.table(
    "audit_event",
    sa.column("id", sa.Integer()),
    sa.column("at", UtcDateTime()),
    sa.column("actor", sa.String()),
    sa.column("action", sa.String()),
    sa.column("target", sa.String()),
    sa.column("before", sa.JSON()),
    sa.column("after", sa.JSON()),
    sa.column("reason", sa.String()),
    sa.column("previous_hash", sa.String()),
    sa.column("hash", sa.String()),
)
_SQLITE_TRIGGERS = {
    "audit_event_update": "BEFORE UPDATE ON audit_event",
    "audit_event_delete": "BEFORE DELETE ON audit_event",
    "audit_head_update": "BEFORE UPDATE ON audit_head WHEN NEW.id <> OLD.id OR NEW.event_id <= OLD.event_id",
    "audit_head_delete": "BEFORE DELETE ON audit_head",
}
_POSTGRESQL_TRIGGERS = {
    "audit_event_update": "BEFORE UPDATE OR DELETE ON audit_event FOR EACH ROW",
    "audit_event_truncate": "BEFORE TRUNCATE ON audit_event FOR EACH STATEMENT",
    "audit_head_update": "BEFORE UPDATE ON audit_head FOR EACH ROW"
    " WHEN (NEW.id <> OLD.id OR NEW.event_id <= OLD.event_id)",
    "audit_head_delete": "BEFORE DELETE ON audit_head FOR EACH ROW",
    "audit_head_truncate": "BEFORE TRUNCATE ON audit_head FOR EACH STATEMENT",
}
_REFUSAL = "the audit trail is only ever added to"


def upgrade() -> None:
    for name in ("previous_hash", "hash"):
        op.add_column("audit_event", sa.Column(name, sa.String(), nullable=True))
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    # Printed statements cannot compute hashes: they fit a trail without events, and fail on any other.
    event_id, newest = (0, GENESIS) if context.is_offline_mode() else _chain_stored()
    op.bulk_insert(head, [{"id": 1, "event_id": event_id, "hash": newest}])
    with op.batch_alter_table("audit_event") as batch:
        for name in ("previous_hash", "hash"):
            batch.alter_column(name, existing_type=sa.String(), nullable=False)
    _create_triggers()


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for name, when in _POSTGRESQL_TRIGGERS.items():
            op.execute(f"DROP TRIGGER {name} ON {when.split(' ON ')[1].split()[0]}")
        op.execute("DROP FUNCTION refuse_audit_change()")
    else:
        for name in _SQLITE_TRIGGERS:
            op.execute(f"DROP TRIGGER {name}")
    op.drop_table("audit_head")
    with op.batch_alter_table("audit_event") as batch:
        for name in ("previous_hash", "hash"):
            batch.drop_column(name)


def _chain_stored() -> tuple[int, str]:
    """Chain the events there are; the id and hash of the newest."""
    connection = op.get_bind()
    last_id, last_hash = 0, GENESIS
    for row in connection.execute(sa.select(_EVENT).order_by(_EVENT.c.id)).mappings().all():
        facts = AuditFacts(**{name: row[name] for name in AuditFacts.__slots__})
        own_hash = chain_hash(last_hash, facts)
        values = {"previous_hash": last_hash, "hash": own_hash}
        connection.execute(sa.update(_EVENT).where(_EVENT.c.id == facts.id).values(values))
        last_id, last_hash = facts.id, own_hash
    return last_id, last_hash


def _create_triggers() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
        )
        for name, when in _POSTGRESQL_TRIGGERS.items():
            op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION refuse_audit_change()")
    else:
        for name, when in _SQLITE_TRIGGERS.items():
            op.execute(f"CREATE TRIGGER {name} {when} BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END")
