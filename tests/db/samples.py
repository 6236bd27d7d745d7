"""Plausible values to store: problems, environments, outcomes, results; and the best rows made of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, select, text

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from db import models, queries, schema, sessions, tunings
from db.engine import writing
from db.values import put_device_class, table
from service.requests import request_content
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule, Judgement, TargetVerdict, Verdict
from tuners.intervals import Interval
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result

HERE = Environment("cpu", "x86_64", "Recorded CPU", 2, 2**34, "CPU-1", "x86-64-v3", libraries={"blas": "1"})
#: The same device with another library: another environment of the same class.
UPDATED = replace(HERE, libraries={"blas": "2"})
CLASS = str(HERE.device_class)
POLICY = MeasurementPolicy()
#: Named, whatever the default is: the kept files of released schemas hold requests for it.
STRATEGY = "exhaustive"
CONTENT = request_content(Budget(), Search(STRATEGY), DecisionRule())

BASELINE = Solution("numpy", 1, {"threads": 2}, build="blas-1", deterministic=True)


def problem(m: int = 16, n: int = 64, k: int = 128) -> GemmProblem:
    """A linear layer."""
    return from_linear(m, n, k, "bf16")


def candidate(tile: int, threads: int = 1, workspace_bytes: int = 0) -> Solution:
    """A kernel of ours."""
    return Solution("packed", 1, {"tile": tile, "threads": threads}, workspace_bytes=workspace_bytes)


def screened(solution: Solution, seconds: float = 2e-6, status: Status = Status.OK) -> Outcome:
    """A screening; without samples where it failed."""
    if status is not Status.OK:
        return Outcome(solution, Phase.SCREEN, status, (), {"error": "planted"})
    samples = tuple(seconds * factor for factor in (1.02, 0.99, 1.0, 1.01, 0.98))
    return Outcome(solution, Phase.SCREEN, status, samples, {"relative_error": 0.001})


def raced(solution: Solution, seconds: float) -> Outcome:
    """A finalist's samples."""
    return Outcome(solution, Phase.FINAL, Status.OK, tuple(seconds for _ in range(8)), {})


def proven(solution: Solution) -> Outcome:
    """A proof."""
    return Outcome(solution, Phase.PROOF, Status.OK, (), {"seeds": 5})


def won(of: GemmProblem, winner: Solution = BASELINE, seconds: float = 1e-6) -> dict[str, Any]:
    """The result of a session that `winner` won, as plain JSON."""
    judgement, gain = Judgement.TIE if winner == BASELINE else Judgement.WIN, Interval(2.5, 3.0, 3.5)
    bundle = TargetVerdict(judgement, winner.id, seconds, 3e-6, gain, 8, "planted", proven=True)
    verdict = Verdict(
        judgement, BASELINE.id, "numpy", winner.id, seconds, 3e-6, gain, (winner.id,), 8, "planted",
        {} if winner == BASELINE else {"bundle": bundle},
    )  # fmt: skip
    return Result(of, verdict, None, 0.5, "memory", {"space": 2, "replayed": 0}, ("a note",)).to_dict()


def lost(of: GemmProblem, error: str = "no library call computes it") -> dict[str, Any]:
    """The result of a session without a verdict."""
    return Result(of, None, error).to_dict()


def start(
    of: GemmProblem, job_id: str | None = None, environment: Environment = HERE
) -> sessions.SessionStart:
    """A session's start."""
    return sessions.SessionStart(of, environment, POLICY.id, POLICY.to_dict(), CONTENT, job_id=job_id)


def store_session(
    connection: Connection,
    begun: sessions.SessionStart,
    winner: Solution = BASELINE,
    seconds: float = 1e-6,
    others: Sequence[Outcome] = (),
) -> str:
    """Stores a whole session that `winner` won; its id."""
    sessions.begin_session(connection, begun)
    outcomes = [screened(BASELINE, 3e-6), *others]
    if winner != BASELINE:
        outcomes.append(screened(winner, seconds))
    outcomes += [raced(BASELINE, 3e-6), raced(winner, seconds), proven(winner)]
    sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
    sessions.end_session(connection, begun, won(begun.problem, winner, seconds))
    return begun.id


def best(connection: Connection, of: str = problem().id) -> dict[str, Any]:
    """The served answer."""
    found = queries.best_documents(connection, [of], CLASS, POLICY.id)
    document: dict[str, Any] = json.loads(found[of])
    return document


def best_rows(connection: Connection) -> list[tuple[Any, ...]]:
    """All of them, by their problems."""
    found = connection.execute(select(table(models.Best)).order_by(table(models.Best).c.problem_id))
    return [tuple(row) for row in found]


def request(priority: int = 10, force: bool = False, seed: int = 0) -> tunings.Request:
    """What a tuning asks for; another seed is another request."""
    content = request_content(Budget(), Search(STRATEGY, seed), DecisionRule())
    return tunings.Request(CLASS, POLICY.id, POLICY.to_dict(), content, priority, force)


def submit(
    engine: Engine, problems: Sequence[GemmProblem], asked: tunings.Request | None = None
) -> tunings.Created:
    """A tuning of these problems, each called once."""
    with writing(engine) as connection:
        put_device_class(connection, HERE.device_class)
        return tunings.create_tuning(connection, asked or request(), [(each, 1) for each in problems])


def become_later(connection: Connection, oldest: str) -> None:
    """What an upgrade by a later gemmtune leaves: revision 9999, with which those from `oldest` on work."""
    connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    schema.set_oldest(connection, oldest)
