"""Retried jobs; what a worker failed at last, and its version"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("retries", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("earlier_attempts", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("broken", sa.Boolean(), nullable=False, server_default=sa.false()))
    # Earlier versions stored evidence with exactly those failures that fail a tuning.
    op.execute(
        "UPDATE jobs SET broken = (1 = 1) WHERE status = 'failed' AND evidence IS NOT NULL "
        "AND CAST(evidence AS TEXT) <> 'null'"
    )
    op.add_column("workers", sa.Column("version", sa.String(), nullable=True))
    op.add_column("workers", sa.Column("failure", sa.JSON(), nullable=True))
