"""Session stores in the database: of a worker's job, under its ticket, and of a command without a job."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event, Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from backends.environment import Environment
from backends.errors import StorageError
from backends.exhaustion import check_resources
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.problem_distance import problem_distance, same_epilogue, with_others
from backends.solution import Solution
from db import exported, history, jobs, sessions, table_history
from db.engine import DatabaseUnavailable, now, writing
from db.jobs import StartedJob
from service.requests import request_content
from tuners.session_store import Result, SessionSpec, StoredSession
from tuners.strategies import PriorResult

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Least seconds between two progress events of a job.
PROGRESS_SECONDS = 1.0
#: Outcomes of a job that come faster than this are written together: a transaction for each takes a tenth of
#: a short session. A kill loses no more than these and those since the worker's last look (flush_late()),
#: which are measured again.
WRITE_SECONDS = 0.1
#: Most imported solutions of a problem that are tried, the latest first.
MOST_IMPORTED = 32
#: Most winners of earlier sessions of a problem that are tried first, the latest first.
MOST_WINNERS = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 5.0
#: What a candidate's outcome may be because a process or a thread could not be started.
_SUSPECT = frozenset((Status.CRASH, Status.COMPILE_ERROR, Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY))


class WorkerCounts:
    """What a worker has counted since its start, for /metrics. Another thread may read it: no key is added
    later."""

    def __init__(self) -> None:
        self.jobs = dict.fromkeys(("succeeded", "failed", "cancelled"), 0)
        self.outcomes = {status.value: 0 for status in Status}
        self.candidates = 0
        self.job_seconds = 0.0
        #: What failed last: when, the job (None: the worker itself), and the reason.
        self.failure: dict[str, Any] | None = None

    def failed(self, job_id: str | None, reason: str | None) -> None:
        """Notes a failure."""
        self.failure = {"at": now(), "job_id": job_id, "reason": reason or "no reason given"}

    def outcome(self, outcome: Outcome) -> None:
        """Counts an outcome; those of screening are candidates."""
        self.outcomes[outcome.status.value] += 1
        self.candidates += outcome.phase is Phase.SCREEN

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "jobs": dict(self.jobs), "outcomes": dict(self.outcomes), "candidates": self.candidates,
            "job_seconds": self.job_seconds,
        }  # fmt: skip


class Stopping(Exception):
    """The worker was asked to stop while it waited for the database."""


def patiently(stop: Event, action: Callable[[], T]) -> T:
    """Repeats an action until the database answers. Raises Stopping if `stop` is set meanwhile."""
    wait = _FIRST_WAIT
    while True:
        try:
            return action()
        except DatabaseUnavailable as error:
            _log.warning("waiting for the database: %s", error)
            if stop.wait(wait):
                raise Stopping from error
            wait = min(2 * wait, _LONGEST_WAIT)


def claimed_solutions(connection: Connection, start: sessions.SessionStart) -> list[Solution]:
    """The solutions that imported files claim for the session's problem and device class, latest first."""
    device = str(start.environment.device_class)
    found: dict[str, Solution] = {}
    for row in exported.claim_rows(connection, device, [start.problem.id]):
        if row["solution_id"] is not None and len(found) < MOST_IMPORTED:
            names = ("family", "version", "parameters", "build", "workspace_bytes", "deterministic")
            found.setdefault(row["solution_id"], Solution(**{name: row[name] for name in names}))
    return list(found.values())


def past_results(connection: Connection, start: sessions.SessionStart) -> list[PriorResult]:
    """What earlier sessions found for near problems, for the search. Where there is no such session, what
    pre-tuned tables say. Results of a product without the problem's epilogue count where neither has any with
    it that is as near."""
    asked = start.problem, start.environment.device_class, start.policy_id
    found = history.nearest(connection, *asked)
    measured = {(one.problem, one.environment.device_class) for one in found}
    found += [
        one for one in table_history.nearest(connection, *asked)
        if (one.problem, one.environment.device_class) not in measured
    ]  # fmt: skip
    units = start.environment.units
    placed = [(problem_distance(start.problem, one.problem, units), one) for one in found]
    own = [row for row in placed if same_epilogue(start.problem, row[1].problem)]
    others = [row for row in placed if not same_epilogue(start.problem, row[1].problem)]
    return [
        PriorResult(one.problem, one.environment, one.solution, Status.OK, one.ratio)
        for _, one in with_others(own, others)
    ]


