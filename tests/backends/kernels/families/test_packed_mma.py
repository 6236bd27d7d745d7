"""packed-mma on the host: every storage type, group and zero point, packed beforehand; rows, columns and k that are
no whole tile or record; the layout itself; planted mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.families.packed_mma import LAYOUT
from backends.kernels.weights import lines_rule
from backends.problem import GemmProblem
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["packed-mma"]
CHOSEN: dict[str, Parameter] = {"rows": 16, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1}


def ident(p: GemmProblem) -> str:
    """What tells problems of quantised weights apart."""
    return f"{p.dtype_b} {p.dtype_a} {p.zero_a} {p.scale_a}"


KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(3, 40, 640, dtype_a=kind, scale_dtype=kind, prepacked=True)
    if FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Every kind, but stored zero points of a whole row; nothing that is not packed beforehand."""
    left = [ident(p) for p in every_kind(3, 40, 640, prepacked=True) if not FAMILY.supports(p)]
    assert left == [f"bf16 uint4 {zero} outer" for zero in ("uint4", "float", "shift")]
    stored = weights(3, 40, 640)
    assert FAMILY.unsupported(stored) == "the problem's weights are not packed beforehand"


def test_every_kind_is_right(tmp_path: Path) -> None:
    found = [
        FAMILY.config(p, {**CHOSEN, "splits": 1 + number % 2, "rows": (16, 32)[number // 2 % 2]}, SM_90)
        for number, p in enumerate(KINDS)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path), KINDS, strict=True):
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends within a record.
SHAPES: dict[str, GemmProblem] = {
    "one column": weights(1, 40, 1280, zero_b="uint4", bias="bf16", prepacked=True),
    "two columns": weights(2, 130, 768, zero_b="eight", beta=1.0, prepacked=True),
    "five": weights(
        5, 64, 512, "int4", scale_b="block_1x64", bias="bf16", activation="silu", prepacked=True
    ),
    "eight": weights(8, 72, 1280, zero_b="shift", scale_b="block_1x32", prepacked=True),
    "ten": weights(10, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float", prepacked=True),
    "twenty-four": weights(
        24, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32", prepacked=True
    ),
    "thirty-two": weights(32, 104, 1024, zero_b="uint4", scale_dtype="fp16", prepacked=True),
    "sixty": weights(60, 24, 512, zero_b="eight", prepacked=True),
    "a k of no whole record": weights(3, 48, 48, "int8", scale_b="tensor", prepacked=True),
    "groups of half a record": weights(3, 48, 192, "int4", scale_b="block_1x64", prepacked=True),
    "one of k": weights(3, 48, 32, "int4", scale_b="outer", prepacked=True),
    "padded rows": weights(4, 40, 512, zero_b="eight", ldb=544, lda=520, prepacked=True),
    "four bits of a float": mxfp4(9, 33, 96, prepacked=True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once."""
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 4, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way)
