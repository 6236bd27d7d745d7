"""dequant-tma-wgmma on the host: every storage type, group and zero point; columns to 256; clusters; rows,
columns and k that are no whole tile; planted mistakes; what the compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_dequant_ring import ident
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-tma-wgmma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "teams": 1, "slots": 2, "stages": 4, "share": 1, "splits": 1, "blocks_per_unit": 1
}  # fmt: skip
#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(3, 40, 1024, dtype_a=kind, scale_dtype=kind)
    if FAMILY.rule(p, CHOSEN, H200) is None and FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Every kind, but stored zero points of a whole row, int8 in groups of a chunk, and MXFP4 times fp16."""
    left = [ident(p) for p in every_kind(3, 40, 1024) if not FAMILY.supports(p)]
    assert left == [f"bf16 uint4 {zero} outer" for zero in ("uint4", "float", "shift")]
    assert {ident(p) for p in every_kind(3, 40, 1024) if FAMILY.supports(p) and p not in KINDS} == {
        "bf16 int8 none block_1x128"
    }
    assert "whose range bf16 alone has, not fp16" in (
        FAMILY.unsupported(mxfp4(3, 40, 1024, dtype_a="fp16")) or ""
    )
    assert "scales of their type here, not of fp32" in (
        FAMILY.unsupported(weights(3, 40, 1024, scale_dtype="fp32")) or ""
    )


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings; copies and products as late as may be, and at
    once."""
    found = [FAMILY.config(p, CHOSEN, SM_90) for p in KINDS]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), KINDS, strict=True):
        for reversed_order in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, reversed_order), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk.
SHAPES: dict[str, GemmProblem] = {
    "one column": weights(1, 40, 1280, zero_b="uint4", bias="bf16"),
    "nine": weights(9, 130, 768, zero_b="eight", beta=1.0),
    "thirty-two": weights(32, 600, 2048, zero_b="uint4"),
    "forty, silu": weights(40, 264, 1024, "int4", scale_b="block_1x64", bias="bf16", activation="silu"),
    "sixty of fp16": weights(60, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "ninety": weights(90, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "a hundred and twenty-eight": weights(128, 200, 1280, zero_b="shift", scale_b="block_1x32"),
    "two hundred": weights(200, 72, 512, zero_b="eight"),
    "mxfp4, padded": mxfp4(50, 132, 800, ldb=832, lda=808, ldd=141),
    "a k of no whole chunk": weights(17, 48, 48, "int8", scale_b="tensor"),
    "padded rows": weights(24, 40, 512, zero_b="eight", ldb=544, lda=520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 3, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, other_way, finding.wrong)