def earlier_winners(connection: Connection, start: sessions.SessionStart) -> list[Solution]:
    """The solutions that won the problem on the session's device class under its policy, latest first."""
    device = str(start.environment.device_class)
    rows = sessions.winners(connection, start.problem.id, device, start.policy_id, MOST_WINNERS)
    return [Solution.from_dict(row) for row in rows]


class DirectStore:
    """The SessionStore of a campaign without a job: the same command finds its earlier outcomes and resumes.
    A new `origin` makes separate sessions, which are measured again."""

    def __init__(self, engine: Engine, origin: str = "") -> None:
        self._engine, self._origin = engine, origin
        self._start: sessions.SessionStart | None = None
        self._seen: Counter[str] = Counter()
        self._first_take = 0

    def start(self, spec: SessionSpec) -> StoredSession:
        """The stored outcomes, and the result if the session has a verdict."""
        asked = spec.settings
        content = request_content(asked.budget, asked.search, asked.rule)
        start = sessions.SessionStart(
            spec.problem, spec.environment, asked.policy.id, asked.policy.to_dict(), content,
            origin=self._origin, options=asked.options.to_dict(),
        )  # fmt: skip
        with writing(self._engine) as connection:
            session_id = sessions.begin_session(connection, start)
            self._first_take = sessions.takes(connection, session_id) + 1
            outcomes = sessions.stored_outcomes(connection, session_id)
            result = sessions.stored_result(connection, session_id)
            imported, past = claimed_solutions(connection, start), past_results(connection, start)
            winners, incumbent = earlier_winners(connection, start), sessions.incumbent(connection, start)
        self._start = start
        self._seen.clear()
        known = None if result is None else Result.from_dict(result)
        return StoredSession(outcomes, known, imported, winners, past, incumbent)

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome. Raises StorageError if the database does not answer."""
        start = self._begun()

        def append(connection: Connection) -> None:
            sessions.append_outcomes(connection, start.id, [outcome], self._first_take, self._seen)

        self._write(append)

    def flush(self) -> None:
        """See SessionStore. add() writes at once."""

    def finish(self, result: Result) -> None:
        """Stores a result. Raises StorageError if the database does not answer."""
        start = self._begun()
        self._write(lambda connection: sessions.end_session(connection, start, result.to_dict()))

    def _begun(self) -> sessions.SessionStart:
        if self._start is None:
            raise RuntimeError("no session was started")
        return self._start

    def _write(self, action: Callable[[Connection], None]) -> None:
        try:
            with writing(self._engine) as connection:
                action(connection)
        except DatabaseUnavailable as error:
            raise StorageError(f"{error}; run the same command again to go on") from error


class JobStore:
    """The SessionStore of one job. Raises jobs.Fenced once the job is no longer this worker's."""

    def __init__(
        self,
        engine: Engine,
        job: StartedJob,
        problem: GemmProblem,
        environment: Environment,
        stop: Event,
        clock: Callable[[], float] = time.monotonic,
        counts: WorkerCounts | None = None,
    ) -> None:
        self.job = job
        self._counts = counts or WorkerCounts()
        self.session = sessions.SessionStart(
            problem, environment, job.policy_id, job.policy, job.request, job_id=job.id,
            origin=f"retry {job.retries}" if job.retries else "",
        )  # fmt: skip
        self._engine, self._stop, self._clock = engine, stop, clock
        self._seen: Counter[str] = Counter()
        self._first_take = 0
        self._statuses: Counter[str] = Counter()
        self._fastest: Outcome | None = None
        #: Outcomes that are not written yet.
        self._waiting: list[Outcome] = []
        #: The session's thread adds; the worker's main thread writes what waits while a candidate takes long.
        self._lock = Lock()
        self._told = self._written = clock()

    def start(self, spec: SessionSpec) -> StoredSession:
        """What earlier starts of this job measured in the same environment."""
        self.session = replace(self.session, options=spec.settings.options.to_dict())

        def read(connection: Connection) -> tuple[StoredSession, int]:
            jobs.hold(connection, self.job)
            session_id = sessions.begin_session(connection, self.session)
            jobs.hold(connection, self.job, session_id=session_id)
            outcomes = sessions.stored_outcomes(connection, session_id)
            imported = claimed_solutions(connection, self.session)
            winners = earlier_winners(connection, self.session)
            past = past_results(connection, self.session)
            incumbent = sessions.incumbent(connection, self.session)
            stored = StoredSession(outcomes, None, imported, winners, past, incumbent)
            return stored, sessions.takes(connection, session_id)

        stored, highest = self._write(read)
        self._first_take = highest + 1
        for outcome in stored.outcomes:
            self._count(outcome)
        return stored

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome, at the latest with the first one that follows after WRITE_SECONDS, and adds a
        progress event to the job's tunings if one is due. Raises ResourcesExhausted for a failure while this
        process can start no more processes or threads."""
        suspect = outcome.status in _SUSPECT
        if suspect:
            check_resources()  # a stored outcome is never measured again
        with self._lock:
            self._count(outcome)
            self._waiting.append(outcome)
            if suspect or self._late:
                self._flush(self._write)

    def flush(self) -> None:
        """Writes what was added."""
        with self._lock:
            self._flush(self._write)

    def flush_late(self) -> None:
        """Writes what has waited for WRITE_SECONDS, once, unless the session's thread is writing: while that
        waits for the database, the caller's heartbeats must not. Raises DatabaseUnavailable, and Fenced."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._late:
                self._flush(self._write_once)
        finally:
            self._lock.release()

    @property
    def _late(self) -> bool:
        return self._clock() - self._written >= WRITE_SECONDS

    def _flush(self, write: Callable[[Callable[[Connection], Counter[str]]], Counter[str]]) -> None:
        outcomes = list(self._waiting)
        if not outcomes:
            return
        tell = self._clock() - self._told >= PROGRESS_SECONDS

        def append(connection: Connection) -> Counter[str]:
            jobs.hold(connection, self.job)
            seen = self._append(connection, outcomes)
            if tell:
                jobs.emit_to_all(connection, self.job.number, "measured", self._progress())
            return seen

        self._wrote(outcomes, write(append))
        if tell:
            self._told = self._clock()

    def _append(self, connection: Connection, outcomes: Sequence[Outcome]) -> Counter[str]:
        """The counts of finals and proofs with these outcomes. A failed transaction must not count."""
        seen = self._seen.copy()
        sessions.append_outcomes(connection, self.session.id, outcomes, self._first_take, seen)
        return seen

    def _wrote(self, outcomes: Sequence[Outcome], seen: Counter[str]) -> None:
        self._seen, self._written = seen, self._clock()
        del self._waiting[: len(outcomes)]
        for outcome in outcomes:
            self._counts.outcome(outcome)

    def finish(self, result: Result) -> None:
        """Ends session and job in one transaction, with the outcomes that are not written yet. Raises
        ResourcesExhausted instead of ending a job without a verdict while this process can start no more
        processes or threads."""
        content = result.to_dict()
        verdict = content["verdict"]
        status = "failed" if verdict is None else "succeeded"
        if verdict is None:
            check_resources()
        summary = {"session_id": self.session.id, "outcomes": dict(self._statuses), "verdict": verdict}

        def end(connection: Connection) -> Counter[str]:
            jobs.hold(connection, self.job)
            seen = self._append(connection, self._waiting)
            sessions.end_session(connection, self.session, content)
            sessions.close(connection, self.job.id, "stopped", "the job went on in another environment")
            jobs.end_job(connection, self.job, status, summary, result.error)
            return seen

        with self._lock:
            self._wrote(list(self._waiting), self._write(end))
        self._counts.jobs[status] += 1
        if verdict is None:
            self._counts.failed(self.job.id, result.error)

    def _count(self, outcome: Outcome) -> None:
        self._statuses[str(outcome.status)] += 1
        usable = outcome.phase is Phase.SCREEN and outcome.status in (Status.OK, Status.UNSTABLE)
        if usable and (self._fastest is None or (outcome.seconds or 0) < (self._fastest.seconds or 0)):
            self._fastest = outcome

    def _progress(self) -> dict[str, Any]:
        fastest = self._fastest
        return {
            "job_id": self.job.id,
            "problem_id": self.job.problem_id,
            "outcomes": dict(self._statuses),
            "fastest": None
            if fastest is None
            else {"solution_id": fastest.solution.id, "seconds": fastest.seconds},
        }

    def _write(self, action: Callable[[Connection], T]) -> T:
        return patiently(self._stop, lambda: self._write_once(action))

    def _write_once(self, action: Callable[[Connection], T]) -> T:
        with writing(self._engine) as connection:
            return action(connection)
