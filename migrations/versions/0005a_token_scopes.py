"""Scopes, owners and last use of API tokens."""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from control.domain.access import ROLE_SCOPES, Role, in_order

revision: str = "0005a"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("api_token") as batch:
        batch.add_column(sa.Column("scopes", sa.JSON(), nullable=True))
        batch.add_column(sa.Column("user_id", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True))
    for role in Role:
        # Written out, as printed statements cannot hold a JSON value; the colon would begin a parameter's name.
        scopes = json.dumps(in_order(ROLE_SCOPES[role])).replace(":", r"\:")
        op.execute(f"UPDATE api_token SET scopes = '{scopes}' WHERE role = '{role.value}'")  # noqa: S608
    with op.batch_alter_table("api_token") as batch:
        batch.alter_column("scopes", existing_type=sa.JSON(), nullable=False)
        batch.create_foreign_key(op.f("fk_api_token_user_id_app_user"), "app_user", ["user_id"], ["id"])
        batch.create_index(op.f("ix_api_token_user_id"), ["user_id"])


def downgrade() -> None:
    with op.batch_alter_table("api_token") as batch:
        batch.drop_index(op.f("ix_api_token_user_id"))
        batch.drop_constraint(op.f("fk_api_token_user_id_app_user"), type_="foreignkey")
        for name in ("last_used_at", "user_id", "scopes"):
            batch.drop_column(name)
