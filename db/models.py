"""The tables, and nothing else; docs/database.md draws their relations.

Order comes from `number` columns that the database increments, never from a clock: clocks jump. Times are
UTC in ISO 8601 and only for display. Ids derive from the content (problem, solution, environment, policy,
session) or are random (tuning, job, worker).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    true,
)
from sqlmodel import Field, SQLModel

#: SQLite autoincrements only INTEGER keys; PostgreSQL's INTEGER ends at 2^31.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")


def _json(nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(JSON, nullable=nullable))


class DeviceClass(SQLModel, table=True):
    """`revision` rises with every change of the class's best rows; it is part of the exports' cache key.
    `registered`: a worker registered the class, or a command measured on it here. A class that only imported
    rows name is not: selectors prefer registered classes."""

    __tablename__ = "device_classes"

    id: str = Field(primary_key=True)
    vendor: str
    arch: str
    product: str
    units: int
    revision: int = 0
    registered: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


class Environment(SQLModel, table=True):
    """A device with its driver and libraries; `number` gives the order in which environments were first
    stored. `software` is equal for environments that differ in the device alone."""

    __tablename__ = "environments"

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    device_class_id: str = Field(foreign_key="device_classes.id", index=True)
    uuid: str
    content: Any = _json()
    software: str = Field(default="", sa_column=Column(String, nullable=False, server_default=""))
    created_at: str


class Policy(SQLModel, table=True):
    """A measurement policy."""

    __tablename__ = "policies"

    id: str = Field(primary_key=True)
    content: Any = _json()


class Problem(SQLModel, table=True):
    """A problem in its column-major normal form. `kind` is equal for problems that differ only in sizes,
    leading dimensions and batch strides. `dtype` and `dtype_b` are the formats of its A and its B: B is the A
    of the row-major problem that people write. Versions before `dtype_b` leave it null (db/columns.py)."""

    __tablename__ = "problems"
    __table_args__ = (Index("ix_problems_layer", "kind", "m", "k", "n"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    slug: str = Field(index=True)
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    dtype_b: str | None = None
    kind: str
    content: Any = _json()
    created_at: str


class Provenance(SQLModel, table=True):
    """Where imported rows came from. kind: node (gemmtune's own measurements on a bare node), pretuned
    (claims of a pre-tuned table), imported (claims of another tool, or of another gemmtune) or judged
    (sessions of a user's kernel, which never decide what is best). Importing the same content again changes
    nothing. The number of a removed file is not given again: clients remove files by it, and tags of what
    shows counts rest on the highest one."""

    __tablename__ = "provenance"
    __table_args__ = (
        UniqueConstraint("kind", "format", "sha256", "device_class_id"),
        {"sqlite_autoincrement": True},
    )

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    kind: str
    format: str
    source: str
    sha256: str
    device_class_id: str = ""
    header: Any = _json()
    created_at: str


class ProblemKey(SQLModel, table=True):
    """A tool's own key for a problem, which exports write back unchanged, and its call count."""

    __tablename__ = "problem_keys"
    __table_args__ = (Index("ix_problem_keys_provenance", "provenance_number"),)

    problem_id: str = Field(foreign_key="problems.id", primary_key=True)
    format: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    provenance_number: int = Field(sa_column=Column(_NUMBER, ForeignKey("provenance.number"), nullable=False))
    count: int = 0


class Solution(SQLModel, table=True):
    """`workspace_bytes` is that of the problem that the solution was first stored for; every measurement has
    its own. `deterministic` is what is known so far; False is final."""

    __tablename__ = "solutions"

    id: str = Field(primary_key=True)
    family: str = Field(index=True)
    version: int
    parameters: Any = _json()
    build: str | None = None
    workspace_bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    deterministic: bool | None = None
    created_at: str


class Session(SQLModel, table=True):
    """One problem measured in one environment under one policy. Status: running | succeeded | failed |
    stopped."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("ix_sessions_environment", "environment_id", "number"),
        Index("ix_sessions_provenance", "provenance_number"),
    )

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    job_id: str | None = Field(default=None, index=True)
    problem_id: str = Field(foreign_key="problems.id", index=True)
    environment_id: str = Field(foreign_key="environments.id")
    device_class_id: str = Field(foreign_key="device_classes.id")
    policy_id: str = Field(foreign_key="policies.id")
    provenance_number: int | None = Field(
        default=None, sa_column=Column(_NUMBER, ForeignKey("provenance.number"), nullable=True)
    )
    request: Any = _json()
    status: str
    error: str | None = Field(default=None, sa_column=Column(Text))
    counts: Any = _json(nullable=True)
    notes: Any = _json(nullable=True)
    created_at: str
    ended_at: str | None = None


class Measurement(SQLModel, table=True):
    """One outcome of a session, never overwritten. `take` numbers a solution's outcomes in one phase: racing
    a finalist again adds a new one."""

    __tablename__ = "measurements"
    __table_args__ = (UniqueConstraint("session_id", "solution_id", "phase", "take"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    session_id: str = Field(foreign_key="sessions.id")
    solution_id: str = Field(foreign_key="solutions.id", index=True)
    phase: str
    take: int
    status: str
    seconds: float | None = None
    samples: Any = _json()
    evidence: Any = _json()
    workspace_bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    created_at: str


class Verdict(SQLModel, table=True):
    """A session's decision. `restricted`: the client limited the families or the number of candidates. The
    best row of a problem, device class and policy shows a verdict of this service's own sessions (one that
    was imported only if there is none), from the newest such verdict's environment: among those, unrestricted
    verdicts win over restricted ones, then larger budgets, then the most recent. `speedup` is the median that
    `content` has; null where that is no finite number, and in rows of versions before the column
    (db/columns.py)."""

    __tablename__ = "verdicts"
    __table_args__ = (Index("ix_verdicts_best", "problem_id", "device_class_id", "policy_id"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    session_id: str = Field(foreign_key="sessions.id", unique=True)
    problem_id: str = Field(foreign_key="problems.id")
    device_class_id: str = Field(foreign_key="device_classes.id")
    policy_id: str = Field(foreign_key="policies.id")
    judgement: str
    baseline_id: str = Field(foreign_key="solutions.id")
    baseline_name: str
    winner_id: str = Field(foreign_key="solutions.id")
    seconds: float
    baseline_seconds: float
    content: Any = _json()
    roofline_share: float | None = None
    binds: str | None = None
    speedup: float | None = None
    restricted: bool
    budget_seconds: float
    created_at: str


class TargetVerdict(SQLModel, table=True):
    """A verdict's judgement of the best candidate of an export target, against the verdict's baseline. low,
    mid and high are the speedup over it; an open end is null. `proven`: verified on as many seeds as a
    winner. For a session that judged no targets, the rows are derived from the outcomes of its final."""

    __tablename__ = "target_verdicts"

    verdict_number: int = Field(
        sa_column=Column(_NUMBER, ForeignKey("verdicts.number"), primary_key=True, autoincrement=False)
    )
    target: str = Field(primary_key=True)
    solution_id: str = Field(foreign_key="solutions.id")
    judgement: str
    seconds: float
    baseline_seconds: float
    low: float | None = None
    mid: float
    high: float | None = None
    rounds: int
    proven: bool


class Best(SQLModel, table=True):
    """Derived data: `gemmtune db rebuild` rebuilds it from the verdicts. `document` is the served answer as
    JSON text; kind and sizes serve the search for near problems, `bucket` that of earlier versions.
    `targets_verdict_number` is the verdict whose export targets are exported: the one that the row would show
    if only verdicts with targets counted; null if there is none."""

    __tablename__ = "best"
    __table_args__ = (
        Index("ix_best_class", "device_class_id", "policy_id", "problem_id"),
        Index("ix_best_board", "device_class_id", "policy_id", "verdict_number", "problem_id"),
        Index("ix_best_near", "device_class_id", "policy_id", "kind", "m", "k", "n"),
        Index("ix_best_bucket", "device_class_id", "policy_id", "kind", "bucket"),
    )

    problem_id: str = Field(foreign_key="problems.id", primary_key=True)
    device_class_id: str = Field(foreign_key="device_classes.id", primary_key=True)
    policy_id: str = Field(foreign_key="policies.id", primary_key=True)
    verdict_number: int = Field(sa_column=Column(_NUMBER, ForeignKey("verdicts.number"), nullable=False))
    environment_id: str = Field(foreign_key="environments.id")
    provenance_number: int | None = Field(
        default=None, sa_column=Column(_NUMBER, ForeignKey("provenance.number"), nullable=True)
    )
    kind: str
    m: int
    n: int
    k: int
    batch: int
    bucket: int
    targets_verdict_number: int | None = Field(
        default=None, sa_column=Column(_NUMBER, ForeignKey("verdicts.number"), nullable=True)
    )
    document: str = Field(sa_column=Column(Text, nullable=False))


class Claim(SQLModel, table=True):
    """What an imported file says of a problem, not measured here; solution_id None is the framework's own
    default."""

    __tablename__ = "claims"
    __table_args__ = (
        UniqueConstraint("provenance_number", "problem_id", "device_class_id", "policy_id", "key"),
        Index("ix_claims_problem", "problem_id", "device_class_id"),
    )

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    provenance_number: int = Field(sa_column=Column(_NUMBER, ForeignKey("provenance.number"), nullable=False))
    problem_id: str = Field(foreign_key="problems.id")
    device_class_id: str = Field(foreign_key="device_classes.id")
    policy_id: str = ""
    solution_id: str | None = Field(default=None, foreign_key="solutions.id")
    seconds: float | None = None
    key: str
    content: Any = _json(nullable=True)


class Tuning(SQLModel, table=True):
    """A client's request. Status: queued | running | succeeded | failed | cancelled. The counters count its
    jobs (failed: jobs without a verdict; broken: failed jobs for which the problem is not the reason);
    `last_event` is the number of its latest event. `key_id` is the API key that submitted it."""

    __tablename__ = "tunings"

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    device_class_id: str = Field(foreign_key="device_classes.id")
    policy_id: str = Field(foreign_key="policies.id")
    request: Any = _json()
    status: str = Field(index=True)
    total: int
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    broken: int = 0
    last_event: int = 0
    key_id: str | None = Field(default=None, index=True)
    created_at: str
    ended_at: str | None = None


class Job(SQLModel, table=True):
    """One problem to be measured once, for every tuning that refers to it. `in_flight` is the request's key
    until the job has ended, so that equal requests share the job; `attempt` counts its starts and fences off
    a worker that was taken for dead; `enqueued` says whether the job engine's queue has the job. `retries`
    counts how often it was queued again after a failure, and `earlier_attempts` its starts before the last
    of these; `broken`: it failed for another reason than the problem, which fails its tunings. `traceparent`:
    the span of the request that queued it first."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_queue", "device_class_id", "status", "priority", "number"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    problem_id: str = Field(foreign_key="problems.id", index=True)
    device_class_id: str = Field(foreign_key="device_classes.id")
    policy_id: str = Field(foreign_key="policies.id")
    request: Any = _json()
    request_key: str = Field(index=True)
    in_flight: str | None = Field(default=None, unique=True)
    priority: int
    status: str = Field(index=True)
    attempt: int = 0
    worker_id: str | None = None
    session_id: str | None = None
    stop_requested: bool = False
    error: str | None = Field(default=None, sa_column=Column(Text))
    evidence: Any = _json(nullable=True)
    enqueued: bool = Field(default=True, sa_column=Column(Boolean, nullable=False, server_default=true()))
    retries: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    earlier_attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    broken: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))
    traceparent: str | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None


