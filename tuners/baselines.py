"""What became of the defaults of a problem: which one a verdict is about, and why it is not another.

The default is what the user runs on this problem as it is. A framework's call that is wrong on a twin problem
(tuners/inputs.py: ragged sizes, padded leading dimensions, other scalars) and right on the exact one is still
what the user runs, so it stays the baseline, and the verdict says what it got wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from backends.outcome import Outcome, Status
from backends.protocol import AbsentBaseline, Baseline

#: The key of an outcome's evidence that holds the twin problem that a default got wrong.
TWIN = "twin"
_TIMED = (Status.OK, Status.UNSTABLE)


class Fate(StrEnum):
    """baseline: the verdict is about it. slower, faster: than the baseline, as the final showed. tied: the
    final showed neither. failed: it could not be judged. unavailable: it is not installed, or has no call for
    the problem."""

    BASELINE = "baseline"
    SLOWER = "slower"
    FASTER = "faster"
    TIED = "tied"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class TriedBaseline:
    """A default of the problem and its fate. `solution` is its id, "" for an unavailable one; `seconds` are
    per call, None if it was not timed. `reason` says why it failed or is unavailable, or which twin problem
    it got wrong."""

    name: str
    solution: str
    seconds: float | None
    fate: Fate
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return {**vars(self), "fate": self.fate.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TriedBaseline:
        """Raises KeyError, TypeError or ValueError for a malformed record."""
        return cls(**{**values, "fate": Fate(values["fate"])})


def twin_text(evidence: Mapping[str, Any]) -> str:
    """The twin problem that an outcome's solution got wrong, in words; "" if it got none wrong."""
    twin = evidence.get(TWIN)
    if twin is None:
        return ""
    return f"wrong on a twin problem: {twin['problem']} ({twin['case']}): {twin['wrong']}"


def failure_text(outcome: Outcome) -> str:
    """Why a default could not be judged."""
    said = outcome.evidence
    why = next((str(said[name]) for name in ("wrong", "rule", "error") if said.get(name)), "")
    where = f" on {said['problem']}" if "problem" in said else ""
    return f"{outcome.status}{where}{': ' if why else ''}{why}"


def judged(
    baselines: Sequence[Baseline], screened: Mapping[str, Outcome]
) -> tuple[list[Baseline], dict[str, str]]:
    """The defaults that a final compares, the verdict's own first, and name -> reason of those that failed.

    The first default with samples is the verdict's, unless a framework's call before it failed: then there is
    nothing honest to compare with, and the list is empty. A later default that is wrong on a twin problem is
    a candidate that is wrong.
    """
    kept: list[Baseline] = []
    failed: dict[str, str] = {}
    for baseline in baselines:
        outcome = screened[baseline.solution.id]
        if outcome.status not in _TIMED:
            failed[baseline.name] = failure_text(outcome)
        elif kept and TWIN in outcome.evidence:
            failed[baseline.name] = twin_text(outcome.evidence)
        else:
            kept.append(baseline)
    first = kept[0] if kept else None
    before = baselines if first is None else baselines[: baselines.index(first)]
    if any(baseline.framework for baseline in before):
        return [], failed
    return kept, failed


def tried(
    baselines: Sequence[Baseline],
    absent: Sequence[AbsentBaseline],
    failed: Mapping[str, str],
    compared: Mapping[str, tuple[Fate, float | None]],
    twins: Mapping[str, str],
) -> tuple[TriedBaseline, ...]:
    """The records of a verdict, in the order in which a user would meet the defaults. `compared`: solution id
    -> its fate in the final and its seconds. `twins`: solution id -> twin_text()."""
    found = []
    for one in baselines:
        name = one.solution.id
        if one.name in failed:
            found.append(TriedBaseline(one.name, name, None, Fate.FAILED, failed[one.name]))
        elif name not in compared:
            found.append(TriedBaseline(one.name, name, None, Fate.FAILED, "failed in the final"))
        else:
            fate, seconds = compared[name]
            found.append(TriedBaseline(one.name, name, seconds, fate, twins.get(name, "")))
    missing = [TriedBaseline(one.name, "", None, Fate.UNAVAILABLE, one.reason) for one in absent]
    return (*found, *missing)


def no_default(problem: str, failed: Mapping[str, str], baselines: Sequence[Baseline]) -> str:
    """The reason of a session without a verdict because no default could be judged."""
    listed = "; ".join(f"{name}: {why}" for name, why in failed.items())
    unused = [one.name for one in baselines if one.name not in failed]
    rest = f"; {', '.join(unused)} is not what the framework runs" if unused else ""
    return f"no default to compare with for {problem}: {listed}{rest}"
