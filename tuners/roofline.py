"""The roofline bound of a problem on a device, from measured ceilings, and the share that a time reaches."""

from __future__ import annotations

from dataclasses import dataclass

from backends.problem import GemmProblem
from tuners.ceilings import Ceilings


@dataclass(frozen=True)
class Bound:
    """The least seconds for the arithmetic and for the memory traffic; the larger one binds."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def binds(self) -> str:
        """The binding ceiling: compute or memory."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    def share(self, seconds: float) -> float:
        """The share of the bound that `seconds` reaches (above 1 if operands stayed in a cache)."""
        return self.seconds / seconds


def bound(problem: GemmProblem, ceilings: Ceilings) -> Bound:
    """The bound of a problem. Raises KeyError if the input type's compute ceiling was not measured.

    Reads are charged at the read ceiling. The cost of a written byte is derived from copying, which writes as
    many bytes as it reads: the copy's time minus the time of its reads.
    """
    read, copy = ceilings.read_bytes_per_second, ceilings.copy_bytes_per_second
    per_written = max(2 / copy - 1 / read, 0.0)
    return Bound(
        compute_seconds=problem.flops / ceilings.flops_per_second[problem.multiplied_as],
        memory_seconds=problem.bytes_read / read + problem.bytes_written * per_written,
    )
