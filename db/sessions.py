"""Sessions, their measurements and verdicts; best rows follow (best.py).

Every write is idempotent: rows that exist already stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from backends.canonical import short_hash
from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models
from db.best import refresh_best, refresh_winners
from db.engine import now
from db.judged import is_judged, unjudged
from db.targets import put_targets
from db.values import (
    finite,
    insert_new,
    put_environment,
    put_policy,
    put_problems,
    put_solutions,
    storable,
    table,
)

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_solution = table(models.Solution)

#: The largest budget of an imported session that counts: that of the highest effort.
MOST_CLAIMED_SECONDS = 30.0


@dataclass(frozen=True)
class SessionStart:
    """Identifies a session: equal starts are the same session. `request` holds budget, search and rule;
    `job_id` is the job that runs it, `provenance_number` the source of an imported one. `options`, the
    constants of the search, are stored with the session but are not part of its identity."""

    problem: GemmProblem
    environment: Environment
    policy_id: str
    policy: Mapping[str, Any]
    request: Mapping[str, Any]
    job_id: str | None = None
    provenance_number: int | None = None
    origin: str = ""
    options: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """The problem's slug and a hash of the start."""
        identity = [
            self.job_id,
            self.origin,
            self.problem.id,
            self.environment.to_dict(),
            self.policy_id,
            dict(self.request),
        ]
        return f"{self.problem.slug}-{short_hash(identity, 16)}"


def begin_session(connection: Connection, start: SessionStart) -> str:
    """Stores the session and every row that it refers to, unless they exist; returns its id."""
    put_environment(connection, start.environment, registered=start.provenance_number is None)
    put_policy(connection, start.policy_id, start.policy)
    put_problems(connection, [start.problem])
    row = {
        "id": start.id,
        "job_id": start.job_id,
        "problem_id": start.problem.id,
        "environment_id": start.environment.id,
        "device_class_id": str(start.environment.device_class),
        "policy_id": start.policy_id,
        "provenance_number": start.provenance_number,
        "request": dict(start.request) | ({} if start.options is None else {"options": dict(start.options)}),
        "status": "running",
        "created_at": now(),
    }
    insert_new(connection, models.Session, [row])
    return start.id


def stored_outcomes(connection: Connection, session_id: str) -> list[Outcome]:
    """Every outcome of the session in the order stored."""
    query = (
        select(_measurement, _solution)
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .where(_measurement.c.session_id == session_id)
        .order_by(_measurement.c.number)
    )
    out = []
    for row in connection.execute(query).mappings():
        values = dict(solution_values(row), workspace_bytes=row[_measurement.c.workspace_bytes])
        out.append(
            Outcome(
                Solution.from_dict(values),
                Phase(row["phase"]),
                Status(row["status"]),
                tuple(row["samples"]),
                row["evidence"],
            )
        )
    return out


def stored_result(connection: Connection, session_id: str) -> dict[str, Any] | None:
    """How the session ended, in the form that end_session() takes; None for a session without a verdict."""
    problem = table(models.Problem)
    query = (
        select(_session, _verdict.c.content, _verdict.c.roofline_share, _verdict.c.binds,
               problem.c.content.label("problem"))
        .join(_verdict, _verdict.c.session_id == _session.c.id)
        .join(problem, problem.c.id == _session.c.problem_id)
        .where(_session.c.id == session_id)
    )  # fmt: skip
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    names = ("problem_id", "problem", "error", "roofline_share", "binds", "counts", "notes")
    return {**{name: row[name] for name in names}, "verdict": row["content"]}


