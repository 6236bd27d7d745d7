"""Fills a database with rows as tunings would have left them, for benchmarks that read them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import Engine, insert, select

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models, sessions
from db.best import best_row
from db.engine import now, writing
from db.values import put_policy, put_solutions, table
from tuners.policy import MeasurementPolicy

#: Rows per transaction.
PART = 20_000
BASE = Solution("openblas", 1, {"routine": "matmul", "threads": 64}, "openblas 0.3.31", 0, None)


def fill_class(
    engine: Engine,
    environment: Environment,
    problems: Iterable[GemmProblem],
    winner: Solution,
    policy: MeasurementPolicy,
    judgement: str = "WIN",
    baseline: Solution = BASE,
    number: int = 0,
    new_problems: bool = True,
) -> int:
    """Stores best rows of a device class with their sessions and verdicts, numbered from `number` + 1;
    returns the last number. `new_problems` False: the problems are stored already."""
    rest = iter(problems)
    begun = False
    while part := list(islice(rest, PART)):
        if not begun:
            with writing(engine) as connection:
                start = sessions.SessionStart(
                    part[0], environment, policy.id, policy.to_dict(), {}, origin="x"
                )
                sessions.begin_session(connection, start)
                put_policy(connection, policy.id, policy.to_dict())
                put_solutions(connection, [winner, baseline])
            begun = True
        number = _store(engine, environment, part, winner, baseline, policy, judgement, number, new_problems)
    return number


def _store(
    engine: Engine,
    environment: Environment,
    part: list[GemmProblem],
    winner: Solution,
    base: Solution,
    policy: MeasurementPolicy,
    judgement: str,
    number: int,
    new_problems: bool,
) -> int:
    choose = random.Random(number)
    at, class_id = now(), str(environment.device_class)
    rows: dict[Any, list[dict[str, Any]]] = {
        name: [] for name in (models.Problem, models.Session, models.Verdict, models.Best)
    }
    for problem in part:
        number += 1
        seconds = choose.uniform(1e-5, 1e-2)
        gain = choose.uniform(1.05, 2.0)
        verdict = {
            "judgement": judgement, "baseline": base.id, "baseline_name": "numpy", "winner": winner.id,
            "seconds": seconds, "baseline_seconds": seconds * gain,
            "speedup": {"low": gain * 0.97, "mid": gain, "high": gain * 1.03},
            "tie_set": [winner.id], "rounds": 20, "reason": "faster in the paired test, by more than the margin of 2%",
        }  # fmt: skip
        row = {
            "number": number, "session_id": f"{problem.slug}-{number:016x}", "problem_id": problem.id,
            "device_class_id": class_id, "policy_id": policy.id, "judgement": judgement, "baseline_id": base.id,
            "baseline_name": "numpy", "winner_id": winner.id, "seconds": seconds,
            "baseline_seconds": seconds * gain, "content": verdict, "roofline_share": 0.7, "binds": "memory", "speedup": gain,
            "restricted": False, "budget_seconds": 2.0,
            "created_at": at,
        }  # fmt: skip
        if new_problems:
            rows[models.Problem].append(
                {"id": problem.id, "slug": problem.slug, "m": problem.m, "n": problem.n, "k": problem.k,
                 "batch": problem.batch, "dtype": problem.dtype_a, "dtype_b": problem.dtype_b, "kind": problem.kind,
                 "content": problem.to_dict(), "created_at": at}
            )  # fmt: skip
        rows[models.Session].append(
            {"id": row["session_id"], "problem_id": problem.id, "environment_id": environment.id,
             "device_class_id": class_id, "policy_id": policy.id, "request": {}, "status": "succeeded",
             "created_at": at, "ended_at": at}
        )  # fmt: skip
        rows[models.Verdict].append(row)
        joined = {
            **row, **winner.to_dict(), "problem": problem.to_dict(), "environment_id": environment.id,
            "provenance_kind": None, "provenance_source": None, "provenance_number": None,
        }  # fmt: skip
        rows[models.Best].append(best_row(joined))
    with writing(engine) as connection:
        problem_id = table(models.Problem).c.id
        known = set(connection.scalars(select(problem_id).limit(1)))  # the first was stored with its session
        rows[models.Problem] = [row for row in rows[models.Problem] if row["id"] not in known]
        for model, values in rows.items():
            if values:
                connection.execute(insert(table(model)), values)
    return number
