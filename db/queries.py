"""The reads behind the API and the commands. Rows are plain dicts; lists are paged by a key that only grows
(or by a name), so that pages never shift under a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from db import models, outliers
from db.columns import type_of_a
from db.liveness import alive
from db.values import among, chunks, table

_class = table(models.DeviceClass)
_environment = table(models.Environment)
_policy = table(models.Policy)
_problem = table(models.Problem)
_provenance = table(models.Provenance)
_key = table(models.ProblemKey)
_solution = table(models.Solution)
_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_best = table(models.Best)
_claim = table(models.Claim)
_tuning = table(models.Tuning)
_job = table(models.Job)
_link = table(models.TuningJob)
_event = table(models.Event)
_worker = table(models.Worker)

Row = dict[str, Any]


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _one(connection: Connection, query: Select[Any]) -> Row | None:
    row = connection.execute(query).mappings().first()
    return None if row is None else dict(row)


# ---- devices -------------------------------------------------------------------------------------


def device_classes(connection: Connection) -> list[Row]:
    """Every class with its numbers of live workers and of environments, and the devices that differ."""
    live = select(func.count()).where(_worker.c.device_class_id == _class.c.id, alive(connection))
    met = select(func.count()).where(_environment.c.device_class_id == _class.c.id)
    query = select(
        _class, live.scalar_subquery().label("workers"), met.scalar_subquery().label("environments")
    ).order_by(_class.c.id)
    differing = [row for row in outliers.rows(connection) if row["differs"]]
    return [
        {**row, "outliers": [one for one in differing if one["device_class_id"] == row["id"]]}
        for row in _rows(connection, query)
    ]


def largest_memory(connection: Connection, device_class_id: str) -> int | None:
    """Bytes of memory of the class's largest device; None if no device of the class is known."""
    query = select(_environment.c.content).where(_environment.c.device_class_id == device_class_id)
    found = [content["memory_bytes"] for content in connection.scalars(query)]
    return max(found, default=None)


def revision(connection: Connection, device_class_id: str) -> int:
    """The class's revision, which rises with every change of its best rows; 0 for an unknown class."""
    query = select(_class.c.revision).where(_class.c.id == device_class_id)
    return connection.execute(query).scalar() or 0


def environments(
    connection: Connection, after: int, limit: int, device_class_id: str | None = None
) -> list[Row]:
    """Environments by number."""
    query = select(_environment).where(_environment.c.number > after).order_by(_environment.c.number)
    if device_class_id is not None:
        query = query.where(_environment.c.device_class_id == device_class_id)
    return _rows(connection, query.limit(limit))


# ---- problems and what was measured --------------------------------------------------------------


def problems(connection: Connection, after: int, limit: int, **filters: Any) -> list[Row]:
    """Problems by number; filters: m, n, k and batch of the stored, column-major problem; dtype of A as
    people write the problem, row-major."""
    query = select(_problem).where(_problem.c.number > after).order_by(_problem.c.number)
    for name, value in filters.items():
        if value is not None:
            query = query.where((type_of_a() if name == "dtype" else _problem.c[name]) == value)
    return _rows(connection, query.limit(limit))


def problem(connection: Connection, problem_id: str) -> Row | None:
    """A problem with its verdicts, latest first, and the tools' own keys for it."""
    found = _one(connection, select(_problem).where(_problem.c.id == problem_id))
    if found is None:
        return None
    verdicts = select(_verdict).where(_verdict.c.problem_id == problem_id).order_by(_verdict.c.number.desc())
    keys = select(_key.c.format, _key.c.key, _key.c.count).where(_key.c.problem_id == problem_id)
    found["verdicts"] = _rows(connection, verdicts.limit(100))
    found["keys"] = _rows(connection, keys.order_by(_key.c.format, _key.c.key).limit(100))
    return found


def measurements(
    connection: Connection,
    problem_id: str,
    after: int,
    limit: int,
    device_class_id: str | None = None,
    session_id: str | None = None,
) -> list[Row]:
    """Every outcome of a problem, in the order stored, with its solution and session."""
    query = (
        select(_measurement, *_solution_columns(), _session.c.environment_id, _session.c.device_class_id,
               _session.c.policy_id, _session.c.provenance_number)
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .join(_session, _session.c.id == _measurement.c.session_id)
        .where(_session.c.problem_id == problem_id, _measurement.c.number > after)
        .order_by(_measurement.c.number)
    )  # fmt: skip
    if device_class_id is not None:
        query = query.where(_session.c.device_class_id == device_class_id)
    if session_id is not None:
        query = query.where(_session.c.id == session_id)
    return [_with_solution(row) for row in _rows(connection, query.limit(limit))]


