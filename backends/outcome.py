"""Outcome: the result of screening, timing or proving one candidate, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from backends.solution import Solution


class Status(StrEnum):
    """ok: verified and timed. pruned: verified, and shown to be slower before all its samples were taken.
    unstable: too few undisturbed samples. illegal: breaks a named rule. The others name the failure."""

    OK = "ok"
    PRUNED = "pruned"
    UNSTABLE = "unstable"
    ILLEGAL = "illegal"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_RESULT = "wrong_result"


class Phase(StrEnum):
    """screen: verified on one seed, then timed. final: timed, interleaved with the baseline.
    proof: verified on five seeds after the final."""

    SCREEN = "screen"
    FINAL = "final"
    PROOF = "proof"


@dataclass(frozen=True)
class Outcome:
    """`samples` are seconds per launch, in the order taken; `evidence` holds plain JSON values."""

    solution: Solution
    phase: Phase
    status: Status
    samples: tuple[float, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """Median seconds per launch, or None if nothing was timed."""
        return median(self.samples) if self.samples else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return {
            "solution": self.solution.to_dict(),
            "phase": self.phase.value,
            "status": self.status.value,
            "samples": list(self.samples),
            "evidence": dict(self.evidence),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Raises KeyError, TypeError or ValueError for a malformed row."""
        return cls(
            Solution.from_dict(values["solution"]),
            Phase(values["phase"]),
            Status(values["status"]),
            tuple(float(s) for s in values["samples"]),
            dict(values["evidence"]),
        )
