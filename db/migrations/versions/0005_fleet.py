"""Retried jobs; what a worker failed at last; devices that differ from their class"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from backends.canonical import short_hash

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
    op.create_index(
        "ix_workers_device", "workers", ["device_class_id", "device_uuid", "number"], unique=False
    )
    op.add_column("environments", sa.Column("software", sa.String(), nullable=False, server_default=""))
    connection = op.get_bind()
    for number, text in connection.execute(sa.text("SELECT number, content FROM environments")).all():
        content = json.loads(text) if isinstance(text, str) else text
        named = {name: content.get(name, "") for name in ("partition", "driver", "runtime")}
        software = short_hash({**named, **content.get("libraries", {})})
        connection.execute(
            sa.text("UPDATE environments SET software = :software WHERE number = :number"),
            {"software": software, "number": number},
        )
    op.create_index("ix_sessions_environment", "sessions", ["environment_id", "number"], unique=False)
    op.create_table(
        "outlier_devices",
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("differs", sa.Boolean(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("since", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["device_class_id"], ["device_classes.id"]),
        sa.PrimaryKeyConstraint("device_class_id", "uuid"),
    )
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "device_checks",
        sa.Column("number", number, nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("baseline_id", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("after_verdict", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"]),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"]),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"]),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("ix_device_checks_environment", "device_checks", ["environment_id"], unique=False)
