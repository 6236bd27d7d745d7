"""Retention: what is old and not needed goes, in pieces; what is served of it stays byte for byte."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import closing, suppress

import pytest
from sqlalchemy import Engine, select, text, update
from typer.testing import CliRunner

from db import models, queries, retention
from db.best import rebuild_best
from db.engine import reading, writing
from db.retries import retry_job
from db.values import table
from service import retention as pruning
from service.cli import app
from service.jobs import JobQueue
from service.retention import count_old, keep_pruned, prune
from service.settings import Settings
from service.targets import derive_targets
from tests.db.samples import submit
from tests.db.steps import A, B, C, begin, cancel, end
from tests.postgres import ON_SQLITE
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, fill
from tests.service.http.serving import serving

ONE = {"m": 16, "n": 256, "k": 512}
OLD = "2020-01-01T00:00:00.000Z"
_measurement, _session = table(models.Measurement), table(models.Session)


@pytest.fixture
def settings(engine: Engine, database_url: str) -> Settings:
    """Of a database with a life that ended long ago, but for one tuning."""
    fill(engine, PROBLEMS, job_id="job-1")
    old = submit(engine, [A, B])
    end(engine, begin(engine, old.new_jobs[0]), "succeeded")
    end(engine, begin(engine, old.new_jobs[1]), "failed", broken=True)
    gone = submit(engine, [C])
    cancel(engine, gone)
    fresh = submit(engine, [C])
    with closing(JobQueue(database_url)) as queue, writing(engine) as connection:
        queue.put(connection, "a queue", ["job-old", "job-fresh", "job-held"], 10)
        name = "workflow_status" if connection.dialect.name == "sqlite" else "dbos.workflow_status"
        connection.execute(text(f"UPDATE {name} SET status = 'SUCCESS' WHERE workflow_uuid <> 'job-held'"))
        connection.execute(text(f"UPDATE {name} SET updated_at = 1 WHERE workflow_uuid <> 'job-fresh'"))
        tuning = table(models.Tuning)
        connection.execute(
            update(tuning).where(tuning.c.id != fresh.id, tuning.c.ended_at != "").values(ended_at=OLD)
        )
        connection.execute(update(_session).values(ended_at=OLD))
    return Settings(
        database_url=database_url, device=CLASS, retain_samples_days=90, retain_events_days=30,
        retain_engine_days=30,
    )  # fmt: skip


def served(settings: Settings) -> list[bytes]:
    """Best rows, verdicts, reports and files, as clients get them."""
    with serving(settings) as client:
        body = {"problems": [ONE, {**ONE, "m": 24}, {**ONE, "m": 4000}], "device": CLASS}
        found = [client.post("/v1/solutions/best", json=body)]
        paths = [f"/v1/problems/{problem.id}" for problem in PROBLEMS]
        paths += ["/v1/problems", "/v1/reports/worth", "/v1/exports/json", "/v1/exports/csv", "/v1/tunings"]
        paths += [
            f"/v1/solutions/best?m=16&n=256&k=512&{more}"
            for more in ("", "max_workspace=0", "families=stream")
        ]
        found += [client.get(path) for path in paths]
        assert {one.status_code for one in found} == {200}
        return [one.content for one in found]


def calls(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        name = "workflow_status" if connection.dialect.name == "sqlite" else "dbos.workflow_status"
        return set(connection.scalars(text(f"SELECT workflow_uuid FROM {name}")))


def test_what_is_served_stays_byte_for_byte(settings: Settings, engine: Engine) -> None:
    before = served(settings)
    counted = count_old(settings, engine)
    assert min(counted.values()) > 0
    assert prune(settings, engine) == counted
    assert served(settings) == before
    assert prune(settings, engine) == count_old(settings, engine) == {"engine": 0, "events": 0, "samples": 0}

    with writing(engine) as connection:
        rebuild_best(connection, derive_targets)
    assert served(settings) == before, "and what is derived is derived from what is left"


def test_what_goes_and_what_stays(settings: Settings, engine: Engine) -> None:
    prune(settings, engine)
    assert calls(engine) == {"job-fresh", "job-held"}
    with reading(engine) as connection:
        kinds = {
            row["id"]: [event["kind"] for event in queries.events(connection, row["number"], 0, 100)]
            for row in queries.tunings(connection, None, 100)
        }
        assert sorted(map(tuple, kinds.values())) == [("ended",), ("ended",), ("queued",)]
        rows = connection.execute(
            select(
                _measurement.c.phase, _measurement.c.samples, _measurement.c.seconds, _measurement.c.status
            )
        ).all()
    assert {bool(row.samples) for row in rows if row.phase == "final"} == {True}
    assert {bool(row.samples) for row in rows if row.phase == "screen"} == {False}
    assert {row.seconds is None for row in rows if row.status == "ok" and row.phase != "proof"} == {False}


@ON_SQLITE
def test_a_follower_hears_of_the_end_and_a_failure_is_retried(settings: Settings, engine: Engine) -> None:
    prune(settings, engine)
    with reading(engine) as connection:
        failed = next(row for row in queries.tunings(connection, None, 10) if row["status"] == "failed")
        jobs = queries.tuning_jobs(connection, failed["number"], -1, 10)
    with serving(settings) as client:
        assert "event: ended" in client.get(f"/v1/tunings/{failed['id']}/events").text
    with writing(engine) as connection:
        assert retry_job(connection, next(job["id"] for job in jobs if job["status"] == "failed"))


def test_what_a_command_may_resume_stays_whole(settings: Settings, engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(update(_session).values(status="failed", job_id=None))
        assert retention.old_samples(connection, 1) == 0
        connection.execute(update(_session).values(status="running"))
        assert retention.old_samples(connection, 1) == 0
        connection.execute(update(_session).values(status="failed", job_id="job-1"))
        assert retention.old_samples(connection, 1) > 0
        assert retention.old_samples(connection, 36500) == 0


@ON_SQLITE
def test_zero_days_are_forever(settings: Settings, engine: Engine) -> None:
    forever = settings.model_copy(
        update={"retain_engine_days": 0, "retain_events_days": 0, "retain_samples_days": 0}
    )
    nothing = {"engine": 0, "events": 0, "samples": 0}
    assert prune(forever, engine) == count_old(forever, engine) == nothing
    assert Settings().retain_samples_days == 0


@ON_SQLITE
def test_pieces_are_bounded(settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = count_old(settings, engine)
    monkeypatch.setattr(pruning, "PIECE", 2)
    done = prune(settings, engine, most_pieces=2)
    assert done == {"engine": 1, "events": 4, "samples": 4}
    assert prune(settings, engine, stopping=lambda: True) == {"engine": 0, "events": 0, "samples": 0}
    assert prune(settings, engine, samples=False)["samples"] == 0
    rest = prune(settings, engine)
    assert done["samples"] + rest["samples"] == whole["samples"]


@ON_SQLITE
def test_a_server_prunes_by_itself(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_SECONDS", 0.01)
    stop = threading.Event()

    async def run() -> None:
        task = asyncio.create_task(keep_pruned(settings, engine, stop.is_set))
        for _ in range(500):
            await asyncio.sleep(0.02)
            if calls(engine) == {"job-fresh", "job-held"} and not any(count_old(settings, engine).values()):
                break
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not any(count_old(settings, engine).values())


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings as a user sets them."""
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("GEMMTUNE_RETAIN_SAMPLES_DAYS", "90")


@ON_SQLITE
@pytest.mark.usefixtures("environment")
def test_the_command_counts_before_it_deletes(settings: Settings, engine: Engine) -> None:
    whole = count_old(settings, engine)

    def call(*options: str) -> str:
        done = CliRunner().invoke(app, ["db", "prune", *options])
        assert done.exit_code == 0
        return done.stdout

    for _ in range(2):
        assert json.loads(call("--dry-run", "--json")) == {"dry_run": True, **whole}
    assert f"{whole['events']} events would be deleted" in call("--dry-run")
    assert json.loads(call("--json")) == {"dry_run": False, **whole}
    assert "0 calls of the job engine and 0 events were deleted" in call()
