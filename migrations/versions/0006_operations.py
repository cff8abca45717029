"""Operations with their steps, leases by name, measurements of links, and the fleet that a gateway runs."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005a"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _moment(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "operation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("open_key", sa.String(), nullable=True),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("ending", sa.String(), nullable=True),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("retry_of", sa.Integer(), nullable=True),
        _moment("created_at"),
        _moment("finished_at", nullable=True),
        sa.ForeignKeyConstraint(["retry_of"], ["operation.id"], name=op.f("fk_operation_retry_of_operation")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operation")),
        sa.UniqueConstraint("open_key", name=op.f("uq_operation_open_key")),
    )
    op.create_index(op.f("ix_operation_state"), "operation", ["state"])
    op.create_index(op.f("ix_operation_target"), "operation", ["target"])
    op.create_table(
        "operation_step",
        sa.Column("operation_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("deadline_s", sa.Float(), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("undoes", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("lease_token", sa.String(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        _moment("started_at", nullable=True),
        _moment("lease_until", nullable=True),
        _moment("finished_at", nullable=True),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operation.id"], name=op.f("fk_operation_step_operation_id_operation")
        ),
        sa.PrimaryKeyConstraint("operation_id", "position", name=op.f("pk_operation_step")),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        _moment("expires_at"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "link_probe",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("link", sa.String(), nullable=False),
        sa.Column("operation_id", sa.Integer(), nullable=False),
        _moment("measured_at"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("duration_s", sa.Float(), nullable=False),
        sa.Column("bandwidth_bytes_per_s", sa.Float(), nullable=False),
        sa.Column("rtt_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["operation_id"], ["operation.id"], name=op.f("fk_link_probe_operation_id_operation")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_link_probe")),
        sa.UniqueConstraint("operation_id", name=op.f("uq_link_probe_operation_id")),
    )
    op.create_index(op.f("ix_link_probe_link"), "link_probe", ["link"])
    with op.batch_alter_table("gateway_report") as table:
        table.add_column(sa.Column("fleet_revision", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("gateway_report") as table:
        table.drop_column("fleet_revision")
    op.drop_table("link_probe")
    op.drop_table("lease")
    op.drop_table("operation_step")
    op.drop_table("operation")
