"""Tenants and the hashes of their API keys."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "tenant",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key_sha256", sa.String(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("salt", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenant")),
        sa.UniqueConstraint("key_sha256", name=op.f("uq_tenant_key_sha256")),
    )


def downgrade() -> None:
    op.drop_table("tenant")