def leaderboard(connection: Connection, session_id: str) -> list[Row]:
    """One row per solution of a session: its last outcome of each phase. Ordered by the seconds that are
    shown, the fastest first, whether they are of the final or of the screening; failures, those of a proof
    too, last."""
    query = (
        select(_measurement, *_solution_columns())
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .where(_measurement.c.session_id == session_id)
        .order_by(_measurement.c.number)
    )
    rows: dict[str, Row] = {}
    for row in _rows(connection, query):
        seen = rows.setdefault(row["solution_id"], {**_with_solution(row), "phases": {}})
        seen["phases"][row["phase"]] = {n: row[n] for n in ("status", "seconds", "take")}
        seen |= {n: row["evidence"][n] for n in ("resources", "packing") if row["evidence"].get(n)}
        if row["phase"] != "proof":
            seen.update({n: row[n] for n in ("phase", "status", "seconds", "samples", "evidence")})

    def place(row: Row) -> tuple[Any, ...]:
        right = all(one["status"] in ("ok", "pruned", "unstable") for one in row["phases"].values())
        return (row["seconds"] is None or not right, row["seconds"] or 0.0, row["solution_id"])

    return sorted(rows.values(), key=place)


def session_verdict(connection: Connection, session_id: str) -> Any | None:
    """The values of a session's verdict."""
    return connection.execute(select(_verdict.c.content).where(_verdict.c.session_id == session_id)).scalar()


def session(connection: Connection, session_id: str) -> Row | None:
    """A session's row."""
    return _one(connection, select(_session).where(_session.c.id == session_id))


def latest_session(
    connection: Connection, problem_id: str, device_class_id: str | None, policy_id: str | None
) -> Row | None:
    """The problem's newest session with a verdict, else its newest session."""
    query = select(_session).where(_session.c.problem_id == problem_id)
    if device_class_id is not None:
        query = query.where(_session.c.device_class_id == device_class_id)
    if policy_id is not None:
        query = query.where(_session.c.policy_id == policy_id)
    first = case((_session.c.status == "succeeded", 0), else_=1)
    return _one(connection, query.order_by(first, _session.c.number.desc()).limit(1))


def solution(connection: Connection, solution_id: str) -> Row | None:
    """A solution with counts of verdicts won and of measurements; its workspace is the largest measured."""
    found = _one(connection, select(_solution).where(_solution.c.id == solution_id))
    if found is None:
        return None
    wins = select(func.count()).where(_verdict.c.winner_id == solution_id)
    runs = select(func.count(), func.max(_measurement.c.workspace_bytes)).where(
        _measurement.c.solution_id == solution_id
    )
    found["verdicts_won"] = connection.execute(wins).scalar() or 0
    found["measurements"], largest = connection.execute(runs).one()
    if largest is not None:
        found["workspace_bytes"] = largest
    return found


def _solution_columns() -> tuple[Any, ...]:
    names = ("family", "version", "parameters", "build", "deterministic")
    return tuple(_solution.c[name] for name in names)


def _with_solution(row: Row) -> Row:
    names = ("family", "version", "parameters", "build", "deterministic")
    rest = {name: value for name, value in row.items() if name not in names}
    inner = {name: row[name] for name in names}
    rest["solution"] = {"id": row["solution_id"], **inner, "workspace_bytes": row["workspace_bytes"]}
    return rest


# ---- best ----------------------------------------------------------------------------------------


def best_documents(
    connection: Connection, problem_ids: Sequence[str], device_class_id: str, policy_id: str
) -> dict[str, str]:
    """Problem id -> the served answer (JSON text)."""
    found: dict[str, str] = {}
    for part in chunks(problem_ids):
        query = select(_best.c.problem_id, _best.c.document).where(
            among(connection, _best.c.problem_id, part),
            _best.c.device_class_id == device_class_id,
            _best.c.policy_id == policy_id,
        )
        found |= {row.problem_id: row.document for row in connection.execute(query)}
    return found


def alternatives(connection: Connection, session_id: str) -> list[Row]:
    """The session's timed outcomes with their solutions, finals first, then the fastest first: a caller that
    cannot use the winner (workspace, determinism, families) takes the first that it can use. Solutions that
    failed in any phase of the session (the proof, say) are left out."""
    usable = ("ok", "unstable", "pruned")
    failed = select(_measurement.c.solution_id).where(
        _measurement.c.session_id == session_id, _measurement.c.status.not_in(usable)
    )
    query = (
        select(_measurement, *_solution_columns())
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .where(
            _measurement.c.session_id == session_id,
            _measurement.c.status.in_(usable),
            _measurement.c.seconds.is_not(None),
            _measurement.c.solution_id.not_in(failed),
        )
    )
    finals = case((_measurement.c.phase == "final", 0), else_=1)
    rows = _rows(connection, query.order_by(finals, _measurement.c.seconds))
    return [_with_solution(row) for row in rows]


