"""API keys; which device classes are registered; which key submitted a tuning"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("login_of", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=True),
        sa.Column("revoked_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["login_of"],
            ["api_keys.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.add_column(
        "device_classes", sa.Column("registered", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.execute(
        "UPDATE device_classes SET registered = (1 = 1) WHERE id IN (SELECT device_class_id FROM workers) "
        "OR id IN (SELECT device_class_id FROM sessions WHERE provenance_number IS NULL)"
    )
    op.add_column("tunings", sa.Column("key_id", sa.String(), nullable=True))
    op.create_index("ix_tunings_key_id", "tunings", ["key_id"])
