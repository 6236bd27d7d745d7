"""Counts of what an import stores, and limits on what can be stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from backends.environment import Environment
from backends.solution import Solution
from db.values import storable

T = TypeVar("T")

#: Rows per transaction.
BATCH = 1000
#: Most reasons that are reported.
_REASONS = 20
#: Longest key in characters: PostgreSQL cannot index much longer text.
LONGEST_KEY = 1000
INT4, INT8 = 2**31 - 1, 2**63 - 1


@dataclass
class Kept:
    """How many rows of one kind were stored, were known already, and were skipped (for which `reasons`)."""

    stored: int = 0
    known: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)

    def skip(self, count: int, reason: str) -> None:
        """Counts skipped rows."""
        self.skipped += count
        if len(self.reasons) < _REASONS and reason not in self.reasons:
            self.reasons.append(reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "reasons": list(self.reasons)}


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in pieces of at most BATCH, one transaction each."""
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]


def environment_fits(environment: Environment) -> bool:
    """Whether every database can store the environment."""
    values = environment.to_dict()
    return storable(values) == values and environment.units <= INT4 and environment.memory_bytes <= INT8


def solution_fits(solution: Solution) -> bool:
    """Whether every database can store the solution."""
    values = solution.to_dict()
    numbers = (solution.workspace_bytes, *(v for v in solution.parameters.values() if isinstance(v, int)))
    return (
        storable(values) == values
        and solution.version <= INT4
        and all(-INT8 <= number <= INT8 for number in numbers)
    )
