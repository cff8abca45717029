"""Objectives, alert rules, alerts with their history, silences and webhooks."""

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(), nullable=False),
        sa.Column("open_key", sa.String(), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("severity", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("is_unknown", sa.Boolean(), nullable=False),
        sa.Column("is_flapping", sa.Boolean(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("pending_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("clear_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("evaluated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolution", sa.String(), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acknowledged_by", sa.String(), nullable=False),
        sa.Column("comment", sa.String(), nullable=False),
        sa.Column("notified_state", sa.String(), nullable=False),
        sa.Column("notified_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
        sa.UniqueConstraint("open_key", name=op.f("uq_alert_open_key")),
    )
    op.create_index(op.f("ix_alert_rule"), "alert", ["rule"], unique=False)
    op.create_index(op.f("ix_alert_state"), "alert", ["state"], unique=False)
    op.create_table(
        "alert_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("evaluated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_clock")),
    )
    op.create_table(
        "alert_rule",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("above", sa.Boolean(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("clear_threshold", sa.Float(), nullable=True),
        sa.Column("window_s", sa.Integer(), nullable=False),
        sa.Column("for_s", sa.Float(), nullable=False),
        sa.Column("clear_for_s", sa.Float(), nullable=False),
        sa.Column("severity", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alert_rule")),
    )
    op.create_table(
        "silence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("comment", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silence")),
    )
    op.create_index(op.f("ix_silence_ends_at"), "silence", ["ends_at"], unique=False)
    op.create_table(
        "slo",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("indicator", sa.String(), nullable=False),
        sa.Column("target", sa.Float(), nullable=False),
        sa.Column("threshold_s", sa.Float(), nullable=True),
        sa.Column("service_class", sa.String(), nullable=True),
        sa.Column("site", sa.String(), nullable=True),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_slo")),
    )
    op.create_table(
        "webhook",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_token", sa.String(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_webhook")),
    )
    op.create_table(
        "alert_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("alert_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("comment", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alert.id"], name=op.f("fk_alert_event_alert_id_alert")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_event")),
    )
    op.create_index(op.f("ix_alert_event_alert_id"), "alert_event", ["alert_id"], unique=False)
    op.create_index(op.f("ix_alert_event_at"), "alert_event", ["at"], unique=False)
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("webhook", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["webhook"], ["webhook.name"], name=op.f("fk_webhook_delivery_webhook_webhook")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index(op.f("ix_webhook_delivery_state"), "webhook_delivery", ["state"], unique=False)
    op.create_index(op.f("ix_webhook_delivery_webhook"), "webhook_delivery", ["webhook"], unique=False)
    clock = sa.table("alert_clock", sa.column("id", sa.Integer), sa.column("evaluated_at", sa.DateTime(timezone=True)))
    op.bulk_insert(clock, [{"id": 1, "evaluated_at": datetime(1970, 1, 1, tzinfo=UTC)}])


def downgrade() -> None:
    op.drop_index(op.f("ix_webhook_delivery_webhook"), table_name="webhook_delivery")
    op.drop_index(op.f("ix_webhook_delivery_state"), table_name="webhook_delivery")
    op.drop_table("webhook_delivery")
    op.drop_index(op.f("ix_alert_event_at"), table_name="alert_event")
    op.drop_index(op.f("ix_alert_event_alert_id"), table_name="alert_event")
    op.drop_table("alert_event")
    op.drop_table("webhook")
    op.drop_table("slo")
    op.drop_index(op.f("ix_silence_ends_at"), table_name="silence")
    op.drop_table("silence")
    op.drop_table("alert_rule")
    op.drop_table("alert_clock")
    op.drop_index(op.f("ix_alert_state"), table_name="alert")
    op.drop_index(op.f("ix_alert_rule"), table_name="alert")
    op.drop_table("alert")
