"""Requests kept for search, and the slowest request of each sum."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("request_rollup", sa.Column("catch_up", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("request_rollup", sa.Column("slowest", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "request_sample",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("is_notable", sa.Boolean(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("gateway", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("traffic", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("service_class", sa.String(), nullable=False),
        sa.Column("pipeline", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("hit_bucket", sa.Integer(), nullable=False),
        sa.Column("prefill_node", sa.String(), nullable=False),
        sa.Column("relay_node", sa.String(), nullable=False),
        sa.Column("main_node", sa.String(), nullable=False),
        sa.Column("handoff_mode", sa.String(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("eager_tokens", sa.Integer(), nullable=False),
        sa.Column("uncached_tokens", sa.Integer(), nullable=False),
        sa.Column("resumes", sa.Integer(), nullable=False),
        sa.Column("hit_rate", sa.Float(), nullable=True),
        sa.Column("drc_hit_rate", sa.Float(), nullable=False),
        sa.Column("ttft_s", sa.Float(), nullable=True),
        sa.Column("ttst_s", sa.Float(), nullable=True),
        sa.Column("tpot_s", sa.Float(), nullable=True),
        sa.Column("max_itl_s", sa.Float(), nullable=True),
        sa.Column("e2e_s", sa.Float(), nullable=False),
        sa.Column("transfer_s", sa.Float(), nullable=True),
        sa.Column("handoff_stall_s", sa.Float(), nullable=True),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_request_sample")),
    )
    op.create_index(op.f("ix_request_sample_at_s"), "request_sample", ["at_s"])
    op.create_index(op.f("ix_request_sample_request_id"), "request_sample", ["request_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_request_sample_request_id"), table_name="request_sample")
    op.drop_index(op.f("ix_request_sample_at_s"), table_name="request_sample")
    op.drop_table("request_sample")
    op.drop_column("request_rollup", "slowest")
    op.drop_column("request_rollup", "catch_up")
