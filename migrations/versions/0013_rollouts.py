"""Guarded roll-outs, and the canary's revision in what gateways report."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("gateway_report", sa.Column("canary_revision", sa.Integer(), nullable=True))
    op.create_table(
        "rollout",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("base_revision", sa.Integer(), nullable=False),
        sa.Column("reverted_to", sa.Integer(), nullable=True),
        sa.Column("open_key", sa.String(), nullable=True),
        sa.Column("canary_site", sa.String(), nullable=True),
        sa.Column("canary_share", sa.Float(), nullable=False),
        sa.Column("guard", sa.JSON(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("paused_from", sa.String(), nullable=True),
        sa.Column("baked_s", sa.Float(), nullable=False),
        sa.Column("looked_at_s", sa.Float(), nullable=True),
        sa.Column("known_until_s", sa.Float(), nullable=True),
        sa.Column("suspect_since_s", sa.Float(), nullable=True),
        sa.Column("waiting_for", sa.JSON(), nullable=False),
        sa.Column("ending", sa.String(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("judgement", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("canary_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["revision"], ["policy_revision.number"], name=op.f("fk_rollout_revision_policy_revision")
        ),
        sa.ForeignKeyConstraint(
            ["base_revision"], ["policy_revision.number"], name=op.f("fk_rollout_base_revision_policy_revision")
        ),
        sa.ForeignKeyConstraint(
            ["reverted_to"], ["policy_revision.number"], name=op.f("fk_rollout_reverted_to_policy_revision")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
        sa.UniqueConstraint("open_key", name=op.f("uq_rollout_open_key")),
    )
    op.create_index(op.f("ix_rollout_phase"), "rollout", ["phase"])
    op.create_index(op.f("ix_rollout_revision"), "rollout", ["revision"])


def downgrade() -> None:
    op.drop_index(op.f("ix_rollout_revision"), table_name="rollout")
    op.drop_index(op.f("ix_rollout_phase"), table_name="rollout")
    op.drop_table("rollout")
    op.drop_column("gateway_report", "canary_revision")
