"""Jobs that are queued from their rows, and what each worker has counted"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # True for existing rows: earlier versions put a job into the queue in the transaction that stored it.
    op.add_column("jobs", sa.Column("enqueued", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.create_index(
        "ix_jobs_queue", "jobs", ["device_class_id", "status", "priority", "number"], unique=False
    )
    op.add_column("workers", sa.Column("counts", sa.JSON(), nullable=True))
