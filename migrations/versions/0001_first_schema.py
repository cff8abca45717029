"""The first schema: fleet, policy, access, audit."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_api_token_secret_hash")),
    )
    op.create_table(
        "app_user",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("username", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_app_user")),
        sa.UniqueConstraint("username", name=op.f("uq_app_user_username")),
    )
    op.create_table(
        "audit_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index(op.f("ix_audit_event_at"), "audit_event", ["at"])
    op.create_index(op.f("ix_audit_event_target"), "audit_event", ["target"])

    op.create_table(
        "login_failure",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_failure")),
    )
    op.create_index(op.f("ix_login_failure_at"), "login_failure", ["at"])
    op.create_index(op.f("ix_login_failure_subject"), "login_failure", ["subject"])

    op.create_table(
        "policy_revision",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("base_number", sa.Integer(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("request_digest", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["base_number"], ["policy_revision.number"], name=op.f("fk_policy_revision_base_number_policy_revision")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policy_revision")),
        sa.UniqueConstraint("actor", "idempotency_key", name=op.f("uq_policy_revision_actor")),
    )
    op.create_table(
        "setting",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_setting")),
    )
    op.create_table(
        "site",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_site")),
    )
    op.create_table(
        "gateway",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["site.name"], name=op.f("fk_gateway_site_site")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateway")),
    )
    op.create_index(op.f("ix_gateway_site"), "gateway", ["site"])

    op.create_table(
        "link",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("capacity_bytes_per_s", sa.Float(), nullable=False),
        sa.Column("rtt_s", sa.Float(), nullable=False),
        sa.Column("flow_cap_bytes_per_s", sa.Float(), nullable=True),
        sa.Column("relay_host", sa.String(), nullable=False),
        sa.Column("relay_port", sa.Integer(), nullable=False),
        sa.Column("admin_url", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["site.name"], name=op.f("fk_link_source_site")),
        sa.ForeignKeyConstraint(["target"], ["site.name"], name=op.f("fk_link_target_site")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_link")),
        sa.UniqueConstraint("source", "target", name=op.f("uq_link_source")),
    )
    op.create_table(
        "login_key",
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["app_user.id"], name=op.f("fk_login_key_user_id_app_user")),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_login_key")),
    )
    op.create_index(op.f("ix_login_key_user_id"), "login_key", ["user_id"])

    op.create_table(
        "node",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["site.name"], name=op.f("fk_node_site_site")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node")),
    )
    op.create_index(op.f("ix_node_site"), "node", ["site"])

    op.create_table(
        "policy_activation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["revision"], ["policy_revision.number"], name=op.f("fk_policy_activation_revision_policy_revision")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_activation")),
    )
    op.create_table(
        "web_session",
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("csrf_token", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["app_user.id"], name=op.f("fk_web_session_user_id_app_user")),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_web_session")),
    )
    op.create_index(op.f("ix_web_session_expires_at"), "web_session", ["expires_at"])
    op.create_index(op.f("ix_web_session_user_id"), "web_session", ["user_id"])

    op.create_table(
        "gateway_report",
        sa.Column("gateway", sa.String(), nullable=False),
        sa.Column("order_id", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["gateway"], ["gateway.name"], name=op.f("fk_gateway_report_gateway_gateway")),
        sa.PrimaryKeyConstraint("gateway", name=op.f("pk_gateway_report")),
    )


def downgrade() -> None:
    op.drop_table("gateway_report")

    op.drop_table("web_session")
    op.drop_table("policy_activation")

    op.drop_table("node")

    op.drop_table("login_key")
    op.drop_table("link")

    op.drop_table("gateway")
    op.drop_table("site")
    op.drop_table("setting")
    op.drop_table("policy_revision")

    op.drop_table("login_failure")

    op.drop_table("audit_event")
    op.drop_table("app_user")
    op.drop_table("api_token")
