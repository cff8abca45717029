"""Telemetry summed up, and how far its streams have been read."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "link_rollup",
        sa.Column("span_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("link", sa.String(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("down_samples", sa.BigInteger(), nullable=False),
        sa.Column("flaps", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("direct_bytes", sa.BigInteger(), nullable=False),
        sa.Column("relay_bytes", sa.BigInteger(), nullable=False),
        sa.Column("capacity_bytes", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("span_s", "at_s", "link", name=op.f("pk_link_rollup")),
    )
    op.create_table(
        "request_rollup",
        sa.Column("span_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("pipeline", sa.String(), nullable=False),
        sa.Column("hit_bucket", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("service_class", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("client_closed", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("shed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("demo", sa.BigInteger(), nullable=False),
        sa.Column("good", sa.BigInteger(), nullable=False),
        sa.Column("hit_known", sa.BigInteger(), nullable=False),
        sa.Column("valley", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("uncached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("eager_tokens", sa.BigInteger(), nullable=False),
        sa.Column("pulled_bytes", sa.BigInteger(), nullable=False),
        sa.Column("handoffs", sa.BigInteger(), nullable=False),
        sa.Column("lag_token_s", sa.Float(), nullable=False),
        sa.Column("ttft", sa.LargeBinary(), nullable=False),
        sa.Column("tpot", sa.LargeBinary(), nullable=False),
        sa.Column("e2e", sa.LargeBinary(), nullable=False),
        sa.Column("transfer", sa.LargeBinary(), nullable=False),
        sa.Column("stall", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "span_s",
            "at_s",
            "site",
            "pipeline",
            "hit_bucket",
            "revision",
            "service_class",
            name=op.f("pk_request_rollup"),
        ),
    )
    op.create_table(
        "site_rollup",
        sa.Column("span_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("gateway_batches", sa.BigInteger(), nullable=False),
        sa.Column("observer_batches", sa.BigInteger(), nullable=False),
        sa.Column("node_samples", sa.BigInteger(), nullable=False),
        sa.Column("unreachable_samples", sa.BigInteger(), nullable=False),
        sa.Column("relay_running", sa.BigInteger(), nullable=False),
        sa.Column("relay_waiting", sa.BigInteger(), nullable=False),
        sa.Column("relay_slots", sa.BigInteger(), nullable=False),
        sa.Column("stranded_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("span_s", "at_s", "site", name=op.f("pk_site_rollup")),
    )
    op.create_table(
        "stream_position",
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("last_id", sa.String(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_stream_position")),
    )
    op.create_table(
        "telemetry_count",
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reason", name=op.f("pk_telemetry_count")),
    )
    op.create_table(
        "telemetry_source",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("sent_at_s", sa.Float(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_telemetry_source")),
    )


def downgrade() -> None:
    op.drop_table("telemetry_source")
    op.drop_table("telemetry_count")
    op.drop_table("stream_position")
    op.drop_table("site_rollup")
    op.drop_table("request_rollup")
    op.drop_table("link_rollup")
