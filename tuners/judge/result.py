"""What a judged kernel's session says of the kernel itself: right or not, and how fast against whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from backends.export_targets import ExportTarget
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.decide import Judgement, TargetVerdict
from tuners.intervals import Interval, paired
from tuners.judge.client import failure_text
from tuners.session_store import Result

#: The confidence of a ratio that the session's own decision does not have.
CONFIDENCE = 0.99
#: Time of the default in the race over its time in its screening, from which on a note says so.
SLOWED = 1.5
JUDGED, BEST_KNOWN = "judged", "best-known"


@dataclass(frozen=True)
class OneSolution(ExportTarget):
    """A target that names one solution: the final samples it, and judges it against the default."""

    solution_id: str = ""

    def names(self, solution: Solution) -> bool:
        """Whether it is this one."""
        return solution.id == self.solution_id


def targets_for(judged: Solution, best: Solution | None) -> tuple[OneSolution, ...]:
    """The targets of a judged kernel's session: itself, and the best known solution."""
    found = [OneSolution(JUDGED, "gemmtune judge", solution_id=judged.id)]
    if best is not None and best != judged:
        found.append(OneSolution(BEST_KNOWN, "gemmtune judge", solution_id=best.id))
    return tuple(found)


@dataclass(frozen=True)
class Compared:
    """The kernel against another solution: `speedup` is the other's time over its own, with an interval;
    open ends where too few rounds were sampled to bound it."""

    name: str
    solution: str
    seconds: float
    speedup: Interval
    judgement: Judgement

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an open end is null."""
        ends = {
            name: value if abs(value) != float("inf") else None for name, value in vars(self.speedup).items()
        }
        return {**vars(self), "speedup": ends, "judgement": self.judgement.value}


@dataclass(frozen=True)
class Judged:
    """A problem's result. `status`: right; wrong (a wrong result or a cheat); failed (it did not run);
    unsupported (its source does not state the problem). `text` says why, or why there is no comparison."""

    problem: GemmProblem
    status: str
    text: str = ""
    seconds: float | None = None
    default: Compared | None = None
    best: Compared | None = None
    cheats: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    deterministic: bool | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **vars(self), "problem": self.problem.to_dict(), "problem_id": self.problem.id,
            "default": None if self.default is None else self.default.to_dict(),
            "best": None if self.best is None else self.best.to_dict(),
            "cheats": list(self.cheats), "evidence": dict(self.evidence), "notes": list(self.notes),
        }  # fmt: skip


def judged(
    solution: Solution, best: Solution | None, result: Result, outcomes: Sequence[Outcome], margin: float
) -> Judged:
    """What a session says of `solution`."""
    screened = _last(outcomes, solution, Phase.SCREEN)
    if screened is None:
        return Judged(result.problem, "failed", result.error or "it was not run", notes=result.notes)
    cheats = tuple(screened.evidence.get("cheats", ()))
    if screened.status not in (Status.OK, Status.UNSTABLE):
        status = "wrong" if screened.status is Status.WRONG_RESULT else "failed"
        return Judged(
            result.problem, status, failure_text(screened), cheats=cheats, evidence=screened.evidence,
            notes=result.notes,
        )  # fmt: skip
    raced = _last(outcomes, solution, Phase.FINAL)
    if raced is not None and raced.status not in (Status.OK, Status.UNSTABLE, Status.PRUNED):
        return Judged(result.problem, "failed", f"in the race: {failure_text(raced)}", notes=result.notes)
    verdict = result.verdict
    if verdict is None:
        return Judged(
            result.problem, "right", f"not raced: {result.error}", screened.seconds, notes=result.notes,
            evidence=screened.evidence,
        )  # fmt: skip
    times = {one.solution.id: one for one in outcomes if one.phase is Phase.FINAL and one.samples}
    first = {one.solution.id: one for one in outcomes if one.phase is Phase.SCREEN and one.samples}
    target = verdict.targets.get(JUDGED)
    if target is not None:
        default = Compared(
            verdict.baseline_name, verdict.baseline, target.baseline_seconds, target.speedup, target.judgement
        )
        seconds, text = target.seconds, _reason(target)
    else:
        default = _screened(verdict.baseline_name, screened, first.get(verdict.baseline))
        seconds, text = screened.seconds or 0.0, "compared by its screening: it is too slow for the race"
    known = None
    if best is not None and best.id in times and solution.id in times:
        known = _paired(times[solution.id], times[best.id], margin)
    elif best is not None and best.id in first:
        known = _screened(best.family, screened, first[best.id])
    notes = [*result.notes, *_slowed(first.get(verdict.baseline), times.get(verdict.baseline))]
    return Judged(
        result.problem, "right", text, seconds, default, known, evidence=screened.evidence,
        deterministic=screened.evidence.get("repeatable"), notes=tuple(notes),
    )  # fmt: skip


def _slowed(before: Outcome | None, raced: Outcome | None) -> list[str]:
    """A note where the default is much slower in the race than it was before the kernel was loaded."""
    if before is None or raced is None or median(raced.samples) < SLOWED * median(before.samples):
        return []
    return [
        f"the default took {median(before.samples) * 1e6:.3g} us before the kernel was loaded and "
        f"{median(raced.samples) * 1e6:.3g} us in the race: the kernel, or another process, slows it down"
    ]


def _reason(target: TargetVerdict) -> str:
    """The judgement's reason, as of one candidate."""
    return "it was shown slower than the default" if target.judgement is Judgement.LOSS else target.reason


def _last(outcomes: Sequence[Outcome], solution: Solution, phase: Phase) -> Outcome | None:
    found = [one for one in outcomes if one.solution.id == solution.id and one.phase is phase]
    return found[-1] if found else None


def _rounds(outcome: Outcome) -> dict[int, float]:
    numbers = outcome.evidence.get("in_rounds") or range(len(outcome.samples))
    return dict(zip(numbers, outcome.samples, strict=True))


def _paired(ours: Outcome, theirs: Outcome, margin: float) -> Compared:
    """The comparison within the rounds of the final that sampled both."""
    mine, other = _rounds(ours), _rounds(theirs)
    common = sorted(mine.keys() & other.keys())
    if not common:
        return _screened(theirs.solution.family, ours, theirs)
    speedup = paired([other[i] for i in common], [mine[i] for i in common], CONFIDENCE)
    judgement = Judgement.TIE
    if speedup.low > 1 and speedup.mid >= 1 + margin:
        judgement = Judgement.WIN
    elif speedup.high < 1 and speedup.mid <= 1 / (1 + margin):
        judgement = Judgement.LOSS
    seconds = median(other[i] for i in common)
    return Compared(theirs.solution.family, theirs.solution.id, seconds, speedup, judgement)


def _screened(name: str, ours: Outcome, theirs: Outcome | None) -> Compared:
    """The comparison of two outcomes that share no round: a LOSS if every sample of ours is slower, and
    never a WIN."""
    if theirs is None or not theirs.samples:
        return Compared(name, "", 0.0, Interval(float("-inf"), 0.0, float("inf")), Judgement.TIE)
    mid = median(theirs.samples) / median(ours.samples)
    lost = min(ours.samples) > max(theirs.samples)
    speedup = Interval(float("-inf"), mid, float("inf"))
    judgement = Judgement.LOSS if lost else Judgement.TIE
    return Compared(name, theirs.solution.id, median(theirs.samples), speedup, judgement)
