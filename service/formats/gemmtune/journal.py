"""The JSON lines that `python -m tuners --output` writes: tuning sessions, brought home from a bare node.

    {"type":"start","version":1,"session":KEY,"start":{"problem","environment","policy",...,"*_id"}}
    {"type":"outcome","version":1,"session":KEY,"outcome":{...}}
    {"type":"result","version":1,"session":KEY,"result":{"problem","verdict","error",...}}

A session may be started again and go on further down, so all of them are held until the file ends; every
line is checked as it comes. A last line that a crash cut short is one rejected line. tuners/journal.py
writes the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.outcome import Outcome
from backends.problem import GemmProblem, from_linear
from service.formats.core.base import (
    PROBLEMS,
    Declaration,
    Entry,
    Found,
    ImportedSession,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.json_text import BadJsonError, decode, kind_of
from service.formats.core.row_values import BadRowError, environment_from, policy_from, solution_from
from tuners.decide import TargetVerdict, Verdict
from tuners.journal import VERSION
from tuners.packed import PackingCost
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result

#: Longest line in bytes: a result names its whole tie set, and an outcome may hold a compiler's log.
MAX_JOURNAL_LINE = 2**20
_TYPES = ("start", "outcome", "result")


@dataclass
class _Session:
    """One session, as far as it was read."""

    line: int
    problem: GemmProblem
    environment: Environment
    policy: MeasurementPolicy
    start: Mapping[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class JournalLines:
    """The format's entry in the registry."""

    name: str = "journal"
    declares: ClassVar[Declaration] = PROBLEMS
    description: str = "sessions written by `python -m tuners --output`, JSON lines"
    max_line: int = MAX_JOURNAL_LINE

    @property
    def example(self) -> str:
        """The start of a session."""
        start = _example_start()
        row = {"type": "start", "version": VERSION, "session": "0123456789abcdef", "start": start}
        return json.dumps(row, separators=(",", ":"))

    def detect(self, head: bytes) -> bool:
        """Whether the file begins as a journal's lines do."""
        return kind_of(head) == "journal"

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Yields an entry for every session's problem, every bad line, and the sessions at the end."""
        sessions: dict[str, _Session] = {}
        for decoded in decode_lines(lines, self.max_line):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded
            if not text.strip():
                continue
            try:
                begun = _take(sessions, number, decode(text))
            except (BadJsonError, BadRowError, InvalidProblem) as error:
                yield rejected(number, error, text)
            except RecursionError:  # from formatting the value for the message
                yield rejected(number, "nested too deeply", text)
            else:
                if begun is not None:
                    yield Entry(number, begun.problem, "")
        for key, session in sessions.items():
            yield ImportedSession(key, **vars(session))


def _take(sessions: dict[str, _Session], number: int, row: object) -> _Session | None:
    """Adds a line to its session. Returns the session if the line is its first. Raises BadRowError."""
    if not isinstance(row, Mapping) or row.get("type") not in _TYPES:
        raise BadRowError(f"no line of a journal: its type must be one of {', '.join(_TYPES)}")
    if row.get("version") != VERSION or isinstance(row["version"], bool):
        raise BadRowError(
            f"version {row.get('version')!r} of the journal's form; this gemmtune reads {VERSION}"
        )
    key, kind = row.get("session"), str(row["type"])
    if not isinstance(key, str) or not key or len(key) > 200 or not key.isprintable():
        raise BadRowError(f"session must be a key, not {key!r}")
    values = row.get(kind)
    if not isinstance(values, Mapping):
        raise BadRowError(f"{kind} is missing, or no object")
    session = sessions.get(key)
    if kind == "start":
        begun = _start(number, values)
        if session is None:
            sessions[key] = begun
            return begun
        if (begun.problem, begun.environment.id, begun.policy.id) != (
            session.problem,
            session.environment.id,
            session.policy.id,
        ):
            raise BadRowError(f"session {key} was started on line {session.line} for something else")
        session.start, session.result = values, None
        return None
    if session is None:
        raise BadRowError(f"session {key} has no start before this line")
    if kind == "outcome":
        session.outcomes.append(_outcome(values))
    else:
        session.result = _result(values, session)
    return None


