"""Judges a user's kernel on a device of this machine, and stores what came of it under its own provenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, select

from backends.canonical import short_hash
from backends.errors import UnsupportedProblem
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.user_kernels.source import UserKernel
from db import models, provenance, sessions
from db.engine import reading, writing
from db.judged import JUDGED, source_of
from db.tunings import new_id
from db.values import storable, table
from service.requests import request_content
from tuners.ceilings import CeilingsOf
from tuners.judge.client import JudgeClient
from tuners.judge.result import Judged, judged, targets_for
from tuners.recorded_session import RecordedSession
from tuners.session_store import Result, SessionSpec, StoredSession
from tuners.tuning_settings import TuningSettings

#: The format of the provenance.
FORMAT = "judge"


class JudgedStore:
    """A SessionStore of a judged kernel: every session is new, belongs to the kernel's provenance, and starts
    with the best known solution, which it is raced against."""

    def __init__(self, engine: Engine, kernel: UserKernel) -> None:
        self._engine, self._kernel = engine, kernel
        self._origin = new_id(JUDGED)
        self._start: sessions.SessionStart | None = None
        self._seen: Counter[str] = Counter()

    def start(self, spec: SessionSpec) -> StoredSession:
        """A new session. Raises StorageError."""
        asked, kernel = spec.settings, self._kernel
        device_class = str(spec.environment.device_class)
        known = best_known(self._engine, spec.problem, device_class, asked.policy.id)
        row = {
            "kind": JUDGED, "format": FORMAT, "source": source_of(kernel.name), "sha256": kernel.digest,
            "device_class_id": device_class, "header": {"file": kernel.file, "language": kernel.language},
        }  # fmt: skip
        with writing(self._engine) as connection:
            number, _ = provenance.put(connection, row)
            self._start = sessions.SessionStart(
                spec.problem, spec.environment, asked.policy.id, asked.policy.to_dict(),
                request_content(asked.budget, asked.search, asked.rule), provenance_number=number,
                origin=f"{self._origin}:{short_hash(kernel.digest)}", options=asked.options.to_dict(),
            )  # fmt: skip
            sessions.begin_session(connection, self._start)
        self._seen.clear()
        return StoredSession(winners=[] if known is None else [known])

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome. Nothing is learnt from it of other solutions: a user's code was in the process
        that measured them."""
        with writing(self._engine) as connection:
            sessions.append_outcomes(connection, self._begun().id, [outcome], 1, self._seen, learn=False)

    def flush(self) -> None:
        """See SessionStore. add() writes at once."""

    def finish(self, result: Result) -> None:
        """Stores the result."""
        with writing(self._engine) as connection:
            sessions.end_session(connection, self._begun(), storable(result.to_dict()))

    def _begun(self) -> sessions.SessionStart:
        if self._start is None:
            raise RuntimeError("no session was started")
        return self._start


def best_known(engine: Engine, problem: GemmProblem, device_class: str, policy_id: str) -> Solution | None:
    """The winner of the problem's best row; None if nothing is known to beat the default."""
    best = table(models.Best)
    query = select(best.c.document).where(
        best.c.problem_id == problem.id, best.c.device_class_id == device_class, best.c.policy_id == policy_id
    )
    with reading(engine) as connection:
        text = connection.execute(query).scalar()
    document = None if text is None else json.loads(text)
    if document is None or document["judgement"] != "WIN":
        return None
    return Solution.from_dict(document["solution"])


@dataclass
class Judging:
    """Judges one kernel on many problems, one after another. stop() ends it after the current outcome."""

    client: JudgeClient
    engine: Engine
    settings: TuningSettings
    ceilings: CeilingsOf | None = None
    _session: RecordedSession | None = None
    _stopped: bool = False

    def stop(self) -> None:
        """Requests the end."""
        self._stopped = True
        if self._session is not None:
            self._session.stop()

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopped

    def run(self, problem: GemmProblem) -> Iterator[Outcome | Judged]:
        """The outcomes of a problem, and at last its result; no result if it was stopped. Raises DeviceLost,
        StorageError."""
        client, family = self.client, self.client.family
        reason = family.illegal(problem, client.solution, client.environment)
        if reason is not None:
            yield Judged(problem, "unsupported", reason)
            return
        if (missing := family.unavailable(client.environment)) is not None:
            raise UnsupportedProblem(f"{client.kernel.file} cannot run here: {missing}")
        device_class = str(client.environment.device_class)
        best = best_known(self.engine, problem, device_class, self.settings.policy.id)
        session = self._session = RecordedSession(
            client, problem, self.settings, JudgedStore(self.engine, client.kernel), self.ceilings,
            targets_for(client.solution, best),
        )  # fmt: skip
        outcomes = []
        for outcome in session.run(session.open()):
            outcomes.append(outcome)
            yield outcome
            if self._stopped:
                session.stop()
        if session.result is not None:
            yield judged(client.solution, best, session.result, outcomes, self.settings.rule.margin)
