"""The job engine: durable queues on DBOS, one per device class. The only module that uses DBOS.

A job is one call of one function with a job's id. Its authoritative state (status, attempts, worker) is our
own row; the engine keeps the queue, gives a job to one worker at a time, and requeues it when that worker is
gone. Execution is at least once: the called function checks the row first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig
from dbos._serialization import DBOSPortableJSON, DefaultSerializer  # private: see tests/service/test_jobs.py
from sqlalchemy import Connection, Engine, text

from db import jobs as rows
from db.engine import POSTGRES_OPTIONS, parse_url, reading, translated, writing

#: Fixed: DBOS's default is a hash of the code, with which a newer gemmtune would strand an older one's jobs.
_VERSION = "1"
_NAME = "gemmtune"
_WORKFLOW = "tune"
#: The engine's pause before a poll. A job that waits costs as long, and each poll is a transaction.
POLL_SECONDS = 0.01
#: An executor pauses for longer while no job comes: by this share of the time since the last one, up to so
#: many seconds.
_IDLE_SHARE, _IDLE_SECONDS = 0.1, 0.09
_CHUNK = 500
#: The states of a call that will run, or runs.
_LIVE = ("ENQUEUED", "DELAYED", "PENDING")
#: How many jobs of a class the queue holds; the others wait as rows. Putting one there takes about 1.5 ms.
AHEAD = 32


def migrate(url: str) -> None:
    """Creates or upgrades the engine's own tables, in the same database as ours. Idempotent."""
    from dbos._sys_db import SystemDatabase  # noqa: PLC0415  (private: see tests/service/test_jobs.py)

    with translated():
        system = SystemDatabase.create(
            system_database_url=_url(url), engine_kwargs=_pool(1), engine=None, schema="dbos",
            serializer=DBOSPortableJSON, executor_id=None, use_listen_notify=False, app_name=_NAME,
        )  # fmt: skip
        try:
            system.run_migrations()
            with system.engine.begin() as connection:
                _rewrite_pickles(connection)
        finally:
            system.destroy()


def has_calls(engine: Engine) -> bool:
    """Whether the engine's tables hold any call of a job, whatever became of it."""
    with reading(engine) as connection:
        query = text(f"SELECT 1 FROM {_prefix(connection)}workflow_status LIMIT 1")
        return connection.execute(query).first() is not None


def queue_lost_again(engine: Engine, url: str) -> list[str]:
    """Queues again, from their rows, the jobs that the engine should have and does not, or whose call ended
    without them: its tables were emptied, or an earlier version's inputs could not be read. Returns their
    ids. Raises DatabaseUnavailable."""
    with reading(engine) as connection:
        query = f"SELECT workflow_uuid, status FROM {_prefix(connection)}workflow_status WHERE name = :name"
        calls = {row[0]: row[1] for row in connection.execute(text(query), {"name": _WORKFLOW})}
        # The engine's calls were read first: a call that has ended since has ended its row before.
        lost = [job for job in rows.noted_as_enqueued(connection) if calls.get(job.call_id) not in _LIVE]
    queue = JobQueue(url)
    try:
        queue.forget([job.call_id for job in lost if job.call_id in calls])  # a call's id is used only once
    finally:
        queue.close()
    with writing(engine) as connection:
        rows.queue_again(connection, [job.id for job in lost])
    return [job.id for job in lost]


def _ended(connection: Connection) -> str:
    """The clauses of a query for the calls that have ended before :before, in milliseconds."""
    return (
        f"FROM {_prefix(connection)}workflow_status WHERE status IN ('SUCCESS', 'ERROR', 'CANCELLED', "
        "'MAX_RECOVERY_ATTEMPTS_EXCEEDED') AND updated_at < :before"
    )


def _prefix(connection: Connection) -> str:
    """What the names of the engine's tables begin with."""
    return "dbos." if connection.dialect.name == "postgresql" else ""