def _start(number: int, values: Mapping[str, Any]) -> _Session:
    parts = {}
    for name in ("problem", "environment", "policy", "budget", "search", "rule"):
        parts[name] = values.get(name)
        if not isinstance(parts[name], Mapping):
            raise BadRowError(f"start: {name} is missing, or no object")
    if "options" in values and not isinstance(values["options"], Mapping):
        raise BadRowError("start: options must be an object")
    problem = GemmProblem.from_dict(parts["problem"])  # type: ignore[arg-type]
    environment = environment_from(parts["environment"])  # type: ignore[arg-type]
    policy = policy_from(parts["policy"])  # type: ignore[arg-type]
    made = {"problem_id": problem.id, "environment_id": environment.id, "policy_id": policy.id}
    for name, right in made.items():
        if values.get(name) != right:
            raise BadRowError(
                f"start: {name} {values.get(name)!r} does not belong to its content ({right!r}); "
                "another version of gemmtune wrote it, or it was changed"
            )
    return _Session(number, problem, environment, policy, values)


def _outcome(values: Mapping[str, Any]) -> Outcome:
    try:
        solution_from(values["solution"])
        found = Outcome.from_dict(values)
        PackingCost.within(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRowError(f"outcome: {_said(error)}") from None
    if not all(isinstance(s, int | float) and not isinstance(s, bool) for s in values["samples"]) or not all(
        0 < sample < math.inf for sample in found.samples
    ):
        raise BadRowError("outcome: samples must be seconds above 0")
    return found


def _result(values: Mapping[str, Any], session: _Session) -> Mapping[str, Any]:
    try:
        found = Result.from_dict(values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRowError(f"result: {_said(error)}") from None
    if found.problem != session.problem or values.get("problem_id") != session.problem.id:
        raise BadRowError("result: it is of another problem than its session")
    verdict = found.verdict
    if verdict is not None:
        texts = (verdict.baseline, verdict.winner, verdict.baseline_name, verdict.fastest, *verdict.tie_set)
        for tried in verdict.baselines:
            texts += (tried.name, tried.solution, tried.reason)
            timed = tried.seconds is None or (
                isinstance(tried.seconds, int | float) and 0 < tried.seconds < math.inf
            )
            if not timed:
                raise BadRowError("result: a default's seconds must be a number above 0 or null")
        judged: tuple[Verdict | TargetVerdict, ...] = (verdict, *verdict.targets.values())
        for one in judged:
            gain = one.speedup
            figures = (one.seconds, one.baseline_seconds, gain.mid)
            if not all(isinstance(f, int | float) for f in (*figures, gain.low, gain.high)) or not all(
                0 < f < math.inf for f in figures
            ):
                raise BadRowError("result: the verdict's seconds and speed-up must be numbers above 0")
            texts += (one.reason, *([one.solution] if isinstance(one, TargetVerdict) else []))
            if not isinstance(one.rounds, int) or not isinstance(one.tied, int) or one.tied < 1:
                raise BadRowError("result: the verdict's rounds and tied must be integers, tied from 1")
        if not all(isinstance(text, str) for text in (*texts, *verdict.targets)):
            raise BadRowError("result: the verdict's ids must be texts")
        if not all(isinstance(one.proven, bool) for one in verdict.targets.values()):
            raise BadRowError("result: whether a target's candidate is proven must be true or false")
    elif not isinstance(found.error, str):
        raise BadRowError("result: it has neither a verdict nor an error")
    return values


def _said(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _example_start() -> dict[str, Any]:
    problem = from_linear(16, 4096, 4096, "bf16")
    environment = Environment("cuda", "sm_90", "NVIDIA H200", 132, 150 * 2**30, "GPU-0")
    policy = MeasurementPolicy()
    return {
        "problem": problem.to_dict(),
        "problem_id": problem.id,
        "environment": environment.to_dict(),
        "environment_id": environment.id,
        "policy": policy.to_dict(),
        "policy_id": policy.id,
        "budget": {},
        "search": {},
        "rule": {},
    }
