"""Quantised weights of groups on the host: every type and zero point, groups without rows, all rows in one,
sizes that are no whole tile; planted mistakes; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.grouping import ends_of, spans_of
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.quantisation import dequantised, groups_of
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["grouped-ring"]
SOME: dict[str, Any] = {"groups": 6, "routing": [0, 70, 0, 1, 12, 0]}
#: Rows of the call, n, k of every group's weights.
SHAPES: dict[str, GemmProblem] = {
    "mxfp4, one row": mxfp4(1, 40, 288, groups=3),
    "mxfp4, some without rows": mxfp4(83, 72, 160, dtype_a="fp16", **SOME),
    "mxfp4, padded": mxfp4(31, 52, 416, groups=4, ldb=448, lda=424, ldd=61, stride_b=448 * 52 + 64),
    "words, padded": weights(
        31, 56, 768, zero_b="uint4", groups=4, ldb=800, lda=776, stride_b=800 * 56 + 96, dtype_d="fp32"
    ),
    "subtracted, folded": weights(20, 40, 256, zero_b="float", scale_dtype="fp32", groups=5),
    "subtracted": weights(
        20, 40, 256, zero_b="float", groups=5, dtype_a="fp16", scale_dtype="fp16", scale_b="block_1x32"
    ),
    "signed": weights(5, 64, 320, "int4", scale_b="block_1x32", groups=4, routing=[0, 0, 0, 5]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once, with few blocks and with one for each
    tile."""
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


RING = {
    "columns": 16, "rows": 16, "tile_k": 256, "slots": 2, "warps_m": 2, "warps_k": 2, "blocks_per_unit": 2,
}  # fmt: skip
#: One product by each way of scaling: sums, folded sums, weights.
SKEWED = {
    "mxfp4": mxfp4(60, 72, 800, groups=6, routing=[0, 41, 0, 1, 18, 0]),
    "words": weights(60, 72, 768, zero_b="uint4", groups=6, routing=[0, 41, 0, 1, 18, 0]),
    "added": weights(60, 72, 768, zero_b="shift", groups=6, routing=[0, 41, 0, 1, 18, 0]),
}


@pytest.mark.parametrize("name", ["mxfp4", "added"])
def test_scales_reach_their_own_rows_alone(name: str, tmp_path: Path) -> None:
    """The least and the greatest scales, and of MXFP4 also NaN, in one group of rows; others in the next."""
    problem = replace(SKEWED[name], dtype_d="fp32", dtype_c="fp32")
    (one,) = build([FAMILY.config(problem, RING, SM_90)], tmp_path, 32)
    given = host_inputs(problem, 3, "integers")
    scales = given["scale_a"].astype(np.float32)
    scales[1, 3], scales[1, 4], scales[4] = 2.0**-100, 2.0**100, scales[4] * 4
    stored = scales.astype(given["scale_a"].dtype)
    if problem.mx:
        stored.view(np.uint8)[1, 70, 1] = 255
    if "zero_a" in given and problem.zero_a == "shift":
        given["zero_a"][:] = 0
    given["scale_a"] = stored
    d = computed(one, problem, **given)
    for group, start, end in spans_of(problem):
        zeros = given["zero_a"][group] if "zero_a" in given else None
        whole = dequantised(problem, given["a"][group], stored[group].reshape(-1, groups_of(problem)), zeros)
        with np.errstate(invalid="ignore", over="ignore"):
            want = given["b"][0, start:end].astype(np.float64) @ whole.T
        bound = 1e-5 if problem.zero_a != "shift" else 2e-2  # weights are rounded once
        sizes = np.abs(given["b"][0, start:end].astype(np.float64)) @ np.abs(whole.T)
        off = np.abs(d[start:end] - want)
        assert np.all((off <= bound * sizes + 1e-30) | (np.isnan(want) & np.isnan(d[start:end])))
        assert np.isnan(d[start:end]).sum() == (end - start if problem.mx and group == 1 else 0)


def test_any_counts_may_follow(tmp_path: Path) -> None:
    """Of one launch that is bound once: only the device knows the ends."""
    problem = SKEWED["words"]
    (one,) = build([FAMILY.config(problem, RING, SM_90)], tmp_path, 32)
    for routing in ("60,0,0,0,0,0", "0,1,0,58,1,0"):
        other = replace(problem, routing=routing)
        given = host_inputs(other, 3, "normal")
        assert given["offsets"].reshape(-1).tolist() == ends_of(other).tolist()
        d = computed(one, other, **given)
        for group, start, end in spans_of(other):
            scales = given["scale_a"][group].reshape(-1, groups_of(other))
            whole = dequantised(other, given["a"][group], scales, given["zero_a"][group])
            want = given["b"][0, start:end].astype(np.float64) @ whole.T
            assert np.abs(d[start:end].astype(np.float64) - want).max() < 0.01 * np.abs(want).max()


