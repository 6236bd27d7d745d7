"""A database for the pages: the recorded H200 sessions, some of them again in a later environment, a CPU,
lists, workers of every state, and tunings that run, ended and failed."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, select, update

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.wire import problem_to_wire
from db import jobs, models, sessions, tunings, workers
from db.engine import open_engine, writing
from db.values import table
from service.imports import import_file
from service.requests import request_content
from service.settings import Settings
from service.startup import upgrade
from tests.golden.texts import unpacked
from tests.service.http.filled import ENVIRONMENT, measured, problem
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule
from tuners.policy import MeasurementPolicy

H200 = "cuda:sm_90:NVIDIA-H200:132"
POLICY = MeasurementPolicy.of("cuda")
#: A file's name, as anyone may give it.
MARKUP = '<img src=x onerror="alert(1)">.jsonl'
_session = table(models.Session)
_verdict = table(models.Verdict)
_worker = table(models.Worker)
_problem = table(models.Problem)
_environment = table(models.Environment)


@dataclass(frozen=True)
class Recorded:
    """The database, and what tests name in it."""

    settings: Settings
    problem_id: str
    session_id: str
    running: str
    ended: str
    environments: tuple[str, str]


def recorded_database(folder: Path) -> Recorded:
    """A new database in the folder."""
    path = unpacked(folder)
    settings = Settings(database_url=f"sqlite:///{path}", cache_dir=folder / "cache", pretuned=False)
    upgrade(settings)
    engine = open_engine(settings.database_url)
    try:
        return _filled(engine, settings)
    finally:
        engine.dispose()


def _filled(engine: Engine, settings: Settings) -> Recorded:
    with writing(engine) as connection:
        rows = _recorded(connection)
        before = rows[0]["environment"]
        later = replace(before, driver="585.42.01", runtime="CUDA 13.1")
        again(connection, rows[::2], later)
        for size in (256, 512, 1024):
            for tokens in (16, 64):
                measured(connection, problem(tokens, size, 512), scale=1e-6 * size * tokens / 512)
        _workers(connection, before, later)
        running, ended = _tunings(connection, rows, later)
        first = max(rows, key=lambda row: row["verdict"]["speedup"]["mid"])
    calls = {row["problem"]: 32 for row in rows if row["problem"].dtype_a == "bf16"}
    import_file(engine, _list(calls), "llama-3-8b.jsonl")
    import_file(engine, _list(dict.fromkeys(list(calls)[:5], 7)), MARKUP)
    return Recorded(settings, first["problem"].id, first["id"], running, ended, (before.id, later.id))


def _list(calls: Mapping[GemmProblem, int]) -> io.BytesIO:
    lines = [orjson.dumps({**problem_to_wire(one), "count": count}) for one, count in calls.items()]
    return io.BytesIO(b"\n".join(lines) + b"\n")


def _recorded(connection: Connection) -> list[dict[str, Any]]:
    """The recorded sessions: id, problem, environment, verdict, outcomes' owner, share of the roofline."""
    query = (
        select(_session.c.id, _problem.c.content.label("problem"),
               _environment.c.content.label("environment"), _verdict.c.content.label("verdict"),
               _verdict.c.roofline_share, _verdict.c.binds)
        .join(_verdict, _verdict.c.session_id == _session.c.id)
        .join(_problem, _problem.c.id == _session.c.problem_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .order_by(_session.c.number)
    )  # fmt: skip
    return [
        {
            **row,
            "problem": GemmProblem.from_dict(row["problem"]),
            "environment": Environment.from_dict(row["environment"]),
        }
        for row in connection.execute(query).mappings()
    ]


def scaled(verdict: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A recorded verdict with the winner's time times a factor."""
    speedup = {name: value and value / factor for name, value in verdict["speedup"].items()}
    won = verdict["judgement"] == "WIN" and (speedup["low"] or 0) > 1.0
    return {
        **verdict,
        "judgement": "WIN" if won else "TIE",
        "seconds": verdict["seconds"] * factor if won else verdict["baseline_seconds"],
        "winner": verdict["winner"] if won else verdict["baseline"],
        "speedup": speedup,
    }


def again(connection: Connection, rows: list[dict[str, Any]], environment: Environment) -> None:
    """The recorded sessions as a later environment may have had them: some faster, some slower."""
    choose = random.Random(3)
    for row in rows:
        factor = choose.choice((0.9, 0.97, 1.0, 1.0, 1.08, 1.3))
        start = _start(row["problem"], environment, "again")
        sessions.begin_session(connection, start)
        outcomes = sessions.stored_outcomes(connection, row["id"])
        moved = [replace(one, samples=tuple(s * factor for s in one.samples)) for one in outcomes]
        sessions.append_outcomes(connection, start.id, moved, 1, Counter())
        sessions.end_session(connection, start, _result(row, scaled(row["verdict"], factor)))


def _start(
    of: GemmProblem, environment: Environment, origin: str, job: str | None = None
) -> sessions.SessionStart:
    return sessions.SessionStart(
        of, environment, POLICY.id, POLICY.to_dict(), _request(), job_id=job, origin=origin
    )


def _request() -> dict[str, Any]:
    return request_content(Budget(), Search(), DecisionRule())


def _result(row: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    bound = row["roofline_share"] * row["verdict"]["seconds"]
    share = bound / verdict["seconds"]
    return {
        "verdict": verdict,
        "error": None,
        "roofline_share": share if share <= 1 else None,
        "binds": row["binds"],
        "counts": {"search_ended": "budget spent"},
        "notes": ["clocks were steady at 1980 MHz"],
    }


def _workers(connection: Connection, before: Environment, later: Environment) -> None:
    for number, (environment, uuid) in enumerate(((later, "GPU-0"), (later, "GPU-1"), (before, "GPU-2"))):
        workers.register(
            connection,
            f"worker-{number}",
            f"node-{number // 2}",
            4000 + number,
            replace(environment, uuid=uuid),
        )
    workers.register(connection, "worker-cpu", "build-<b>1</b>", 77, ENVIRONMENT)
    gone = _worker.c.id == "worker-2"
    connection.execute(update(_worker).where(gone).values(seen_at="2026-01-31T12:00:00.000Z"))


def _tunings(connection: Connection, rows: list[dict[str, Any]], environment: Environment) -> tuple[str, str]:
    """A tuning that runs, one that ended, and one that failed; the ids of the first two."""
    ended = _tuning(connection, rows[:3], 20)
    for row, name in zip(rows[:3], ended.new_jobs, strict=True):
        _measure(connection, name, row, environment)
    failed = _tuning(connection, rows[3:4], 10)
    job = jobs.start_job(connection, failed.new_jobs[0], "worker-0")
    assert job is not None
    evidence = {"signal": "SIGSEGV", "log": ["<script>alert(1)</script>", "cudaErrorIllegalAddress"]}
    jobs.end_job(connection, job, "failed", {}, "the device process ended: crash", evidence, broken=True)
    running = _tuning(connection, rows[4:14], 30)
    for row, name in zip(rows[4:8], running.new_jobs, strict=False):
        _measure(connection, name, row, environment)
    _measure(connection, running.new_jobs[4], rows[8], environment, complete=False)
    return running.id, ended.id


def _tuning(connection: Connection, rows: list[dict[str, Any]], priority: int) -> tunings.Created:
    request = tunings.Request(H200, POLICY.id, POLICY.to_dict(), _request(), priority, True)
    items = [(row["problem"], 32) for row in rows]
    made = tunings.create_tuning(connection, request, items)
    jobs.mark_enqueued(connection, made.new_jobs)
    return made


def _measure(
    connection: Connection,
    job_id: str,
    row: Mapping[str, Any],
    environment: Environment,
    complete: bool = True,
) -> None:
    """Runs a job as a worker does: its session, events, and its end."""
    job = jobs.start_job(connection, job_id, "worker-0")
    assert job is not None
    start = _start(row["problem"], environment, "", job_id)
    session_id = sessions.begin_session(connection, start)
    jobs.hold(connection, job, session_id=session_id)
    outcomes = sessions.stored_outcomes(connection, row["id"])
    if not complete:
        outcomes = [one for one in outcomes if one.phase is Phase.SCREEN][:40]
        outcomes[7] = Outcome(
            outcomes[7].solution, Phase.SCREEN, Status.WRONG_RESULT, (), {"wrong": "element [3, 5]"}
        )
    sessions.append_outcomes(connection, session_id, outcomes, 1, Counter())
    seen = Counter(str(one.status) for one in outcomes)
    fastest = min((one for one in outcomes if one.seconds), key=lambda one: one.seconds or 0.0)
    told = {"solution_id": fastest.solution.id, "seconds": fastest.seconds}
    progress = {"job_id": job.id, "problem_id": job.problem_id, "outcomes": dict(seen), "fastest": told}
    jobs.emit_to_all(connection, job.number, "measured", progress)
    if complete:
        sessions.end_session(connection, start, _result(row, row["verdict"]))
        summary = {"session_id": session_id, "outcomes": dict(seen), "verdict": row["verdict"]}
        jobs.end_job(connection, job, "succeeded", summary)
