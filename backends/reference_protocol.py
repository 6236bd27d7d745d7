"""The protocol of a device's own verification kernels, and what they take and return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.operands import Layout, Operands
from backends.problem import GemmProblem


@dataclass(frozen=True)
class ErrorBound:
    """The constants of an element's tolerance against the float64 reference (derived in tuners/reference.py):

    tolerance = slope (rough |alpha s| ||a_i|| ||b_j|| + step sum |terms|) + rounding |expected| + least

    s is the product of the scales; `slope` is 1 without an activation. Of swiglu what is in parentheses is
    the error e of the gate and of up:

    tolerance = slope e_gate (|up| + e_up) + |silu(gate)| e_up + rounding |expected| + least (1 + |up|)"""

    rough: float
    step: float
    slope: float
    rounding: float
    least: float


@dataclass(frozen=True)
class Comparison:
    """`bad` of the `elements` of D exceed their tolerance. `worst` is the largest ratio of error to tolerance
    (inf for NaN). `first` is the first bad element's (batch, column, row); `value`, `expected` and
    `tolerance` are its own. `error_norm` and `reference_norm` are Frobenius norms."""

    elements: int
    bad: int
    worst: float
    first: tuple[int, int, int] | None
    value: float
    expected: float
    tolerance: float
    error_norm: float
    reference_norm: float


class DeviceReference(Protocol):
    """A device's own verification kernels, which use none of the libraries that they check. Addresses are
    device addresses; work is queued in order with the candidates' launches."""

    def fill(self, address: int, size: int, value: int) -> None:
        """Sets `size` bytes to `value`."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copies bytes within the device."""

    def draw(self, layout: Layout, address: int, seed: int, distribution: str) -> None:
        """Fills an operand's elements with random values that depend only on the seed; padding is unchanged.
        Distributions are those of tuners/inputs.py, "scale" (uniform in [0.5, 1.5)), and "poison", which sets
        the elements' bytes to the poison of their type (tuners/verify.py)."""

    def compute(
        self, problem: GemmProblem, operands: Operands, bound: ErrorBound, expected: int, tolerance: int
    ) -> None:
        """Computes every element of D in float64: writes float64 [batch, n, m] to `expected` and float32
        tolerances of the same shape to `tolerance`."""

    def compare(
        self,
        problem: GemmProblem,
        d: int,
        expected: int,
        tolerance: int,
        allowance: tuple[float, float] = (0.0, 0.0),
    ) -> Comparison:
        """Compares D at `d` with the reference; every tolerance grows by allowance[0] |expected| +
        allowance[1]. Raises LaunchError if earlier queued work failed."""

    def differing(self, pairs: Sequence[tuple[int, int, int]]) -> list[int]:
        """For each (address, address, size): the number of bytes that differ."""

    def other_than(self, ranges: Sequence[tuple[int, int]], value: int) -> list[int]:
        """For each (address, size): the number of bytes that are not `value`."""
