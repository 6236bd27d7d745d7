"""What is stored of tuning sessions (settings, outcomes, result), and the protocol of the stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from backends.canonical import short_hash
from backends.environment import Environment
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.decide import Verdict
from tuners.policy import MeasurementPolicy
from tuners.strategies.context import PriorResult
from tuners.tuning_settings import TuningSettings


@dataclass(frozen=True)
class Result:
    """The result of tuning one problem: a verdict with its share of the roofline, or an error.

    Of the seconds in `counts`, measuring counts against the budget; compiling and setup (operands,
    references) do not.
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
        """Raises KeyError, TypeError or InvalidProblem for a malformed row."""
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


def session_key(problem: GemmProblem, environment: Environment, policy: MeasurementPolicy, seed: int) -> str:
    """A key of everything that must be equal for stored outcomes to be replayed."""
    return short_hash([problem.id, environment.to_dict(), policy.id, seed], 16)


@dataclass(frozen=True)
class SessionSpec:
    """One problem in one environment with its settings."""

    problem: GemmProblem
    environment: Environment
    settings: TuningSettings

    @property
    def key(self) -> str:
        """The session's name in a file. It includes neither the budget nor the options."""
        return session_key(self.problem, self.environment, self.settings.policy, self.settings.search.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as in the start line of a file."""
        asked = self.settings
        return {
            "problem": self.problem.to_dict(),
            "problem_id": self.problem.id,
            "environment": self.environment.to_dict(),
            "environment_id": self.environment.id,
            "policy": asked.policy.to_dict(),
            "policy_id": asked.policy.id,
            "budget": asked.budget.to_dict(),
            "search": {**asked.search.to_dict(), "families": list(asked.search.families or ())},
            "rule": dict(vars(asked.rule)),
            "options": asked.options.to_dict(),
        }


@dataclass
class StoredSession:
    """What a store holds for a session that starts: outcomes to replay, the result if the session ended under
    the same settings without an error, solutions that imported files name for the problem, those that won
    earlier sessions of it, in whatever environment, and results of earlier tunings of near problems, the
    nearest first. `incumbent`: id of the solution that the latest verdict in the same environment under the
    same policy left in use, a default or a winner; None if there is none."""

    outcomes: list[Outcome] = field(default_factory=list)
    result: Result | None = None
    warm_start: Sequence[Solution] = ()
    winners: Sequence[Solution] = ()
    history: Sequence[PriorResult] = ()
    incumbent: str | None = None


class SessionStore(Protocol):
    """Stores the outcomes and results of sessions, one session at a time."""

    def start(self, spec: SessionSpec) -> StoredSession:
        """Starts or resumes a session; add() and finish() then refer to it. Raises StorageError."""

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome, or keeps it to be stored with the next ones. Raises StorageError."""

    def flush(self) -> None:
        """Stores what was added, where the session ends without finish(). Raises StorageError."""

    def finish(self, result: Result) -> None:
        """Ends the session; the result is durable when this returns. Raises StorageError."""


class MemoryStore:
    """A SessionStore that keeps sessions in memory."""

    def __init__(self) -> None:
        self.sessions: dict[str, StoredSession] = {}
        self._current = StoredSession()

    def start(self, spec: SessionSpec) -> StoredSession:
        """See SessionStore."""
        self._current = self.sessions.setdefault(spec.key, StoredSession())
        return replace(self._current, outcomes=list(self._current.outcomes))

    def add(self, outcome: Outcome) -> None:
        """See SessionStore."""
        self._current.outcomes.append(outcome)

    def flush(self) -> None:
        """See SessionStore."""

    def finish(self, result: Result) -> None:
        """See SessionStore."""
        self._current.result = None if result.error is not None else result