def _rewrite_pickles(connection: Connection) -> None:
    """Writes the inputs of an earlier version's jobs as JSON: an input is the job's id, which is the
    workflow's, so that no pickle is read."""
    schema = _prefix(connection)
    found = text(
        f"SELECT workflow_uuid FROM {schema}workflow_status WHERE name = :name "
        "AND (serialization IS NULL OR serialization <> :json)"
    )
    ours = {"name": _WORKFLOW, "json": DBOSPortableJSON.name()}
    rows = [
        {**ours, "id": job_id, "inputs": _inputs(_job_of(job_id))}
        for job_id in connection.scalars(found, ours)
    ]
    if rows:
        connection.execute(
            text(
                f"UPDATE {schema}workflow_status SET inputs = :inputs, serialization = :json, output = NULL, "
                "error = NULL WHERE workflow_uuid = :id AND name = :name"
            ),
            rows,
        )
        # Inputs are in either table; those of the other one come first.
        inputs = text(f"DELETE FROM {schema}workflow_input WHERE workflow_uuid = :id")
        connection.execute(inputs, [{"id": row["id"]} for row in rows])


def _job_of(call: str) -> str:
    """The job of a call, see db.tunings.call_of()."""
    return call.partition(".")[0]


def _inputs(job_id: str) -> str:
    """A call's arguments as the engine stores them."""
    return DBOSPortableJSON.serialize({"namedArgs": {}, "positionalArgs": [job_id]})


def _refuse(_self: object, _text: str) -> Any:
    raise ValueError("a pickle in the job engine's tables is not read: it could run code")


# The engine reads a value as a pickle if its row says so, whatever its serializer is. Who may write to the
# database must not be able to run code on workers.
DefaultSerializer.deserialize = _refuse  # type: ignore[assignment,method-assign]


def _url(url: str) -> str:
    """The URL as DBOS takes it: without a driver, and with our connection options for PostgreSQL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.set(drivername="sqlite").render_as_string(hide_password=False)
    missing = {name: str(v) for name, v in POSTGRES_OPTIONS.items() if name not in parsed.query}
    parsed = parsed.update_query_dict(missing)
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)


def _pool(size: int) -> dict[str, Any]:
    return {"pool_size": size, "max_overflow": 2, "pool_pre_ping": True}


class JobQueue:
    """Puts jobs into queues, removes them, and requeues them; runs none itself."""

    def __init__(self, url: str) -> None:
        # No retries: an unreachable database is an error at once, and the caller decides how long to wait.
        self._client = DBOSClient(
            system_database_url=_url(url),
            application_name=_NAME,
            lazy=True,
            retry_connection_errors=False,
            serializer=DBOSPortableJSON,
        )

    def close(self) -> None:
        """Closes the connections."""
        self._client.destroy()

    def declare(self, queue: str) -> None:
        """Registers a queue. Call it before the queue's executors start: a running executor looks for new
        queues only once a second. Raises DatabaseUnavailable."""
        with translated():
            self._client.register_queue(queue, worker_concurrency=1, polling_interval_sec=POLL_SECONDS)

    def put(self, connection: Connection, queue: str, calls: Sequence[str], priority: int) -> None:
        """Queues calls of jobs (db.tunings.call_of) within the caller's transaction. Priority 1 runs first;
        equal priorities in order."""
        for call in calls:
            self._client.enqueue_in_transaction(
                connection,
                {
                    "workflow_name": _WORKFLOW,
                    "queue_name": queue,
                    "workflow_id": call,
                    "priority": priority,
                    "app_version": _VERSION,
                },
                _job_of(call),
            )

    def drop(self, calls: Sequence[str]) -> None:
        """Removes calls from their queue; those that have ended stay as they are."""
        with translated():
            for start in range(0, len(calls), _CHUNK):
                self._client.cancel_workflows(list(calls[start : start + _CHUNK]))

    def holders(self) -> set[str]:
        """The ids of the executors that hold jobs, alive or not. Raises DatabaseUnavailable."""
        with translated():
            pending = self._client.list_workflows(status="PENDING", load_input=False, load_output=False)
        return {str(workflow.executor_id) for workflow in pending}

    def count_ended(self, connection: Connection, before: float) -> int:
        """How many calls ended before a time, in seconds since 1970."""
        query = f"SELECT count(*) {_ended(connection)}"
        return int(connection.execute(text(query), {"before": int(before * 1000)}).scalar_one())

    def ended_calls(self, connection: Connection, before: float, most: int) -> list[str]:
        """At most `most` of them."""
        query = f"SELECT workflow_uuid {_ended(connection)} LIMIT :most"
        values = {"before": int(before * 1000), "most": most}
        return list(connection.scalars(text(query), values))

    def forget(self, calls: Sequence[str]) -> None:
        """Deletes calls that have ended from the engine's tables. Raises DatabaseUnavailable."""
        if calls:
            with translated():
                self._client.delete_workflows(list(calls))

    def hand_on(self, executor_ids: Sequence[str]) -> list[str]:
        """Requeues the jobs that these executors hold; returns their calls. The executors must not run the
        jobs any more: a requeued job starts elsewhere at once. Raises DatabaseUnavailable."""
        system = self._client._sys_db
        with translated():
            held = [
                (pending.workflow_id, executor_id)
                for executor_id in executor_ids
                for pending in system.get_pending_workflows(executor_id, _VERSION)
            ]
            # Each job returns to its own queue; the last argument is for workflows that never had a queue.
            return [job for job, holder in held if system.reenqueue_for_recovery(job, [holder], _NAME)]


