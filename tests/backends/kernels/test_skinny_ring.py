"""skinny-ring on the host: rings that wrap around, lines that start anywhere, columns of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear
from tests.backends.kernels.host import H200, HostDevice, HostKernel, build
from tests.backends.kernels.samples import legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["skinny-ring"]
#: m, n, k of F.linear: whole loads first, then lines that start at odd places, or end there.
SHAPES: dict[str, GemmProblem] = {
    "one column": from_linear(1, 40, 1048, "bf16", bias="bf16"),
    "three": from_linear(3, 130, 712, "bf16", beta=1.0),
    "eight": from_linear(8, 64, 256, "fp16"),
    "ten": from_linear(10, 72, 1544, "bf16", bias="bf16", activation="silu"),
    "twenty-four": from_linear(24, 33, 648, "fp16", dtype_d="fp32"),
    "sixty": from_linear(60, 24, 320, "bf16"),
    "few of k": from_linear(5, 24, 56, "bf16"),
    "odd lines": from_linear(17, 41, 1037, "bf16", beta=1.0),
    "odd lines of one column": from_linear(1, 23, 515, "fp16"),
    "padded lines": from_linear(6, 50, 645, "bf16", ldb=656),
    "addresses of two bytes": from_linear(12, 40, 328, "bf16", alignment=2),
    "batch": from_bmm(3, 9, 36, 205, "bf16", trans_b="T"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once."""
    problem = SHAPES[name]
    sample = [
        {**values, "stream": stream}
        for stream in ("a", "b")
        for values in legal_values(FAMILY, problem, H200, 40, len(name))
        if values["stream"] == stream and problem.k > 2 * int(values["tile_k"] or 0) * (name == "three")
    ][:4]
    assert sample
    found = [FAMILY.configuration(problem, values) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for built in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(
                HostKernel(built, other_way), Case(problem, 3, "normal", "exact"), runs=1
            )
            assert finding.wrong == "", (built.found.instantiation, built.found.splits, other_way)
