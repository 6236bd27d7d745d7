"""Columns and indexes for the leaderboard: a verdict's speed-up, the format of a problem's B"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
keeps_older = True

# A speed-up that is no finite number is stored as text, and has no column.
_POSTGRESQL = (
    "UPDATE verdicts SET speedup = CAST(content #>> '{speedup,mid}' AS DOUBLE PRECISION) "
    "WHERE json_typeof(content #> '{speedup,mid}') = 'number'",
    "UPDATE problems SET dtype_b = content ->> 'dtype_b'",
)
_SQLITE = (
    "UPDATE verdicts SET speedup = json_extract(content, '$.speedup.mid') "
    "WHERE json_type(content, '$.speedup.mid') IN ('integer', 'real')",
    "UPDATE problems SET dtype_b = json_extract(content, '$.dtype_b')",
)


def upgrade() -> None:
    # Nullable: earlier versions, which may go on writing, leave them empty.
    op.add_column("verdicts", sa.Column("speedup", sa.Float(), nullable=True))
    op.add_column("problems", sa.Column("dtype_b", sa.String(), nullable=True))
    board = ["device_class_id", "policy_id", "verdict_number", "problem_id"]
    op.create_index("ix_best_board", "best", board, unique=False)
    for table in ("sessions", "problem_keys"):
        op.create_index(f"ix_{table}_provenance", table, ["provenance_number"], unique=False)
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)
