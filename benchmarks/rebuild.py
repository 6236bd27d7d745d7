"""How long `gemmtune db rebuild` takes for a million best rows whose sessions judged no export targets.

    python -m benchmarks.rebuild [--rows 1000000] [--folder DIR]

Each session has the outcomes of a final: torch's call, two candidates of ours and two of cuBLASLt, of which one
left after eight rounds. The rebuild decides their export targets. An upgrade of an older schema does the same.
Needs about 6 GB of disk for a million rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, insert, select

from backends.problem import GemmProblem, from_linear
from backends.registry import find_device
from backends.solution import Solution
from benchmarks import report, stored
from db import models
from db.best import rebuild_best
from db.engine import now, writing
from db.values import put_solutions, table
from service import exports
from service.settings import Settings
from service.startup import open_database, upgrade
from service.targets import derive_targets
from tests.service.formats.contract_inputs import CUBLASLT, H200, TORCH
from tuners.policy import MeasurementPolicy

ROWS = 1_000_000
POLICY = MeasurementPolicy()
WINNER = Solution("tile-wgmma", 4, {"tile_m": 128, "tile_n": 128, "stages": 4})
OTHER = Solution("tile-wgmma", 4, {"tile_m": 64, "tile_n": 128, "stages": 4})
SLOW = Solution("cublaslt", 1, {**CUBLASLT.parameters, "tile_id": 18}, "130200", 2**19)
#: Solution, status, seconds and rounds of each finalist.
FINAL = (
    (TORCH, "ok", 2e-5, 20), (WINNER, "ok", 1.5e-5, 20), (OTHER, "ok", 1.52e-5, 20), (CUBLASLT, "ok", 1.53e-5, 20),
    (SLOW, "pruned", 1.8e-5, 8),
)  # fmt: skip


def problems() -> Iterator[GemmProblem]:
    """Distinct linear layers of bf16: 2.5 million."""
    for n in range(512, 20481, 128):
        for k in range(512, 8193, 256):
            for m in (*range(1, 513), *range(1024, 8193, 512)):
                yield from_linear(m, n, k, "bf16")


def fill(engine: Engine, rows: int) -> None:
    """Best rows with their sessions, and the outcomes of every session's final and proof."""
    with writing(engine) as connection:
        put_solutions(connection, [one[0] for one in FINAL])
    stored.fill_class(engine, H200, islice(problems(), rows), WINNER, POLICY, baseline=TORCH)
    session, measurement, at = table(models.Session), table(models.Measurement), now()
    outcomes: list[dict[str, Any]] = []
    for solution, status, seconds, rounds in FINAL:
        # Samples in the order taken, 1% apart, as noise would have them.
        samples = [seconds * (1 + 0.001 * (7 * number % 11)) for number in range(rounds)]
        outcomes.append({"solution_id": solution.id, "phase": "final", "status": status, "samples": samples,
                         "workspace_bytes": solution.workspace_bytes})  # fmt: skip
    outcomes.append({**outcomes[1], "phase": "proof", "samples": []})
    shared = {"take": 1, "evidence": {}, "created_at": at}
    with writing(engine) as connection:
        ids = connection.scalars(select(session.c.id).where(session.c.status == "succeeded")).all()
        for start in range(0, len(ids), stored.PART):
            values = [
                {**shared, **one, "session_id": name}
                for name in ids[start : start + stored.PART]
                for one in outcomes
            ]
            connection.execute(insert(measurement), values)


def timed(engine: Engine, derives: bool) -> float:
    """Seconds of one rebuild, its commit included."""
    begin = time.perf_counter()
    with writing(engine) as connection:
        rebuild_best(connection, derive_targets if derives else None)
    return time.perf_counter() - begin


def main() -> None:
    """Measures and writes db-rebuild.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", help="where the database is made (a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "gemmtune.sqlite"
        settings = Settings(database_url=f"sqlite:///{path}")
        upgrade(settings)
        engine = open_database(settings)
        begin = time.perf_counter()
        fill(engine, given.rows)
        filled, before = time.perf_counter() - begin, path.stat().st_size
        print(json.dumps({"filled_seconds": filled, "bytes": before}), file=sys.stderr, flush=True)
        without = timed(engine, derives=False)
        deriving = timed(engine, derives=True)
        target = table(models.TargetVerdict)
        with engine.connect() as connection:
            counts = connection.execute(
                select(target.c.target, target.c.judgement, func.count()).group_by(
                    target.c.target, target.c.judgement
                )
            ).all()
            measured = connection.execute(
                select(func.count()).select_from(table(models.Measurement))
            ).scalar_one()
        chosen = exports.Selection(H200.device_class, POLICY.id, target="torch-2.15+cuda")
        begin = time.perf_counter()
        written = exports.open_export(engine, "tunableop", chosen).whole_report()
        exported = time.perf_counter() - begin
        figures = {
            "rows": given.rows,
            "measurements": measured,
            "target_verdicts": {f"{name} {judgement}": count for name, judgement, count in counts},
            "seconds": {"rebuild without targets": without, "rebuild": deriving, "export": exported},
            "exported": written.written,
            "gain": written.gain(),
            "bytes": {"before": before, "after": path.stat().st_size},
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        engine.dispose()
    report.write("db-rebuild", find_device("cpu").environment, figures)


if __name__ == "__main__":
    main()