class TuningJob(SQLModel, table=True):
    """A job's position in a tuning; `count` is how often the client calls the problem."""

    __tablename__ = "tuning_jobs"

    tuning_number: int = Field(
        sa_column=Column(_NUMBER, ForeignKey("tunings.number"), primary_key=True, autoincrement=False)
    )
    position: int = Field(primary_key=True)
    job_number: int = Field(sa_column=Column(_NUMBER, ForeignKey("jobs.number"), nullable=False, index=True))
    count: int = 1


class Event(SQLModel, table=True):
    """A progress event of a tuning, numbered from 1 without gaps."""

    __tablename__ = "events"

    tuning_number: int = Field(
        sa_column=Column(_NUMBER, ForeignKey("tunings.number"), primary_key=True, autoincrement=False)
    )
    number: int = Field(primary_key=True)
    kind: str
    content: Any = _json()
    created_at: str


class Worker(SQLModel, table=True):
    """A worker process of one device. Status: idle | measuring | stopped | dead. `beat` increments while the
    worker lives; `seen_at` is the database's time of the last heartbeat. `lock` names the lock file that only
    one living worker can hold (service.device_lock). `counts` has what the worker has counted since its
    start: jobs by status, their seconds, and outcomes by status. `failure` is what failed last: when, the job
    if it was one, and the reason; `version` is gemmtune's."""

    __tablename__ = "workers"
    __table_args__ = (Index("ix_workers_device", "device_class_id", "device_uuid", "number"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    host: str
    pid: int
    device_class_id: str = Field(foreign_key="device_classes.id")
    environment_id: str = Field(foreign_key="environments.id")
    device_uuid: str
    lock: str
    status: str
    beat: int = 0
    job_id: str | None = None
    started_at: str
    seen_at: str
    counts: Any = _json(nullable=True)
    version: str | None = None
    failure: Any = _json(nullable=True)


class OutlierDevice(SQLModel, table=True):
    """A device on which the default takes another time than on the others of its class (`differs`), or did.
    Best rows show no verdict of one that differs; `applied` says whether all of them follow. `content` has
    the comparison."""

    __tablename__ = "outlier_devices"

    device_class_id: str = Field(foreign_key="device_classes.id", primary_key=True)
    uuid: str = Field(primary_key=True)
    differs: bool
    applied: bool
    content: Any = _json()
    since: str


class DeviceCheck(SQLModel, table=True):
    """How long the default of a problem that another device of the class measured takes on a device: timed
    between two jobs, only to compare the devices. `seconds` is null where it could not be timed;
    `after_verdict` is the number of the latest verdict before it, by which it is ordered among verdicts."""

    __tablename__ = "device_checks"
    __table_args__ = (Index("ix_device_checks_environment", "environment_id"),)

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    environment_id: str = Field(foreign_key="environments.id")
    problem_id: str = Field(foreign_key="problems.id")
    policy_id: str = Field(foreign_key="policies.id")
    baseline_id: str
    seconds: float | None = None
    after_verdict: int = Field(sa_column=Column(BigInteger, nullable=False))
    created_at: str


class ApiKey(SQLModel, table=True):
    """An API key, or a browser's login with one (`login_of`). Only a hash of the secret is stored. `limits`
    replace the settings' for this key."""

    __tablename__ = "api_keys"

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True))
    id: str = Field(unique=True)
    name: str
    hash: str
    scopes: Any = _json()
    limits: Any = _json()
    login_of: str | None = Field(default=None, foreign_key="api_keys.id")
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
