"""The bound of a problem on a device, from measured ceilings, and what share of it a time reached."""

from __future__ import annotations

from dataclasses import dataclass

from backends.problem import GemmProblem
from tuners.ceilings import Ceilings


@dataclass(frozen=True)
class Bound:
    """Least seconds by arithmetic and by memory traffic; the larger binds."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The bound itself."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def binds(self) -> str:
        """Which ceiling: compute or memory."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    def share(self, seconds: float) -> float:
        """Share of the bound that `seconds` reached (above 1 where operands stayed in a cache)."""
        return self.seconds / seconds


def bound(problem: GemmProblem, ceilings: Ceilings) -> Bound:
    """Raises KeyError where no product of the input type was measured.

    Reading is charged at the reading ceiling. A written byte costs what copying shows beyond reading: a
    copy moves as many bytes out as in, and its half of reading is known.
    """
    read, copy = ceilings.read_bytes_per_second, ceilings.copy_bytes_per_second
    per_written = max(2 / copy - 1 / read, 0.0)
    kind = "tf32" if problem.compute == "tf32" else problem.dtype_a
    return Bound(
        compute_seconds=problem.flops / ceilings.flops_per_second[kind],
        memory_seconds=problem.bytes_read / read + problem.bytes_written * per_written,
    )
