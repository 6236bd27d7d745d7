"""A worker: one process that owns one device, takes its class's jobs one by one, and measures them.

It holds a lock on its device, queues the re-validation of stale winners, sends heartbeats, requeues the jobs
of dead workers, and on SIGTERM releases its job with all that was measured. A kill at any moment loses
nothing: the job is requeued, and stored outcomes are replayed. The loss of a device ends its worker, not the
job.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from sqlalchemy import Connection, Engine

from backends.cache import BinaryCache
from backends.errors import DeviceLost, ResourcesExhausted, StorageError
from backends.exhaustion import check_resources, exhausted, is_exhausted
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from db import jobs, sessions, tunings, workers
from db.engine import DatabaseUnavailable, reading, writing
from db.jobs import MAX_ATTEMPTS, StartedJob
from db.liveness import WINDOW_SECONDS
from service.between_jobs import BetweenJobs
from service.device_lock import DeviceLock, locks_folder
from service.jobs import AHEAD, Executor, JobQueue
from service.logs import about
from service.next_job import NextJob
from service.portfolio import Warming
from service.requests import read_request
from service.revalidation import queue_revalidation
from service.settings import Settings
from service.store import JobStore, Stopping, WorkerCounts, patiently
from service.traceparent import parse
from service.tracing import open_tracing
from service.tunings import Tunings
from service.worker_lease import hold_lease
from service.worker_peers import Reaper
from tuners.campaign import check_known
from tuners.ceilings import CeilingStore
from tuners.device_client import DeviceClient
from tuners.options import SearchOptions
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession
from tuners.tuning_settings import TuningSettings

_log = logging.getLogger(__name__)

#: How often the worker checks whether its job was cancelled, sends a heartbeat, and looks for dead peers; a
#: peer is dead if its counter has not changed for DEAD_SECONDS of our own clock.
LOOK_SECONDS, BEAT_SECONDS, REAP_SECONDS, DEAD_SECONDS = 0.25, 1.0, 5.0, WINDOW_SECONDS
#: How long a stopping worker waits for its job, which ends after its current outcome; one that hangs is left
#: to the next worker.
STOP_SECONDS = 20.0
#: The constants of screening and racing, for every job.
SEARCH_OPTIONS = SearchOptions()


class Worker:
    """Build it, then run(); stop() from any thread or signal handler ends run()."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        device: FoundDevice,
        make_runner: Callable[[FoundDevice, BinaryCache], DeviceClient] = DeviceClient,
        lock: DeviceLock | None = None,
    ) -> None:
        self.id = tunings.new_id("worker")
        self.device, self.environment = device, device.environment
        self._engine, self._settings = engine, settings
        self._lock = lock or DeviceLock(locks_folder(settings), device)
        self._cache = BinaryCache(settings.cache_dir / "kernels")
        self._between = BetweenJobs(settings, engine, self.environment, self._cache)
        self._ceilings = CeilingStore(settings.cache_dir / "ceilings")
        self._make_runner = make_runner
        chosen = settings.portfolio
        self._warming = Warming(self.environment, self._cache, lambda: not self._idle.is_set(), chosen)
        self._precompile = settings.precompile
        self._idle = threading.Event()
        self._idle.set()
        self._runner: DeviceClient | None = None
        self._stop = threading.Event()
        #: Whether the worker ended because it could not store or measure, or was taken for dead.
        self.failed = False
        self._turn = threading.Lock()
        self._job: StartedJob | None = None
        self._session: RecordedSession | None = None
        self._store: JobStore | None = None
        self._next = NextJob(str(self.environment.device_class))
        self._counts = WorkerCounts()
        self._tracing = open_tracing(settings, "worker")
        self._queue = JobQueue(settings.database_url)
        self._reaper = Reaper(self.id, engine, self._queue)
        queue = str(self.environment.device_class)
        self._executor = Executor(settings.database_url, queue, self.id, self._take)

    # ---- the main thread: heartbeats, cancelling, dead peers ---------------------------------------

    def run(self) -> None:
        """Takes jobs until stop(). Raises StorageError if the database is damaged."""
        try:
            check_resources()
        except ResourcesExhausted as error:  # before it takes a job that it could not measure
            _log.critical("the worker takes no job and ends: %s", error)
            self.failed = True
            return
        if not hold_lease(self._register, self._stop, BEAT_SECONDS, DEAD_SECONDS):
            self.failed = True
            return
        patiently(self._stop, lambda: self._queue.declare(str(self.environment.device_class)))
        patiently(self._stop, self._revalidate)
        self._executor.start()
        if self._precompile:
            self._warming.start()
        _log.info("worker %s owns %s (%s)", self.id, self.environment.device_class, self.environment.uuid)
        steps: list[list[Any]] = [
            [LOOK_SECONDS, 0.0, self._look],
            [LOOK_SECONDS, 0.0, self._write_late],
            [BEAT_SECONDS, 0.0, self._beat],
            [REAP_SECONDS, 0.0, self._reap],
        ]
        while not self._stop.wait(LOOK_SECONDS):
            for step in steps:
                if time.monotonic() - step[1] >= step[0]:
                    step[1] = time.monotonic()
                    try:
                        step[2]()
                    except DatabaseUnavailable as error:
                        _log.warning("the database is away: %s", error)
        self._finish()

    def stop(self) -> None:
        """Asks the worker to release its job and end."""
        self._stop.set()
        self._warming.stop()

    def _register(self, silent: Collection[str]) -> None:
        def once() -> None:
            with writing(self._engine) as connection:
                workers.register(
                    connection, self.id, socket.gethostname(), os.getpid(), self.environment, self._lock.name,
                    silent, version("gemmtune"),
                )  # fmt: skip

        patiently(self._stop, once)

    def _revalidate(self) -> None:
        tunings = Tunings(self._engine, self._queue)
        for created in queue_revalidation(self._engine, tunings, self._settings, self.environment):
            _log.info("%d winners of another environment are measured again: %s", created.total, created.id)

    def _look(self) -> None:
        """Stops the session of a job that is wanted no more, prepares the next job, and fills the queue of
        the device's class from the rows that wait."""
        name = str(self.environment.device_class)
        with reading(self._engine) as connection:
            self._look_at_job(connection)
            if not jobs.has_waiting(connection, name):
                return
        with writing(self._engine) as connection:
            found = jobs.next_to_enqueue(connection, name, AHEAD)
            for job in found:
                self._queue.put(connection, name, [job.call_id], job.priority)
            jobs.mark_enqueued(connection, [job.id for job in found])

    def _write_late(self) -> None:
        """Writes outcomes of the job that wait while its next candidate takes long."""
        store = self._store
        if store is not None:
            with suppress(jobs.Fenced):  # the session's thread finds out by itself
                store.flush_late()

    def _look_at_job(self, connection: Connection) -> None:
        job, session, runner = self._job, self._session, self._runner
        if job is None or session is None or session.stopped or runner is None:
            return
        if jobs.stop_requested(connection, job):
            session.stop()
        else:
            self._next.look(connection, runner, job, session)

    def _beat(self) -> None:
        job = self._job
        with writing(self._engine) as connection:
            alive = workers.beat(
                connection, self.id, "measuring" if job else "idle", job.id if job is not None else None,
                self._counts.to_dict(), self._counts.failure,
            )  # fmt: skip
        if not alive:
            _log.error("worker %s was taken for dead and its job handed on; it ends: start another", self.id)
            self.failed = True
            self._stop.set()

    def _reap(self) -> None:
        self._reaper.run(self._idle.is_set, DEAD_SECONDS, 2 * REAP_SECONDS + BEAT_SECONDS)

    def _finish(self) -> None:
        """Requeues the job. The thread that runs it never returns, so the engine keeps it unfinished."""
        session = self._session
        if session is not None:
            session.stop()
        ended = self._idle.wait(STOP_SECONDS)
        try:
            self._queue.hand_on([self.id])
            with writing(self._engine) as connection:
                workers.mark(connection, [self.id], "stopped", self._counts.failure)
        except DatabaseUnavailable as error:
            _log.warning(
                "the database is away; the job is handed on when a worker finds this one gone: %s", error
            )
        if ended:
            self.close()

    def close(self) -> None:
        """Ends the device process, and sends what is left of traces."""
        self._tracing.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    # ---- the engine's thread: one job --------------------------------------------------------------

    def _take(self, job_id: str) -> None:
        # The engine counts a job as running a moment after it has claimed it, and may hand over another one
        # meanwhile. Two jobs at once would disturb each other's measurements.
        with self._turn:
            self._run(job_id)

    def _run(self, job_id: str) -> None:
        if self._stop.is_set():
            self._never()
        self._idle.clear()
        begin = time.monotonic()
        try:
            self._one(job_id)
            self._job = self._session = self._store = None
            self._check_device()
        except jobs.Fenced:
            _log.warning("job %s is another worker's by now", job_id)
        except Stopping:
            pass
        except ResourcesExhausted as error:
            self._give_back(job_id, f"the job is given back and the worker ends: {error}")
        except DeviceLost as error:  # another worker may be able to measure
            device = f"{self.environment.device_class} ({self.environment.uuid})"
            self._give_back(job_id, f"{device} is lost, its worker ends: {error}")
        except StorageError as error:  # another worker may be able to store
            self._give_back(job_id, str(error))
        except Exception:  # the job's end could not be stored: another start must end it
            _log.exception("job %s could not be ended; this worker ends", job_id)
            self._counts.failed(None, f"job {job_id} could not be ended")
            self.failed = True
            self._stop.set()
        finally:
            self._counts.job_seconds += time.monotonic() - begin
            self._job = self._session = self._store = None
            if not self._stop.is_set():
                self._between.tidy()
            self._idle.set()
        if self._stop.is_set():
            self._never()

    def _check_device(self) -> None:
        if self._runner is not None and not self._stop.is_set():
            with self._warming.job():
                self._between.check(self._runner, self._hold)

    def _hold(self, session: RecordedSession) -> None:
        """Makes stop() end the session, even if it came before there was one."""
        self._session = session
        if self._stop.is_set():
            session.stop()

    def _give_back(self, job_id: str, message: str) -> None:
        """Releases the job, if the database answers, and ends the worker: the failure was not the job's
        fault, so this start does not count."""
        with about(job_id=job_id):
            _log.critical(message)
        self._counts.failed(None, message)
        self.failed = True
        self._stop.set()
        job = self._job
        if job is not None:
            with (
                suppress(jobs.Fenced, StorageError, DatabaseUnavailable),
                writing(self._engine) as connection,
            ):
                jobs.release_job(connection, job)

    def _never(self) -> None:
        threading.Event().wait()

    def _one(self, job_id: str) -> None:
        def start() -> StartedJob | None:
            with writing(self._engine) as connection:
                return jobs.start_job(connection, job_id, self.id)

        job = patiently(self._stop, start)
        if job is None:
            return
        self._job = job
        if job.stop_requested:
            self._end(job, "cancelled", "every tuning that asked for it was cancelled")
            return
        if job.starts > MAX_ATTEMPTS:
            evidence = {
                "attempts": MAX_ATTEMPTS,
                "last_worker": job.earlier["worker_id"],
                "session_id": job.session_id,
            }
            message = (
                f"its worker died {MAX_ATTEMPTS} times while it measured this problem; what it had measured "
                "is kept in the session"
            )
            self._end(job, "failed", message, evidence, broken=True)
            return
        try:
            ids = {"job_id": job.id, "problem_id": job.problem_id}
            values: dict[str, str | int] = {**ids, "attempt": job.attempt, "device": self.environment.uuid}
            span = self._tracing.job(values, None if job.traceparent is None else parse(job.traceparent))
            with span as trace, about(**ids, **trace), self._warming.job():
                _log.info("attempt %d starts", job.attempt)
                self._measure(job)
        except (jobs.Fenced, Stopping, StorageError, DeviceLost):
            raise
        except Exception as error:  # an internal error ends this job, not the queue
            if is_exhausted(error):
                raise exhausted(error) from error
            check_resources()
            _log.exception("job %s failed", job_id)
            evidence = {"traceback": traceback.format_exc()[-4000:]}
            self._end(
                job, "failed", f"internal error: {type(error).__name__}: {error}", evidence, broken=True
            )

    def _measure(self, job: StartedJob) -> None:
        if self._runner is None:
            self._runner = self._make_runner(self.device, self._cache)
        runner = self._runner
        problem = GemmProblem.from_dict(job.problem)
        budget, search, rule = read_request(job.request)
        store = JobStore(self._engine, job, problem, self.environment, self._stop, counts=self._counts)
        self._store = store
        settings = TuningSettings(
            MeasurementPolicy.from_dict(job.policy), budget, search, rule, SEARCH_OPTIONS
        )
        check_known(settings, runner.backend)
        session = RecordedSession(
            runner, problem, settings, store,
            self._ceilings.of(self.environment, runner.ceilings), portfolio=self._settings.portfolio,
        )  # fmt: skip
        self._hold(session)
        if not session.stopped:
            for _ in session.run(session.open()):
                pass
        if self._precompile:
            self._warming.after(session.result, runner.take_uncompiled())
        if session.result is not None:
            return
        if self._stop.is_set():
            self._write(lambda connection: jobs.release_job(connection, job))
        else:
            self._end(job, "cancelled", "every tuning that asked for it was cancelled")

    def _end(
        self,
        job: StartedJob,
        status: str,
        error: str,
        evidence: dict[str, Any] | None = None,
        broken: bool = False,
    ) -> None:
        def end(connection: Connection) -> None:
            jobs.end_job(connection, job, status, {}, error, evidence, broken=broken)
            sessions.close(connection, job.id, "stopped" if status == "cancelled" else "failed", error)

        self._write(end)
        self._counts.jobs[status] += 1
        if status == "failed":
            self._counts.failed(job.id, error)

    def _write(self, action: Callable[[Connection], None]) -> None:
        def once() -> None:
            with writing(self._engine) as connection:
                action(connection)

        patiently(self._stop, once)