class Executor:
    """The worker's side: runs a queue's jobs, one at a time, in a thread of this process."""

    def __init__(self, url: str, queue: str, executor_id: str, run: Callable[[str], None]) -> None:
        config: DBOSConfig = {
            "name": _NAME,
            "system_database_url": _url(url),
            "executor_id": executor_id,
            "application_version": _VERSION,
            "serializer": DBOSPortableJSON,
            "run_migrations": False,
            "use_listen_notify": False,
            "db_engine_kwargs": _pool(4),
            "max_executor_threads": 4,
            "scheduler_polling_interval_sec": 3600.0,
            "log_level": "ERROR",  # else it warns at every poll of an unreachable database; we log that
        }
        logging.getLogger("dbos").setLevel(logging.ERROR)
        self._dbos = DBOS(config=config)
        self._queue, self._polls = queue, _Polls()

        # Our row counts the attempts: a start that was stopped on request does not count.
        @DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)
        def tune(job_id: str) -> None:
            with self._polls.paused():
                run(job_id)

        DBOS.listen_queues([queue])

    def start(self) -> None:
        """Starts to take jobs from its queue, which must have been declared."""
        DBOS.launch()
        # Before each poll the engine reads the queue's row again, also while a job runs: a third of what the
        # process of an idle worker did. The queue of an executor does not change.
        system = self._dbos._sys_db
        with translated():
            declared = system.get_queue(self._queue)

        def queue_of(_name: str) -> Any:
            self._polls.wait()
            return declared

        system.get_queue = queue_of  # type: ignore[method-assign,assignment]


class _Polls:
    """When an executor looks for jobs: never while it runs one, and less often while none comes."""

    def __init__(self) -> None:
        self._running = 0
        self._changed = threading.Condition()
        self._since = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While a job runs."""
        with self._changed:
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._since = time.monotonic()
                self._changed.notify_all()

    def wait(self) -> None:
        """Until it is time for the engine's pause and its poll."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            idle = time.monotonic() - self._since
        time.sleep(min(_IDLE_SECONDS, _IDLE_SHARE * idle))


__all__ = ["Executor", "JobQueue", "migrate"]