def best_environments(connection: Connection, device_class_id: str, policy_id: str, limit: int) -> list[Row]:
    """The environments of the class's best rows, that of the newest verdict first."""
    last = (
        select(_best.c.environment_id, func.max(_best.c.verdict_number).label("last"))
        .where(_best.c.device_class_id == device_class_id, _best.c.policy_id == policy_id)
        .group_by(_best.c.environment_id)
        .subquery()
    )
    query = (
        select(_environment.c.id, _environment.c.content)
        .join(last, last.c.environment_id == _environment.c.id)
        .order_by(last.c.last.desc())
        .limit(limit)
    )
    return _rows(connection, query)


def best_policies(connection: Connection, device_class_id: str) -> list[tuple[str, int]]:
    """The policies with best rows of the class, with the number of rows, the most first."""
    query = (
        select(_best.c.policy_id, func.count())
        .where(_best.c.device_class_id == device_class_id)
        .group_by(_best.c.policy_id)
        .order_by(func.count().desc(), _best.c.policy_id)
    )
    return [(policy_id, count) for policy_id, count in connection.execute(query)]


def environment_contents(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    """Id -> the environment's values."""
    query = select(_environment.c.id, _environment.c.content).where(_environment.c.id.in_(list(ids)))
    return {row.id: row.content for row in connection.execute(query)}


def policy_content(connection: Connection, policy_id: str) -> Any | None:
    """A policy's values."""
    return connection.execute(select(_policy.c.content).where(_policy.c.id == policy_id)).scalar()


# ---- tunings -------------------------------------------------------------------------------------


def tunings(connection: Connection, before: int | None, limit: int, status: str | None = None) -> list[Row]:
    """Tunings, newest first."""
    query = select(_tuning).order_by(_tuning.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(_tuning.c.number < before)
    if status is not None:
        query = query.where(_tuning.c.status == status)
    return _rows(connection, query)


def tuning(connection: Connection, tuning_id: str) -> Row | None:
    """A tuning's row."""
    return _one(connection, select(_tuning).where(_tuning.c.id == tuning_id))


def tuning_jobs(connection: Connection, tuning_number: int, after: int, limit: int) -> list[Row]:
    """A tuning's jobs by position, with their verdicts (None where there is none)."""
    names = (
        "judgement",
        "baseline_name",
        "winner_id",
        "seconds",
        "baseline_seconds",
        "roofline_share",
        "binds",
    )
    query = (
        select(
            _link.c.position, _link.c.count, _job.c.id, _job.c.problem_id, _job.c.status, _job.c.attempt,
            _job.c.session_id, _job.c.error, _job.c.evidence, _job.c.created_at, _job.c.started_at,
            _job.c.ended_at, _problem.c.content.label("problem"), _session.c.notes,
            _session.c.counts, _session.c.status.label("session_status"),
            _verdict.c.content.label("verdict"), *(_verdict.c[name] for name in names),
        )
        .join(_job, _job.c.number == _link.c.job_number)
        .join(_problem, _problem.c.id == _job.c.problem_id)
        .outerjoin(_session, _session.c.id == _job.c.session_id)
        .outerjoin(_verdict, _verdict.c.session_id == _job.c.session_id)
        .where(_link.c.tuning_number == tuning_number, _link.c.position > after)
        .order_by(_link.c.position)
        .limit(limit)
    )  # fmt: skip
    return _rows(connection, query)


def events(connection: Connection, tuning_number: int, after: int, limit: int) -> list[Row]:
    """A tuning's events after a number."""
    query = (
        select(_event.c.number, _event.c.kind, _event.c.content, _event.c.created_at)
        .where(_event.c.tuning_number == tuning_number, _event.c.number > after)
        .order_by(_event.c.number)
        .limit(limit)
    )
    return _rows(connection, query)


def tuning_states(connection: Connection, numbers: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Number -> a tuning's status and the number of its latest event."""
    found: dict[int, tuple[str, int]] = {}
    for part in chunks(numbers):
        query = select(_tuning.c.number, _tuning.c.status, _tuning.c.last_event).where(
            _tuning.c.number.in_(list(part))
        )
        found |= {row.number: (row.status, row.last_event) for row in connection.execute(query)}
    return found
