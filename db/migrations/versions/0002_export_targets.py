"""Verdicts of export targets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "target_verdicts",
        sa.Column("verdict_number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("solution_id", sa.String(), nullable=False),
        sa.Column("judgement", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("baseline_seconds", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("mid", sa.Float(), nullable=False),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("proven", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["solution_id"],
            ["solutions.id"],
        ),
        sa.ForeignKeyConstraint(
            ["verdict_number"],
            ["verdicts.number"],
        ),
        sa.PrimaryKeyConstraint("verdict_number", "target"),
    )
    # Written out: Alembic adds a foreign key in a statement of its own, which SQLite has not.
    number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    op.execute(f"ALTER TABLE best ADD COLUMN targets_verdict_number {number} REFERENCES verdicts (number)")
