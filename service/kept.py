"""What an import keeps, counted, and the limits of what can be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from backends.environment import Environment
from backends.solution import Solution
from db.values import storable

T = TypeVar("T")

#: Rows of one transaction.
BATCH = 1000
#: Reasons of one kind that are told.
_REASONS = 20
#: PostgreSQL indexes no longer text.
LONGEST_KEY = 1000
INT4, INT8 = 2**31 - 1, 2**63 - 1


@dataclass
class Kept:
    """How many of a kind were stored, were there already, and were left out (why: `reasons`)."""

    stored: int = 0
    known: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)

    def skip(self, count: int, reason: str) -> None:
        """Counts what was left out."""
        self.skipped += count
        if len(self.reasons) < _REASONS and reason not in self.reasons:
            self.reasons.append(reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "reasons": list(self.reasons)}


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as one transaction takes."""
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]


def environment_fits(environment: Environment) -> bool:
    """Whether a database can hold it."""
    values = environment.to_dict()
    return storable(values) == values and environment.units <= INT4 and environment.memory_bytes <= INT8


def solution_fits(solution: Solution) -> bool:
    """Whether a database can hold it."""
    values = solution.to_dict()
    numbers = (solution.workspace_bytes, *(v for v in solution.parameters.values() if isinstance(v, int)))
    return (
        storable(values) == values
        and solution.version <= INT4
        and all(-INT8 <= number <= INT8 for number in numbers)
    )