#: What is mistaken -> the product, the header, its text, and what stands there instead.
OF_GROUPS = "device/grouped_weights.h"
MISTAKES = {
    "another group's weights": (
        "mxfp4", OF_GROUPS, "group * all.gemm.stride_a", "0 * all.gemm.stride_a"
    ),
    "another group's scales": (
        "mxfp4", OF_GROUPS, "group * all.scale_group;\n        own.zeros", "0;\n        own.zeros"
    ),
    "another group's zero points": ("words", OF_GROUPS, "group * all.zero_group", "0 * all.zero_group"),
    "columns of the first group": (
        "words", OF_GROUPS, "static_cast<i64>(at.start) + at.column;", "static_cast<i64>(at.column);"
    ),
    "the first rows": ("mxfp4", OF_GROUPS, "at.row, member());", "0, member());"),
    "the first warp's rows": ("mxfp4", OF_GROUPS, "return warp_index() % WARPS_M;", "return 0;"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    kind, header, right, wrong = MISTAKES[name]
    folder = copied_headers(tmp_path)
    text = (folder / header).read_text()
    assert right in text
    (folder / header).write_text(text.replace(right, wrong))
    (one,) = build([FAMILY.config(SKEWED[kind], RING, SM_90)], tmp_path, 32, folder)
    assert wrong_of(one, SKEWED[kind]) != ""


def test_one_unit_serves_any_sizes_and_counts() -> None:
    others = (
        mxfp4(7, 40, 96, groups=17, ldb=128),
        mxfp4(512, 5760, 2880, groups=32, routing="skewed"),
    )
    units = {FAMILY.config(one, RING, SM_90).unit for one in (SKEWED["mxfp4"], *others)}
    assert len(units) == 1
    assert "GroupedWeightRing" in units.pop()


@pytest.mark.parametrize(("name", "arch"), [("words", "sm_80"), ("mxfp4", "sm_90"), ("added", "sm_100")])
def test_it_compiles_for_a_device(name: str, arch: str, tmp_path: Path) -> None:
    nvrtc = Nvrtc()
    if nvrtc.missing(arch) is not None:
        pytest.skip("NVRTC is not installed")
    unit = CompileUnit(FAMILY.config(SKEWED[name], RING, SM_90).unit, nvrtc.target(arch, False))
    assert nvrtc.compile(unit, BinaryCache(tmp_path)).stat().st_size > 0


def test_what_it_refuses() -> None:
    problem = SKEWED["mxfp4"]
    some: dict[str, Any] = {"groups": 6}
    assert FAMILY.rule(problem, RING, H200) is None
    assert "one matrix" in (FAMILY.unsupported(mxfp4(60, 72, 416)) or "")
    for name in ("grouped-tile", "grouped-wgmma", "dequant-ring", "dequant-wgmma", "dequant-gemv"):
        assert not FAMILIES[name].supports(problem), name
    wrong = weights(8, 64, 256, zero_b="shift", scale_dtype="fp32", **some)
    assert "scales of their type" in (FAMILY.unsupported(wrong) or "")
    for other, text in (
        (mxfp4(60, 72, 416, ldb=420, **some), "rows of weights must start at multiples of 16 bytes"),
        (mxfp4(60, 72, 416, stride_b=416 * 72 + 2, **some), "weights of groups must start"),
        (mxfp4(60, 71, 416, **some), "whole 4-byte words, not 923 bytes"),
        (mxfp4(60, 72, 416, lda=417, **some), "columns must be contiguous along k, start at multiples of 16"),
        (weights(8, 64, 384, **some), "3 scales must start at a multiple of 4 bytes"),
    ):
        assert text in (FAMILY.rule(other, RING, H200) or ""), text
    assert "tile_k is a multiple of 128" in (FAMILY.rule(SKEWED["words"], {**RING, "tile_k": 64}, H200) or "")
    assert "sm_75" in (FAMILY.rule(problem, RING, replace(H200, arch="sm_75")) or "")


#: gpt-oss-20b's products of a layer, and one in w4a16.
LAYERS = {
    "gate and up": mxfp4(256, 5760, 2880, groups=32),
    "down": mxfp4(4, 2880, 2880, groups=128),
    "w4a16": weights(64, 1536, 2048, groups=128, zero_b="uint4"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_there_are_candidates(name: str) -> None:
    listed = list(FAMILY.candidates(LAYERS[name], H200))
    assert len(listed) > 20
    assert all(FAMILY.rule(LAYERS[name], values, H200) is None for values in listed)
    assert {values["columns"] for values in listed} >= {8, 16, 32}
    assert from_linear(4, 2880, 2880, "bf16", groups=128).bytes_read > 3.7 * LAYERS["down"].bytes_read
