"""Numbers of removed imported files are not given again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
#: The table has the same columns and constraints.
keeps_older = True

_COLUMNS = "number, kind, format, source, sha256, device_class_id, header, created_at"


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return  # a sequence never gives a number twice
    # Only a new table can be AUTOINCREMENT. Rows of others refer to it by its name, and find their rows again
    # when they are back under it, before the transaction ends.
    op.execute("PRAGMA defer_foreign_keys=ON")
    op.execute(f"CREATE TABLE provenance_before AS SELECT {_COLUMNS} FROM provenance")
    op.drop_table("provenance")
    op.create_table(
        "provenance",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("header", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("kind", "format", "sha256", "device_class_id"),
        sqlite_autoincrement=True,
    )
    op.execute(f"INSERT INTO provenance ({_COLUMNS}) SELECT {_COLUMNS} FROM provenance_before")
    op.drop_table("provenance_before")
