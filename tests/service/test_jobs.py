"""The job engine: what we rely on of the pinned version, its private calls included."""

from __future__ import annotations

import base64
import json
import pickle
import re
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from db.engine import DatabaseUnavailable, reading, writing
from db.schema import TABLES
from service import jobs
from service.jobs import JobQueue
from tests.postgres import ON_POSTGRES, ON_SQLITE, PostgresServer
from tests.service.worker_program import ended, execute, fork, freeze, send, wait

ROOT = Path(__file__).parents[2]
QUEUE = "cpu:x86_64:Recorded:2"


class Engines:
    """Executors in processes of their own, and the queue that they take from."""

    def __init__(self, url: str, engine: Engine, folder: Path) -> None:
        self._url, self._engine, self._folder = url, engine, folder
        self._processes: list[ForkServerProcess] = []
        self.queue = JobQueue(url)

    def put(self, *job_ids: str, priority: int = 10, queue: str = QUEUE) -> None:
        """Queues jobs."""
        with writing(self._engine) as connection:
            self.queue.put(connection, queue, job_ids, priority)

    def start(self, name: str, queue: str = QUEUE) -> ForkServerProcess:
        """Starts an executor."""
        process = fork(execute, self._url, queue, name, self._folder)
        self._processes.append(process)
        return process

    def hold(self, *job_ids: str) -> None:
        """A worker that takes one of these is busy until release()."""
        for job_id in job_ids:
            (self._folder / f"hold-{job_id}").touch()

    def release(self, *job_ids: str) -> None:
        """Lets them end."""
        for job_id in job_ids:
            (self._folder / f"hold-{job_id}").unlink()

    def notes(self) -> list[str]:
        """Who began and ended what, in order."""
        path = self._folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, *lines: str) -> None:
        """Until all of these are noted."""
        wait(lambda: set(lines) <= set(self.notes()), lambda: f"{self.notes()}\n{self.log()}")

    def log(self) -> str:
        """What the executors logged."""
        path = self._folder / "log"
        return path.read_text()[-3000:] if path.exists() else "no log"

    def rows(self) -> dict[str, str]:
        """The engine's own view of every job."""
        name = "workflow_status" if self._engine.dialect.name == "sqlite" else "dbos.workflow_status"
        with reading(self._engine) as connection:
            found = connection.execute(text(f"SELECT workflow_uuid, status FROM {name}"))
            return {row[0]: row[1] for row in found}

    def close(self) -> None:
        """Leaves nothing behind."""
        self.queue.close()
        for process in self._processes:
            process.kill()
            process.join(10)
            process.close()


@pytest.fixture
def engines(database_url: str, engine: Engine, tmp_path: Path) -> Iterator[Engines]:
    made = Engines(database_url, engine, tmp_path)
    yield made
    made.close()


def test_the_version_whose_private_calls_these_tests_cover_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pinned,) = [need for need in project["dependencies"] if need.startswith("dbos")]
    assert re.fullmatch(r"dbos==[0-9.]+", pinned)
    assert pinned == f"dbos=={version('dbos')}"


def test_the_engines_tables_lie_beside_ours(engine: Engine, database_url: str) -> None:
    jobs.migrate(database_url)  # again: nothing to do
    with reading(engine) as connection:
        schema = None if connection.dialect.name == "sqlite" else "dbos"
        assert "workflow_status" in inspect(connection).get_table_names(schema=schema)
        names = set(inspect(connection).get_table_names(schema="public" if schema else None))
        assert names >= TABLES


# ---- queues ------------------------------------------------------------------------------------


def test_jobs_run_by_priority_then_in_order_and_one_at_a_time(engines: Engines) -> None:
    first, second = [f"job-{n:02}" for n in range(16)], [f"late-{n:02}" for n in range(3)]
    engines.put(*first)
    engines.put(*second)
    engines.put("urgent-1", "urgent-2", priority=1)
    engines.put("not-urgent", priority=100)
    engines.start("one")
    engines.wait_for("one ends not-urgent")
    order = ["urgent-1", "urgent-2", *first, *second, "not-urgent"]
    assert engines.notes() == [f"one {what} {job}" for job in order for what in ("begins", "ends")]
    wait(lambda: set(engines.rows().values()) == {"SUCCESS"}, engines.log)


@ON_SQLITE
def test_a_queue_is_taken_from_by_its_own_executors(engines: Engines) -> None:
    engines.put("theirs", queue="cuda:sm_90:NVIDIA-H200:132")
    engines.put("ours")
    engines.start("one")
    engines.wait_for("one ends ours")
    time.sleep(0.2)
    assert engines.notes() == ["one begins ours", "one ends ours"]
    assert engines.rows()["theirs"] == "ENQUEUED"


