"""Quantised weights of groups by wgmma on the host: every way of scaling, groups without rows, many columns,
planted mistakes, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.families.test_grouped_weights import LAYERS
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["grouped-dequant-wgmma"]
SOME: dict[str, Any] = {"groups": 6, "routing": [0, 70, 0, 1, 12, 0]}
#: Rows of the call, n, k of every group's weights.
SHAPES: dict[str, GemmProblem] = {
    "mxfp4, padded": mxfp4(150, 132, 160, groups=3, ldb=192, lda=168, ldd=141, dtype_a="fp16"),
    "words": weights(83, 136, 512, zero_b="uint4", **SOME),
    "added": weights(33, 96, 256, zero_b="shift", scale_b="block_1x64", groups=2, dtype_d="fp32"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Copies and products as late as may be and at once, with few blocks and with one for each tile."""
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 2, len(name))
    assert len(sample) == 2
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way, units in ((False, 1), (True, 100)):
            kernel = HostKernel(one, other_way, units)
            finding = verifier.check(kernel, Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, units, finding.wrong)


WGMMA = {
    "columns": 16, "rows": 16, "tile_k": 256, "slots": 2, "warps_m": 4, "warps_k": 2, "blocks_per_unit": 1,
}  # fmt: skip
SKEWED = {
    "mxfp4": mxfp4(60, 72, 800, groups=6, routing=[0, 41, 0, 1, 18, 0]),
    "words": weights(60, 72, 768, zero_b="uint4", groups=6, routing=[0, 41, 0, 1, 18, 0]),
}
#: What is mistaken -> the product, the header, its text, and what stands there instead.
MISTAKES = {
    "another group's weights": (
        "mxfp4", "device/grouped_weights.h", "group * all.gemm.stride_a", "0 * all.gemm.stride_a"
    ),
    "the next group's scale": (
        "mxfp4", "device/dequant_together.h", "factor[on][i / 2] * part", "factor[1 - on][i / 2] * part"
    ),
    "the upper rows' scale": (
        "words", "device/dequant_together.h", "factor[tile][i / 2] *", "factor[tile][0] *"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    kind, header, right, wrong = MISTAKES[name]
    folder = copied_headers(tmp_path)
    text = (folder / header).read_text()
    assert right in text
    (folder / header).write_text(text.replace(right, wrong))
    (one,) = build([FAMILY.config(SKEWED[kind], WGMMA, SM_90)], tmp_path, 32, folder)
    assert wrong_of(one, SKEWED[kind]) != ""


def test_a_scale_that_is_nan_reaches_its_own_row_alone(tmp_path: Path) -> None:
    """Not the row before, whose last word of scales has the byte, too."""
    problem = SKEWED["mxfp4"]
    (one,) = build([FAMILY.config(problem, WGMMA, SM_90)], tmp_path, 32)
    given = host_inputs(problem, 3, "normal")
    given["scale_a"].view(np.uint8)[1, 70, 1] = 255
    found = np.isnan(computed(one, problem, **given).astype(np.float32))
    assert found[:41, 70].all()
    assert found.sum() == 41


def test_it_compiles_for_hopper(tmp_path: Path) -> None:
    nvrtc = Nvrtc()
    if nvrtc.missing("sm_90") is not None:
        pytest.skip("NVRTC is not installed")
    unit = CompileUnit(FAMILY.config(SKEWED["mxfp4"], WGMMA, SM_90).unit, nvrtc.target("sm_90", True))
    assert nvrtc.compile(unit, BinaryCache(tmp_path)).stat().st_size > 0


def test_what_it_refuses() -> None:
    problem = SKEWED["mxfp4"]
    assert FAMILY.rule(problem, WGMMA, H200) is None
    assert "one matrix" in (FAMILY.unsupported(mxfp4(60, 72, 416)) or "")
    for arch in ("sm_80", "sm_100"):
        assert f"not {arch}" in (FAMILY.rule(problem, WGMMA, replace(H200, arch=arch)) or "")
    odd = mxfp4(60, 71, 800, groups=6)
    assert "whole 4-byte words" in (FAMILY.rule(odd, WGMMA, H200) or "")


@pytest.mark.parametrize("name", ["gate and up", "w4a16"])
def test_there_are_candidates(name: str) -> None:
    listed = list(FAMILY.candidates(replace(LAYERS[name], n=4096), H200))
    assert len(listed) > 20
    assert all(FAMILY.rule(LAYERS[name], values, H200) is None for values in listed)
    assert {values["columns"] for values in listed} >= {32, 64, 96}