def solution_values(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The values for Solution.from_dict(), from a row with a solution's columns."""
    names = ("id", "family", "version", "parameters", "build", "workspace_bytes", "deterministic")
    return {name: row[_solution.c[name]] for name in names}


def winners(
    connection: Connection, problem_id: str, device_class_id: str, policy_id: str, most: int
) -> list[dict[str, Any]]:
    """The values of at most `most` solutions that won the problem, latest first, each once."""
    latest = func.max(_verdict.c.number).label("latest")
    won = (
        select(_verdict.c.winner_id, latest)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .where(
            _verdict.c.problem_id == problem_id,
            _verdict.c.device_class_id == device_class_id,
            _verdict.c.policy_id == policy_id,
            _verdict.c.judgement == "WIN",
            unjudged(),
        )
        .group_by(_verdict.c.winner_id)
        .subquery()
    )
    query = select(_solution).join(won, won.c.winner_id == _solution.c.id).order_by(won.c.latest.desc())
    return [solution_values(row) for row in connection.execute(query.limit(most)).mappings()]


def incumbent(connection: Connection, start: SessionStart) -> str | None:
    """The solution that the latest verdict of the same problem in the same environment under the same policy
    left in use; None if there is no verdict. A default counts only if at least as much was tried as the
    session is about to: a longer search starts without it."""
    columns = (_verdict.c[name] for name in ("judgement", "winner_id", "restricted", "budget_seconds"))
    query = (
        select(*columns)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .where(
            _verdict.c.problem_id == start.problem.id,
            _verdict.c.device_class_id == str(start.environment.device_class),
            _session.c.environment_id == start.environment.id,
            _verdict.c.policy_id == start.policy_id,
            _session.c.provenance_number.is_(None),
        )
        .order_by(_verdict.c.number.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    seconds = (start.request.get("budget") or {}).get("seconds", 0.0)
    tried = not row.restricted and row.budget_seconds >= seconds
    return row.winner_id if row.judgement == "WIN" or tried else None


def takes(connection: Connection, session_id: str) -> int:
    """The highest `take` of the session's finals and proofs; a new start continues from it."""
    query = select(func.max(_measurement.c.take)).where(
        _measurement.c.session_id == session_id, _measurement.c.phase != Phase.SCREEN.value
    )
    return connection.execute(query).scalar() or 0


def append_outcomes(
    connection: Connection,
    session_id: str,
    outcomes: Sequence[Outcome],
    first_take: int,
    seen: Counter[str],
    learn: bool = True,
) -> None:
    """Stores outcomes. A screening has take 0 and is stored once. Finals and proofs of this start of the
    session are numbered from `first_take` by the counts in `seen`, which the caller keeps for the whole
    start. Best rows are updated with what the outcomes show of their winners' determinism; without `learn`,
    for outcomes of an imported file, they are not."""
    changed = put_solutions(connection, [outcome.solution for outcome in outcomes], learn)
    at, rows = now(), []
    for outcome in outcomes:
        take = 0
        if outcome.phase is not Phase.SCREEN:
            key = f"{outcome.phase}:{outcome.solution.id}"
            take = first_take + seen[key]
            seen[key] += 1
        rows.append(
            {
                "session_id": session_id,
                "solution_id": outcome.solution.id,
                "phase": outcome.phase.value,
                "take": take,
                "status": str(outcome.status),
                "seconds": outcome.seconds,
                "samples": list(outcome.samples),
                "evidence": storable(outcome.evidence),
                "workspace_bytes": outcome.solution.workspace_bytes,
                "created_at": at,
            }
        )
    insert_new(connection, models.Measurement, rows)
    if changed:
        refresh_winners(connection, changed)


def end_session(connection: Connection, start: SessionStart, result: Mapping[str, Any]) -> None:
    """Stores how the session ended: `result` is a tuner's result as plain JSON (verdict, error, counts,
    notes, roofline_share, binds). A verdict rebuilds the best row. Raises SQLAlchemy's IntegrityError for a
    winner, baseline or target's solution that was never stored."""
    verdict = result["verdict"]
    connection.execute(
        update(_session)
        .where(_session.c.id == start.id, _session.c.status != "succeeded")
        .values(
            status="failed" if verdict is None else "succeeded",
            error=storable(result["error"]),
            counts=storable(result["counts"]),
            notes=storable(result["notes"]),
            ended_at=now(),
        )
    )
    if verdict is None:
        return
    row = {
        "session_id": start.id,
        "problem_id": start.problem.id,
        "device_class_id": str(start.environment.device_class),
        "policy_id": start.policy_id,
        "judgement": verdict["judgement"],
        "baseline_id": verdict["baseline"],
        "baseline_name": verdict["baseline_name"],
        "winner_id": verdict["winner"],
        "seconds": verdict["seconds"],
        "baseline_seconds": verdict["baseline_seconds"],
        "content": dict(verdict),
        "roofline_share": result.get("roofline_share"),
        "binds": result.get("binds"),
        "speedup": finite(verdict["speedup"]["mid"]),
        **_weight(start),
        "created_at": now(),
    }
    for (number,) in insert_new(connection, models.Verdict, [row], "number"):
        put_targets(connection, {number: row["content"].get("targets", {})})
    if not is_judged(connection, start.provenance_number):
        refresh_best(connection, start.problem.id, row["device_class_id"], start.policy_id)


def close(connection: Connection, job_id: str, status: str, error: str | None) -> None:
    """Ends the job's sessions that are still running. `status`: stopped | failed."""
    connection.execute(
        update(_session)
        .where(_session.c.job_id == job_id, _session.c.status == "running")
        .values(status=status, error=storable(error), ended_at=now())
    )


def _weight(start: SessionStart) -> dict[str, Any]:
    """The columns of a verdict that rank it among others, from the session's request. An imported one claims
    its budget: more than MOST_CLAIMED_SECONDS does not help it."""
    budget, search = start.request.get("budget", {}), start.request.get("search", {})
    seconds = float(budget.get("seconds", 0.0))
    return {
        "restricted": bool(search.get("families")) or budget.get("candidates") is not None,
        "budget_seconds": seconds if start.provenance_number is None else min(seconds, MOST_CLAIMED_SECONDS),
    }
