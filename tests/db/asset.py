"""Makes the file of a released schema: python -m tests.db.asset, once a migration, before its release.

What it stores is a small working life: two problems on one device, one of them measured twice and one
refused; a tuning of three jobs, of which one was cancelled; what a bare node measured; and what another
tool's file says. A file that is there already is left alone: it is what users have.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, Engine, insert

from backends.outcome import Status
from backends.solution import Solution
from db import jobs, models, schema, sessions, tunings, workers
from db.engine import open_engine, writing
from db.values import put_problems, put_solutions, table
from service.settings import Settings
from service.startup import upgrade
from tests.db import samples
from tests.db.samples import HERE, candidate, problem, screened

FOLDER = Path(__file__).parent.parent / "data" / "db"
FIRST, SECOND, REFUSED = problem(16), problem(32), problem(1, 8, 8)
WINNER = candidate(8, workspace_bytes=4096)
NODE = replace(HERE, uuid="CPU-2")
KEY = "tn_64_16_128_ld_128_128_64"


def main() -> None:
    """Writes the file of the newest schema."""
    target = FOLDER / f"{schema.head()}.sqlite.gz"
    if target.exists():
        sys.exit(f"{target} is there already: a released schema's file never changes")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asset.sqlite"
        upgrade(Settings(database_url=f"sqlite:///{path}"))
        engine = open_engine(f"sqlite:///{path}")
        fill(engine)
        engine.dispose()
        plain = sqlite3.connect(path, isolation_level=None)
        plain.execute("PRAGMA journal_mode=DELETE")
        plain.execute("VACUUM")
        plain.close()
        FOLDER.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    print(f"{target}: {target.stat().st_size} bytes")


def fill(engine: Engine) -> None:
    """Stores the working life."""
    with writing(engine) as connection:
        workers.register(connection, "worker-1", "host", 4711, HERE)
    asked = samples.request(priority=3)
    created = samples.submit(engine, [FIRST, SECOND, REFUSED], asked)
    shared = samples.submit(engine, [SECOND], asked)
    first, second, refused = created.new_jobs
    with writing(engine) as connection:
        _measure(connection, first, WINNER)
    with writing(engine) as connection:
        _refuse(connection, refused)
    with writing(engine) as connection:
        job = jobs.start_job(connection, second, "worker-1")
        assert job is not None
        jobs.release_job(connection, job)
    with writing(engine) as connection:
        tunings.cancel_tuning(connection, created.id)
        tunings.cancel_tuning(connection, shared.id)
        workers.beat(connection, "worker-1", "idle", None)
        workers.mark(connection, ["worker-1"], "stopped")
    with writing(engine) as connection:
        _import(connection)


def _measure(connection: Connection, job_id: str, winner: Solution) -> None:
    job = jobs.start_job(connection, job_id, "worker-1")
    assert job is not None
    begun = samples.start(FIRST, job_id)
    sessions.begin_session(connection, begun)
    jobs.hold(connection, job, session_id=begun.id)
    failed = [
        screened(candidate(tile), status=status)
        for tile, status in enumerate((Status.COMPILE_ERROR, Status.WRONG_RESULT, Status.TIMEOUT), 1)
    ]
    samples.store_session(connection, begun, winner, 1e-6, failed)
    jobs.end_job(connection, job, "succeeded", {"session_id": begun.id, "verdict": None, "outcomes": {}})


def _refuse(connection: Connection, job_id: str) -> None:
    job = jobs.start_job(connection, job_id, "worker-1")
    assert job is not None
    begun, result = samples.start(REFUSED, job_id), samples.lost(REFUSED)
    sessions.begin_session(connection, begun)
    jobs.hold(connection, job, session_id=begun.id)
    sessions.end_session(connection, begun, result)
    jobs.end_job(connection, job, "failed", {"session_id": begun.id}, result["error"])


def _import(connection: Connection) -> None:
    """A node's session of the second problem, and a claim of another tool about the first."""
    row = {"sha256": "0" * 64, "header": {"version": 1}, "created_at": "2026-01-02T03:04:05.678Z"}
    provenance = table(models.Provenance)
    add = insert(provenance).returning(provenance.c.number)
    node = {**row, "kind": "node", "format": "journal", "source": "node.jsonl", "device_class_id": ""}
    number = connection.execute(add.values(node)).scalar_one()
    origin = sessions.SessionStart(
        SECOND, NODE, samples.POLICY.id, samples.POLICY.to_dict(), samples.CONTENT,
        provenance_number=number, origin="node.jsonl",
    )  # fmt: skip
    samples.store_session(connection, origin)
    tool = {**row, "kind": "imported", "format": "tunableop", "source": "tuned.csv"}
    tool["device_class_id"] = samples.CLASS
    number = connection.execute(add.values(tool)).scalar_one()
    theirs = Solution("tunableop", 1, {"name": "Gemm_Hipblaslt_1"}, build="hipblaslt-1")
    put_problems(connection, [FIRST])
    put_solutions(connection, [theirs])
    key = {"problem_id": FIRST.id, "format": "tunableop", "key": KEY, "provenance_number": number, "count": 7}
    connection.execute(insert(table(models.ProblemKey)).values(key))
    claim = {
        "provenance_number": number, "problem_id": FIRST.id, "device_class_id": samples.CLASS,
        "policy_id": "", "solution_id": theirs.id, "seconds": 2e-6, "key": KEY, "content": {"line": 3},
    }  # fmt: skip
    connection.execute(insert(table(models.Claim)).values(claim))


if __name__ == "__main__":
    main()
