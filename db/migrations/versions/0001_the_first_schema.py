"""The first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "device_classes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("vendor", sa.String(), nullable=False),
        sa.Column("arch", sa.String(), nullable=False),
        sa.Column("product", sa.String(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "policies",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "problems",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_problems_slug", "problems", ["slug"], unique=False)

    op.create_table(
        "provenance",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("header", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("kind", "format", "sha256", "device_class_id"),
    )
    op.create_table(
        "solutions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("build", sa.String(), nullable=True),
        sa.Column("workspace_bytes", sa.BigInteger(), nullable=False),
        sa.Column("deterministic", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_solutions_family", "solutions", ["family"], unique=False)

    op.create_table(
        "claims",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("provenance_number", NUMBER, nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("solution_id", sa.String(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.ForeignKeyConstraint(
            ["provenance_number"],
            ["provenance.number"],
        ),
        sa.ForeignKeyConstraint(
            ["solution_id"],
            ["solutions.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("provenance_number", "problem_id", "device_class_id", "policy_id", "key"),
    )
    op.create_index("ix_claims_problem", "claims", ["problem_id", "device_class_id"], unique=False)

    op.create_table(
        "environments",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_environments_device_class_id", "environments", ["device_class_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("request_key", sa.String(), nullable=False),
        sa.Column("in_flight", sa.String(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("session_id", sa.String(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("evidence", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=True),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("in_flight"),
    )
    op.create_index("ix_jobs_problem_id", "jobs", ["problem_id"], unique=False)
    op.create_index("ix_jobs_request_key", "jobs", ["request_key"], unique=False)
    op.create_index("ix_jobs_status", "jobs", ["status"], unique=False)

    op.create_table(
        "problem_keys",
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("provenance_number", NUMBER, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.ForeignKeyConstraint(
            ["provenance_number"],
            ["provenance.number"],
        ),
        sa.PrimaryKeyConstraint("problem_id", "format", "key"),
    )
    op.create_table(
        "tunings",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("started", sa.Integer(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("broken", sa.Integer(), nullable=False),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_tunings_status", "tunings", ["status"], unique=False)

    op.create_table(
        "events",
        sa.Column("tuning_number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tuning_number"],
            ["tunings.number"],
        ),
        sa.PrimaryKeyConstraint("tuning_number", "number"),
    )
    op.create_table(
        "sessions",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("provenance_number", NUMBER, nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("counts", sa.JSON(), nullable=True),
        sa.Column("notes", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.ForeignKeyConstraint(
            ["provenance_number"],
            ["provenance.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_sessions_job_id", "sessions", ["job_id"], unique=False)
    op.create_index("ix_sessions_problem_id", "sessions", ["problem_id"], unique=False)

    op.create_table(
        "tuning_jobs",
        sa.Column("tuning_number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("job_number", NUMBER, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_number"],
            ["jobs.number"],
        ),
        sa.ForeignKeyConstraint(
            ["tuning_number"],
            ["tunings.number"],
        ),
        sa.PrimaryKeyConstraint("tuning_number", "position"),
    )
    op.create_index("ix_tuning_jobs_job_number", "tuning_jobs", ["job_number"], unique=False)

    op.create_table(
        "workers",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("device_uuid", sa.String(), nullable=False),
        sa.Column("lock", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("beat", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("seen_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "measurements",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("solution_id", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("take", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("workspace_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.ForeignKeyConstraint(
            ["solution_id"],
            ["solutions.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("session_id", "solution_id", "phase", "take"),
    )
    op.create_index("ix_measurements_solution_id", "measurements", ["solution_id"], unique=False)

    op.create_table(
        "verdicts",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("judgement", sa.String(), nullable=False),
        sa.Column("baseline_id", sa.String(), nullable=False),
        sa.Column("baseline_name", sa.String(), nullable=False),
        sa.Column("winner_id", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("baseline_seconds", sa.Float(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("roofline_share", sa.Float(), nullable=True),
        sa.Column("binds", sa.String(), nullable=True),
        sa.Column("restricted", sa.Boolean(), nullable=False),
        sa.Column("budget_seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["baseline_id"],
            ["solutions.id"],
        ),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.ForeignKeyConstraint(
            ["winner_id"],
            ["solutions.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("session_id"),
    )
    op.create_index(
        "ix_verdicts_best", "verdicts", ["problem_id", "device_class_id", "policy_id"], unique=False
    )

    op.create_table(
        "best",
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("device_class_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("verdict_number", NUMBER, nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("provenance_number", NUMBER, nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_class_id"],
            ["device_classes.id"],
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
        ),
        sa.ForeignKeyConstraint(
            ["provenance_number"],
            ["provenance.number"],
        ),
        sa.ForeignKeyConstraint(
            ["verdict_number"],
            ["verdicts.number"],
        ),
        sa.PrimaryKeyConstraint("problem_id", "device_class_id", "policy_id"),
    )
    op.create_index(
        "ix_best_bucket", "best", ["device_class_id", "policy_id", "kind", "bucket"], unique=False
    )
    op.create_index("ix_best_class", "best", ["device_class_id", "policy_id", "problem_id"], unique=False)
    op.create_index(
        "ix_best_near", "best", ["device_class_id", "policy_id", "kind", "m", "k", "n"], unique=False
    )
