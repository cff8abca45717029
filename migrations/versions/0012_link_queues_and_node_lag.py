"""How long transfers wait for a link, what each service class sends over it, and the cache lag of each main node."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("link_rollup", sa.Column("queued_transfers", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("link_rollup", sa.Column("waits", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("link_rollup", sa.Column("waited_s", sa.Float(), nullable=False, server_default="0"))
    op.create_table(
        "link_class_rollup",
        sa.Column("span_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("link", sa.String(), nullable=False),
        sa.Column("service_class", sa.String(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("span_s", "at_s", "link", "service_class", name=op.f("pk_link_class_rollup")),
    )
    op.create_table(
        "node_rollup",
        sa.Column("span_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("uncached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lag_token_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("span_s", "at_s", "node", name=op.f("pk_node_rollup")),
    )


def downgrade() -> None:
    op.drop_table("node_rollup")
    op.drop_table("link_class_rollup")
    for column in ("waited_s", "waits", "queued_transfers"):
        op.drop_column("link_rollup", column)
