"""Many problems on one device: sessions one after another, journalled, each failure kept to its problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.errors import DeviceLost, GemmtuneError, InvalidProblem, StorageError, UnsupportedProblem
from backends.outcome import Outcome
from backends.problem import GemmProblem
from tuners.budget import Budget, Search
from tuners.ceilings import Ceilings
from tuners.decide import DecisionRule, Verdict
from tuners.device_client import DeviceClient
from tuners.journal import SessionStore, StoredSession, session_key
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound
from tuners.session import Session
from tuners.strategies import STRATEGIES


@dataclass(frozen=True)
class Result:
    """What became of one problem: a verdict with its share of the roofline, or an error that says why not.

    Seconds: measuring counts against the budget; compiling and setting up (operands, references) do not.
    """

    problem: GemmProblem
    verdict: Verdict | None
    error: str | None = None
    roofline_share: float | None = None
    binds: str | None = None
    counts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {
            **vars(self),
            "problem": self.problem.to_dict(),
            "problem_id": self.problem.id,
            "verdict": verdict,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Raises KeyError, TypeError or InvalidProblem for a row that is no result."""
        rest = {name: value for name, value in values.items() if name != "problem_id"}
        verdict = rest["verdict"]
        return cls(
            **{
                **rest,
                "problem": GemmProblem.from_dict(rest["problem"]),
                "verdict": None if verdict is None else Verdict.from_dict(verdict),
                "notes": tuple(rest["notes"]),
            }
        )


@dataclass(frozen=True)
class Started:
    """A problem's session begins."""

    index: int
    problem: GemmProblem


@dataclass(frozen=True)
class Measured:
    """An outcome of the current problem."""

    index: int
    outcome: Outcome


@dataclass(frozen=True)
class Finished:
    """A problem has its result; `replayed`: it was in the journal already."""

    index: int
    result: Result
    replayed: bool = False


@dataclass(frozen=True)
class Skipped:
    """A problem that the caller's own limits left out; `reason` names the limit."""

    index: int
    problem: GemmProblem
    reason: str


Event = Started | Measured | Finished | Skipped


class Campaign:
    """Iterate run() for events. stop() ends it after the next outcome; the journal keeps it."""

    def __init__(
        self,
        runner: DeviceClient,
        problems: Sequence[GemmProblem],
        policy: MeasurementPolicy,
        budget: Budget,
        search: Search,
        rule: DecisionRule,
        journal: SessionStore | None = None,
        ceilings: Callable[[Sequence[str]], Ceilings] | None = None,
        total_seconds: float | None = None,
        max_flops: float | None = None,
    ) -> None:
        for name, limit in (("total_seconds", total_seconds), ("max_flops", max_flops)):
            if limit is not None and not limit > 0:
                raise InvalidProblem(f"{name} must be above 0, not {limit}", name)
        self._total_seconds, self._max_flops = total_seconds, max_flops
        _check_known("strategy", [search.strategy], tuple(STRATEGIES))
        _check_known("mode", [policy.mode], runner.backend.traits.modes)
        _check_known("family", search.families or (), tuple(runner.backend.families()))
        self.runner, self.problems = runner, list(problems)
        self.policy, self.budget, self.search, self.rule = policy, budget, search, rule
        self.journal, self._ceilings = journal, ceilings
        self._session: Session | None = None
        self._stopped = False

    def stop(self) -> None:
        """Asks the campaign to end."""
        self._stopped = True
        if self._session is not None:
            self._session.stop()

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopped

    def run(self) -> Iterator[Event]:
        """Events of every problem in order. A problem that cannot run ends with a Finished that says why;
        StorageError and DeviceLost pass through, because nothing more could be kept or measured: the problem
        that they interrupt has no result, and its outcomes are gone on from."""
        begin = time.monotonic()
        for index, problem in enumerate(self.problems):
            if self._stopped:
                return
            reason = self._left_out(problem, time.monotonic() - begin)
            if reason is not None:
                yield Skipped(index, problem, reason)
                continue
            key = session_key(problem, self.runner.environment, self.policy, self.search.seed)
            stored, start = self._stored(key), self._start(problem)
            same = stored.start is None or dict(stored.start) == start
            if same and stored.result is not None and stored.result["error"] is None:
                yield Finished(index, Result.from_dict(stored.result), replayed=True)
                continue
            yield Started(index, problem)
            yield from self._one(index, problem, key, stored, start)

    def _left_out(self, problem: GemmProblem, spent: float) -> str | None:
        if self._max_flops is not None and problem.flops > self._max_flops:
            return f"over the limit of {self._max_flops / 1e9:g} GFLOP"
        if self._total_seconds is not None and spent + self.budget.seconds > self._total_seconds:
            return f"no room left in the total budget of {self._total_seconds:g} s"
        return None

    def _stored(self, key: str) -> StoredSession:
        return StoredSession() if self.journal is None else self.journal.stored(key)

    def _one(
        self,
        index: int,
        problem: GemmProblem,
        key: str,
        stored: StoredSession,
        start: Mapping[str, Any],
    ) -> Iterator[Event]:
        begin, compiled = time.monotonic(), self.runner.compile_seconds
        old = list(stored.outcomes)
        session = Session(
            self.runner, problem, self.policy, self.budget, self.search, self.rule, old, seeds=stored.seeds
        )
        self._session = session
        error = None
        if stored.start is None or dict(stored.start) != start:
            self._write("start", key, start)
        try:
            for number, outcome in enumerate(session.run()):
                if number >= session.counts.replayed:
                    self._write("outcome", key, outcome.to_dict())
                yield Measured(index, outcome)
                if self._stopped:
                    session.stop()
        except (StorageError, DeviceLost):
            raise
        except GemmtuneError as failure:
            error = str(failure)
        if session.stopped:
            return
        result = self._result(
            session, error, time.monotonic() - begin, self.runner.compile_seconds - compiled
        )
        self._write("result", key, result.to_dict(), sync=True)
        yield Finished(index, result)

    def _result(self, session: Session, error: str | None, seconds: float, compiling: float) -> Result:
        counts = {**vars(session.counts), "compiling_seconds": compiling, "total_seconds": seconds}
        rotation = session.rotation
        if rotation is not None:
            counts |= {"operand_sets": rotation.sets, "rotation_bytes": rotation.bytes}
        share = binds = None
        if session.verdict is not None and self._ceilings is not None:
            kind = "tf32" if session.problem.compute == "tf32" else session.problem.dtype_a
            try:
                limit = bound(session.problem, self._ceilings([kind]))
                share, binds = limit.share(session.verdict.seconds), limit.binds
            except (GemmtuneError, KeyError) as failure:  # the verdict stands, whatever became of the device
                session.notes.append(f"no roofline: {failure}")
        return Result(session.problem, session.verdict, error, share, binds, counts, tuple(session.notes))

    def _start(self, problem: GemmProblem) -> dict[str, Any]:
        return {
            "problem": problem.to_dict(),
            "problem_id": problem.id,
            "environment": self.runner.environment.to_dict(),
            "environment_id": self.runner.environment.id,
            "policy": self.policy.to_dict(),
            "policy_id": self.policy.id,
            "budget": vars(self.budget),
            "search": {**vars(self.search), "families": list(self.search.families or ())},
            "rule": vars(self.rule),
        }

    def _write(self, kind: str, key: str, values: Mapping[str, Any], sync: bool = False) -> None:
        if self.journal is not None:
            self.journal.write(kind, key, values, sync)


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UnsupportedProblem(f"{what} {name!r} is unknown here; known: {', '.join(known)}")
