"""An index of problems by their layer, which rows of pre-tuned tables are found by"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    op.create_index("ix_problems_layer", "problems", ["kind", "m", "k", "n"], unique=False)
