"""How long the report of what tuning is worth takes: 20,000 best rows, 20,000 problems to tune, a million measurements.

    python -m benchmarks.worth [--rows 20000] [--measurements 1000000] [--folder DIR] [--postgres]

On SQLite, and with --postgres on a server of its own as well (PostgreSQL's programs must be installed).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, insert, select

from backends.registry import find_device
from benchmarks import report, stored
from benchmarks.rebuild import OTHER, POLICY, WINNER, problems
from db import models, worth
from db.engine import now, reading, writing
from db.values import put_problems, put_solutions, table
from service.settings import Settings
from service.startup import open_database, upgrade
from service.worth import worth_report
from tests.postgres import PostgresServer
from tests.service.formats.contract_inputs import H200, TORCH
from tuners.policy import MeasurementPolicy

REPEATS = 5


def fill(engine: Engine, rows: int, measurements: int, policy: MeasurementPolicy = POLICY) -> None:
    """Best rows with their measurements, as many problems without one, and the calls of all in one file."""
    rest = problems()
    tuned, untuned = list(islice(rest, rows)), list(islice(rest, rows))
    with writing(engine) as connection:
        put_solutions(connection, [TORCH, WINNER, OTHER])
    stored.fill_class(engine, H200, tuned, WINNER, policy, baseline=TORCH)
    choose, at = random.Random(0), now()
    made = {
        "kind": "imported",
        "format": "csv",
        "source": "app.csv",
        "sha256": "0",
        "device_class_id": "",
        "header": {},
        "created_at": at,
    }
    with writing(engine) as connection:
        put_problems(connection, untuned)
        number = connection.execute(
            insert(table(models.Provenance)).values(made).returning(table(models.Provenance).c.number)
        ).scalar_one()
        keys = [
            {
                "problem_id": one.id,
                "format": "csv",
                "key": one.id,
                "provenance_number": number,
                "count": choose.randint(1, 1000),
            }
            for one in (*tuned, *untuned)
        ]
        connection.execute(insert(table(models.ProblemKey)), keys)
        sessions = connection.scalars(
            select(table(models.Session).c.id).where(table(models.Session).c.status == "succeeded")
        ).all()
    each = measurements // max(1, len(sessions))
    for start in range(0, len(sessions), 1000):
        values: list[dict[str, Any]] = [
            {"session_id": name, "solution_id": OTHER.id, "phase": "screen", "take": take, "status": "ok", "seconds": 1e-5,
             "samples": [1e-5] * 3, "evidence": {}, "workspace_bytes": 0, "created_at": at}
            for name in sessions[start : start + 1000]
            for take in range(each)
        ]  # fmt: skip
        with writing(engine) as connection:
            if values:
                connection.execute(insert(table(models.Measurement)), values)


def timed(url: str, rows: int, measurements: int) -> dict[str, Any]:
    """Least CPU seconds of this process, and wall-clock seconds, of the two reads and of the whole report."""
    settings = Settings(database_url=url)
    upgrade(settings)
    engine = open_database(settings)
    fill(engine, rows, measurements)
    scope = worth.Scope(str(H200.device_class), POLICY.id)
    found: dict[str, list[tuple[float, float]]] = {"tuned rows": [], "untuned rows": [], "report": []}
    for _ in range(REPEATS):
        with reading(engine) as connection:
            for name, call in (
                ("tuned rows", lambda: worth.tuned(connection, scope)),
                ("untuned rows", lambda: worth.untuned(connection, scope)),
                ("report", lambda: worth_report(connection, scope)),
            ):
                begin, cpu = time.perf_counter(), time.process_time()
                call()
                found[name].append((time.process_time() - cpu, time.perf_counter() - begin))
    engine.dispose()
    return {
        name: dict(zip(("cpu", "wall"), map(min, zip(*values, strict=True)), strict=True))
        for name, values in found.items()
    }


def main() -> None:
    """Measures and writes worth.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--measurements", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where the database is made (a temporary folder)")
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {"rows": given.rows, "measurements": given.measurements, "seconds": {}}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures["seconds"]["sqlite"] = timed(
            f"sqlite:///{Path(folder) / 'gemmtune.sqlite'}", given.rows, given.measurements
        )
    if given.postgres:
        server = PostgresServer()
        try:
            server.start()
            figures["seconds"]["postgresql"] = timed(
                server.url(server.create()), given.rows, given.measurements
            )
        finally:
            server.remove()
    report.write("worth", find_device("cpu").environment, figures)


if __name__ == "__main__":
    main()
