"""Annotations, and since when gateways and relays have confirmed what they run."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table in ("gateway_report", "link_report"):
        op.add_column(table, sa.Column("confirmed_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "annotation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotation")),
    )
    op.create_index(op.f("ix_annotation_at"), "annotation", ["at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_annotation_at"), table_name="annotation")
    op.drop_table("annotation")
    for table in ("gateway_report", "link_report"):
        op.drop_column(table, "confirmed_at")
