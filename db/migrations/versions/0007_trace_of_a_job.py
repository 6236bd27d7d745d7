"""The trace of the request that queued a job"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    # Nullable: earlier versions, which may go on writing, leave it empty.
    op.add_column("jobs", sa.Column("traceparent", sa.String(), nullable=True))