@ON_SQLITE
def test_a_job_put_twice_runs_once(engines: Engines) -> None:
    engines.put("job-1")
    engines.put("job-1", "job-2")
    engines.start("one")
    engines.wait_for("one ends job-2")
    engines.put("job-1", "job-3")
    engines.wait_for("one ends job-3")
    assert engines.notes().count("one begins job-1") == 1


def test_jobs_are_queued_with_their_transaction_or_not_at_all(engines: Engines, engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:  # noqa: PT012
        engines.queue.put(connection, QUEUE, ["never"], 1)
        _ = 1 / 0
    with writing(engine) as connection:
        engines.queue.put(connection, QUEUE, ["job-1"], 1)
        assert engines.rows() == {}, "nobody sees it before the commit"
    assert engines.rows() == {"job-1": "ENQUEUED"}


def test_what_is_dropped_never_runs_and_what_has_ended_stays_ended(engines: Engines) -> None:
    engines.put("job-1", "job-2", "job-3")
    engines.queue.drop(["job-2", "unknown"])
    engines.queue.drop([])
    engines.start("one")
    engines.wait_for("one ends job-3")
    wait(lambda: engines.rows()["job-3"] == "SUCCESS", engines.log)
    engines.queue.drop(["job-1"])
    assert engines.rows() == {"job-1": "SUCCESS", "job-2": "CANCELLED", "job-3": "SUCCESS"}
    assert "one begins job-2" not in engines.notes()


def test_an_executor_polls_only_while_it_runs_no_job_and_reads_its_queues_row_once(
    engines: Engines, engine: Engine
) -> None:
    """The engine would stop to serve a queue whose row it does not find."""
    engines.hold("job-1")
    engines.put("job-1", "job-2")
    engines.start("one")
    engines.wait_for("one begins job-1")
    name = "queues" if engine.dialect.name == "sqlite" else "dbos.queues"
    with writing(engine) as connection:
        connection.execute(text(f"DELETE FROM {name} WHERE name = :name"), {"name": QUEUE})
    time.sleep(0.3)
    engines.release("job-1")
    engines.wait_for("one ends job-1", "one ends job-2")


def test_polls_pause_while_a_job_runs() -> None:
    polls, polled = jobs._Polls(), threading.Event()

    def poll() -> None:
        polls.wait()
        polled.set()

    with polls.paused():
        thread = threading.Thread(target=poll)
        thread.start()
        assert not polled.wait(0.2)
    assert polled.wait(5)
    thread.join()


# ---- executors that die ------------------------------------------------------------------------


def test_a_dead_executors_job_is_handed_on_once_and_only_its_own(engines: Engines) -> None:
    engines.hold("job-1", "job-2")
    engines.put("job-1")
    dead = engines.start("dead")
    engines.wait_for("dead begins job-1")
    engines.put("job-2", "job-3")
    engines.start("living")
    engines.wait_for("living begins job-2")
    assert engines.queue.holders() == {"dead", "living"}
    dead.kill()
    ended(dead)
    time.sleep(0.3)
    assert engines.rows()["job-1"] == "PENDING", "nobody hands it on by himself"
    assert engines.queue.hand_on(["unknown"]) == []
    assert engines.queue.hand_on(["dead", "unknown"]) == ["job-1"]
    assert engines.queue.hand_on(["dead"]) == [], "once"
    assert engines.rows()["job-1"] == "ENQUEUED"
    engines.start("next")
    engines.wait_for("next begins job-1")
    assert engines.queue.hand_on(["dead"]) == [], "it is another's by now"
    assert engines.queue.holders() == {"living", "next"}
    engines.release("job-1", "job-2")
    engines.wait_for("next ends job-1", "living ends job-2")
    wait(lambda: set(engines.rows().values()) == {"SUCCESS"}, engines.log)
    begun = [line.split()[2] for line in engines.notes() if " begins " in line]
    assert sorted(begun) == ["job-1", "job-1", "job-2", "job-3"]


def test_a_worker_that_lost_a_job_cannot_end_it(engines: Engines, engine: Engine) -> None:
    """An executor that slept, and whose job was handed on, takes nothing out of the queue when it wakes."""
    engines.hold("job-1")
    engines.put("job-1")
    sleeper = engines.start("sleeper")
    engines.wait_for("sleeper begins job-1")
    freeze(sleeper, engine)
    assert engines.queue.hand_on(["sleeper"]) == ["job-1"]
    second = engines.start("second")
    engines.wait_for("second begins job-1")
    freeze(second, engine)
    send(sleeper, signal.SIGCONT)
    engines.release("job-1")
    engines.wait_for("sleeper ends job-1")
    engines.put("job-2")
    engines.wait_for("sleeper ends job-2")  # it has said all that it had to say about the first
    assert engines.rows()["job-1"] == "PENDING"
    second.kill()
    ended(second)
    assert engines.queue.hand_on(["second"]) == ["job-1"]
    engines.wait_for("sleeper ends job-1")
    wait(lambda: engines.rows()["job-1"] == "SUCCESS", engines.log)


def test_a_job_is_handed_on_however_often(engines: Engines) -> None:
    """How often is too often is decided by our own row: the engine never gives a job up."""
    engines.hold("job-1")
    engines.put("job-1")
    for number in range(4):
        process = engines.start(f"e{number}")
        engines.wait_for(f"e{number} begins job-1")
        process.kill()
        ended(process)
        assert engines.queue.hand_on([f"e{number}"]) == ["job-1"]
    engines.release("job-1")
    engines.start("last")
    engines.wait_for("last ends job-1")


# ---- the database goes away --------------------------------------------------------------------


@ON_POSTGRES
def test_a_queue_says_at_once_that_the_database_is_away(postgres: PostgresServer, engines: Engines) -> None:
    engines.put("job-1")
    assert engines.queue.holders() == set()  # it has a connection, which will be dead
    calls: list[Callable[[], Any]] = [
        engines.queue.holders,
        lambda: engines.queue.hand_on(["dead"]),
        lambda: engines.queue.drop(["job-1"]),
    ]
    with postgres.away():
        for call in calls:
            begin = time.monotonic()
            with pytest.raises(DatabaseUnavailable):
                call()
            assert time.monotonic() - begin < 5
    assert engines.queue.holders() == set()
    assert engines.rows() == {"job-1": "ENQUEUED"}


@ON_POSTGRES
def test_an_executor_outlives_its_database(postgres: PostgresServer, engines: Engines) -> None:
    engines.hold("job-1")
    engines.put("job-1")
    engines.start("one")
    engines.wait_for("one begins job-1")
    with postgres.away():
        time.sleep(0.5)
    engines.release("job-1")
    engines.put("job-2")
    engines.wait_for("one ends job-1", "one ends job-2")
    wait(lambda: set(engines.rows().values()) == {"SUCCESS"}, engines.log)
    assert len(engines.log()) < 3000, "no line a poll"


# ---- what is stored ----------------------------------------------------------------------------


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def tables(engine: Engine) -> tuple[str, str]:
    """The engine's tables of jobs and of their inputs."""
    schema = "" if engine.dialect.name == "sqlite" else "dbos."
    return f"{schema}workflow_status", f"{schema}workflow_input"


def as_pickle(engine: Engine, job_id: str, value: Any) -> None:
    """A job's input as earlier versions stored it."""
    values = {"inputs": base64.b64encode(pickle.dumps(value)).decode(), "id": job_id}
    jobs_table, inputs_table = tables(engine)
    kind = f"UPDATE {jobs_table} SET serialization = 'py_pickle' WHERE workflow_uuid = :id"
    with writing(engine) as connection:
        assert connection.execute(text(kind), {"id": job_id}).rowcount == 1
        stored = text(f"UPDATE {inputs_table} SET inputs = :inputs WHERE workflow_uuid = :id")
        assert connection.execute(stored, values).rowcount == 1


def test_inputs_are_json(engines: Engines, engine: Engine) -> None:
    engines.put("job-1")
    jobs_table, inputs_table = tables(engine)
    query = (
        f"SELECT i.inputs, s.serialization FROM {jobs_table} s JOIN {inputs_table} i USING (workflow_uuid)"
    )
    with reading(engine) as connection:
        ((inputs, kind),) = connection.execute(text(query))
    assert json.loads(inputs) == {"namedArgs": {}, "positionalArgs": ["job-1"]}
    assert kind == "portable_json"


def test_a_pickle_in_the_database_runs_nothing(engines: Engines, engine: Engine, tmp_path: Path) -> None:
    engines.put("job-1")
    as_pickle(engine, "job-1", {"args": (Planted(tmp_path / "ran"),), "kwargs": {}})
    engines.start("one")
    engines.put("job-2")
    engines.wait_for("one ends job-2")
    assert not (tmp_path / "ran").exists()
    assert "one begins job-1" not in engines.notes()


def test_an_upgrade_writes_earlier_inputs_as_json(
    engines: Engines, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    engines.put("job-1")
    as_pickle(engine, "job-1", {"args": (Planted(tmp_path / "ran"),), "kwargs": {}})
    jobs.migrate(database_url)
    assert not (tmp_path / "ran").exists()
    engines.start("one")
    engines.wait_for("one ends job-1")
