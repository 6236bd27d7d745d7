"""The argument of a kernel for quantised weights, as a package describes it."""

from __future__ import annotations

import ctypes

from backends.kernels.families import FAMILIES
from backends.kernels.oriented_gemm import GemmArgs
from backends.packages.launches import Fill, kernel_argument
from backends.packages.package import operands_of
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.samples import SM_90
from tests.backends.weight_samples import weights


def test_scales_and_zero_points_are_operands_of_the_caller() -> None:
    for zero, wanted in (("uint4", Fill("zero_a")), ("eight", 0)):
        problem = weights(3, 40, 1024, zero_b=zero)
        family = FAMILIES["dequant-ring"]
        solution = next(iter(family.solutions(problem, H200)))
        struct = kernel_argument(family.config(problem, solution.parameters, SM_90))
        fields = {one.name: one for one in struct.fields}
        assert fields["scales"].value == Fill("scale_a")
        assert fields["zeros"].value == wanted
        assert fields["scale_row"].value == 8, "scales of a row"
        assert fields["scales"].offset == ctypes.sizeof(GemmArgs)
        operands = operands_of(problem)
        assert {name: one["row_major"] for name, one in operands.items()} == {
            "a": "b", "b": "a", "d": "d", "scale_a": "scale_b",
            **({"zero_a": "zero_b"} if zero == "uint4" else {}),
        }  # fmt: skip
        assert (operands["a"]["dtype"], operands["a"]["rows"], operands["a"]["bytes"]) == (
            "uint4",
            512,
            40 * 512,
        )
