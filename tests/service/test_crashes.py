"""Nothing acknowledged is lost: the service and its worker are killed at random while 200 jobs run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select

from backends.cache import BinaryCache
from db import models, queries
from db.best import rebuild_best
from db.engine import reading, writing
from db.values import table

LIMIT_SECONDS = 540.0


@dataclass(frozen=True)
class Size:
    """Jobs in all, tunings that they are of, and processes that are killed meanwhile."""

    jobs: int
    tunings: int
    kills: int


MANY = Size(200, 8, 10)


class Service:
    """`gemmtune serve` with its worker, as a user runs it."""

    def __init__(self, url: str, cache: Path, log: Path) -> None:
        self._environment = {
            **os.environ,
            "GEMMTUNE_DATABASE_URL": url,
            "GEMMTUNE_CACHE_DIR": str(cache),
        }
        self._log = log.open("ab")
        self.log = log
        self._process: subprocess.Popen[str] | None = None
        self.client = httpx.Client(timeout=10)

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "service.entry", "serve", "--port", "0"]
        self._process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "http://" in line, self.log.read_text()[-3000:]
        self.client.base_url = httpx.URL(line.split("gemmtune serves ")[1].split()[0])

    def kill_server(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def worker_pid(self) -> int | None:
        assert self._process is not None
        pid = self._process.pid
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        found = [int(word) for thread in threads for word in thread.read_text().split()]
        return found[0] if found else None

    def kill_worker(self) -> None:
        pid = self.worker_pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process.communicate()
        self._log.close()
        self.client.close()


@pytest.fixture
def service(database_url: str, tmp_path: Path, cache: BinaryCache) -> Iterator[Service]:
    made = Service(database_url, cache.root.parent, tmp_path / "service.log")
    yield made
    made.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("database_url", "size"),
    [
        pytest.param("sqlite", Size(24, 3, 3), id="sqlite-few"),  # on PostgreSQL: tests/chaos
        pytest.param("sqlite", MANY, id="sqlite-many", marks=pytest.mark.exhaustive),
        pytest.param(
            "postgresql", MANY, id="postgresql-many", marks=[pytest.mark.exhaustive, pytest.mark.postgres]
        ),
    ],
    indirect=["database_url"],
)
def test_every_acknowledged_job_ends_whatever_is_killed(service: Service, engine: Engine, size: Size) -> None:
    choose = random.Random(20)
    service.start()
    acknowledged: list[str] = []
    begin, kills, next_kill = time.monotonic(), 0, time.monotonic() + 4
    pending = list(range(size.tunings))
    tries = 0
    while True:
        assert time.monotonic() - begin < LIMIT_SECONDS, service.log.read_text()[-3000:]
        if pending:
            with suppress(httpx.TransportError):  # no answer is no acknowledgement: asked again
                tries += 1
                answer = service.client.post("/v1/tunings", json=_request(pending[0], size))
                if answer.status_code == 202:
                    acknowledged.append(answer.json()["id"])
                    pending.pop(0)
                else:
                    assert answer.status_code in (422, 503), (
                        answer.text
                    )  # no worker is known yet, or it is away
        if kills < size.kills and time.monotonic() >= next_kill and acknowledged:
            kills += 1
            next_kill = time.monotonic() + choose.uniform(0.3, 4.0)
            if choose.random() < 0.5:
                service.kill_worker()
            else:
                service.kill_server()
                service.start()
        if not pending and kills == size.kills:
            with suppress(httpx.TransportError):
                # Of the last one first, which ends last: asking takes processors from the worker.
                states = (
                    service.client.get(f"/v1/tunings/{name}").json()["status"]
                    for name in reversed(acknowledged)
                )
                if all(state not in ("queued", "running") for state in states):
                    break
        time.sleep(0.1)
    assert len(set(acknowledged)) == size.tunings
    _check(engine, acknowledged, size.jobs)


def _request(index: int, size: Size) -> dict[str, Any]:
    each = size.jobs // size.tunings
    problems = [{"m": 1 + index, "n": 32, "k": 16 + number, "dtype": "fp32"} for number in range(each)]
    return {
        "problems": problems,
        "device": "cpu",
        "budget": {"seconds_per_problem": 0.02, "candidates": 2},
    }


def _check(engine: Engine, acknowledged: list[str], jobs: int) -> None:
    job, session, measured = table(models.Job), table(models.Session), table(models.Measurement)
    with reading(engine) as connection:
        for name in acknowledged:
            row = queries.tuning(connection, name)
            assert row is not None
            assert (row["status"], row["succeeded"]) == ("succeeded", row["total"]), row
            events = queries.events(connection, row["number"], 0, 10_000)
            assert [event["number"] for event in events] == list(range(1, len(events) + 1))
            ends = [event["content"]["job_id"] for event in events if event["kind"] == "finished"]
            assert len(ends) == len(set(ends)) == row["total"]
            for event in events:  # what a client was told was measured is there
                if event["kind"] == "finished":
                    told = sum(event["content"]["outcomes"].values())
                    of_session = measured.c.session_id == event["content"]["session_id"]
                    kept = connection.execute(select(func.count()).where(of_session)).scalar()
                    assert kept == told, event
        rows = connection.execute(select(job.c.status, job.c.session_id)).all()
        assert len(rows) >= jobs
        assert {row.status for row in rows} == {"succeeded"}
        assert len({row.session_id for row in rows}) == len(rows)
        open_sessions = select(func.count()).where(session.c.status == "running")
        assert connection.execute(open_sessions).scalar() == 0
        twice = (
            select(measured.c.session_id, measured.c.solution_id)
            .where(measured.c.phase == "screen")
            .group_by(measured.c.session_id, measured.c.solution_id)
            .having(func.count() > 1)
        )
        assert connection.execute(twice).all() == []
        best = table(models.Best)
        stored = set(connection.execute(select(best.c.problem_id, best.c.document)).all())
    with writing(engine) as connection:
        rebuild_best(connection)
        assert set(connection.execute(select(best.c.problem_id, best.c.document)).all()) == stored
