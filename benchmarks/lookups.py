"""Lookups in a database of a million best rows, without HTTP: exact ones, near ones, and a worker's history.

See benchmarks.api, whose `near` this is. `exact`: the document of a stored problem, as GET /v1/solutions/best reads it.
`near`: the search for the best rows near a problem that has none. `answer`: that with everything else that such a lookup
does. No near row is served: the solution that all rows have is illegal for what is asked, so that as many of them are
tried as ever are. `history`: what a worker reads before a job, from sessions with MEASURED outcomes each. `cpu_ms` is the
mean of the processors' time, of the server of PostgreSQL too, which must run on this machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from backends.environment import Environment
from backends.problem import GemmProblem, from_mm
from backends.solution import Solution
from benchmarks.stored import BASE
from db import history, models, neighbours
from db.engine import now, open_engine, reading, writing
from db.lookup import open_lookup
from db.values import put_solutions, table
from service import best as find_best
from tuners.policy import MeasurementPolicy

EXACT, NEAR, HISTORY = 2000, 400, 100
#: Outcomes of each session that a history reads.
MEASURED = 60


def asked(count: int) -> list[GemmProblem]:
    """Problems without a row: of other numbers of tokens than are stored, of stored weights and of others."""
    choose = random.Random(3)
    made: dict[str, GemmProblem] = {}
    while len(made) < count:
        m = choose.choice((*range(513, 1024), *range(1025, 8192, 7)))
        n, k = 512 * choose.randrange(1, 41), 512 * choose.randrange(1, 17)
        one = from_mm(m, n + choose.choice((0, 8, 136)), k + choose.choice((0, 0, 64)), "bf16")
        made[one.id] = one
    return list(made.values())


def figures(
    url: str, environment: Environment, policy: MeasurementPolicy, stored: Iterable[GemmProblem]
) -> dict[str, Any]:
    """Milliseconds of every kind of lookup in a database that benchmarks.api filled."""
    engine = open_engine(url)
    where = environment.device_class
    problems = asked(NEAR)
    for problem in problems[:HISTORY]:
        with writing(engine) as connection:
            _measure(connection, problem, environment, policy)
    found: dict[str, Any] = {
        "exact": _summary(asyncio.run(_exact(url, str(where), policy.id, list(stored)))),
    }
    with reading(engine) as connection:
        found["rows_stored"] = connection.scalar(select(func.count()).select_from(table(models.Best)))
        lookup = find_best.Asked(where, policy.id)
        for name, count, read in (
            ("near", NEAR, lambda p: neighbours.around(
                connection, neighbours.Where(str(where), policy.id, p.kind), p, find_best.MAX_SEEN)),
            ("answer", NEAR, lambda p: find_best.answer(connection, lookup, p, None)),
            ("history", HISTORY, lambda p: history.nearest(connection, p, where, policy.id)),
        ):  # fmt: skip
            spent = _cpu(connection)
            seconds = _timed(read, problems[:count])
            found[name] = {**_summary(seconds), "cpu_ms": (_cpu(connection) - spent) / count * 1e3}
    engine.dispose()
    return found


async def _exact(url: str, device: str, policy_id: str, stored: Sequence[GemmProblem]) -> list[float]:
    lookup = open_lookup(url)
    seconds = []
    for problem in random.Random(4).sample(stored, min(EXACT, len(stored))):
        begin = time.perf_counter()
        document = await lookup.document(problem.id, device, policy_id)
        seconds.append(time.perf_counter() - begin)
        if document is None:
            raise AssertionError(f"{problem.id} has no row")
    await lookup.close()
    return seconds


def _cpu(connection: Connection) -> float:
    """Processor seconds of this process, and of the database's where that is another, so far."""
    spent = time.process_time()
    if connection.dialect.name == "postgresql":
        pid = connection.scalar(select(func.pg_backend_pid()))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _timed(read: Callable[[GemmProblem], object], problems: Sequence[GemmProblem]) -> list[float]:
    seconds = []
    for problem in problems:
        begin = time.perf_counter()
        read(problem)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _summary(seconds: Sequence[float]) -> Mapping[str, float]:
    ordered = sorted(seconds)
    return {
        "lookups": len(ordered),
        **{
            f"{name}_ms": ordered[round(share * (len(ordered) - 1))] * 1e3
            for name, share in (("p50", 0.5), ("p95", 0.95), ("worst", 1.0))
        },
    }


def _measure(
    connection: Connection, problem: GemmProblem, environment: Environment, policy: MeasurementPolicy
) -> None:
    """Gives the sessions that the problem's history reads their outcomes."""
    verdict, measurement = table(models.Verdict), table(models.Measurement)
    device = environment.device_class
    candidates = [
        Solution("packed", 1, {"mr": 6, "nr": 64, "threads": count}, None, 0, True)
        for count in range(1, MEASURED)
    ]
    put_solutions(connection, candidates)
    numbers = [row.verdict_number for row in history.nearby(connection, problem, device, policy.id)]
    sessions = list(connection.scalars(select(verdict.c.session_id).where(verdict.c.number.in_(numbers))))
    connection.execute(delete(measurement).where(measurement.c.session_id.in_(sessions)))
    at = now()
    rows = [
        {
            "session_id": session, "solution_id": one.id, "phase": "screen", "take": 1, "status": "ok",
            "seconds": 1e-4 * (1 + place), "samples": [1e-4] * 5, "evidence": {}, "workspace_bytes": 0,
            "created_at": at,
        }
        for session in sessions
        for place, one in enumerate((BASE, *candidates))
    ]  # fmt: skip
    connection.execute(insert(measurement), rows)
