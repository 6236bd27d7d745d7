"""bytes-tile-mma on the host: types, scales, promoted sums; tiles, pipelines and slices of k; rows, columns
and k that are no whole tile; planted mistakes; rules; what the compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_tile_wgmma_bytes import BLOCKS, KINDS, ROWS, TENSORS, linear
from tests.backends.kernels.matrix_cores import product_of, wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["bytes-tile-mma"]
A100 = replace(H200, arch="sm_80", product="NVIDIA A100-SXM4-80GB", units=108)
L40S = replace(H200, arch="sm_89", product="NVIDIA L40S", units=142)
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 128, "warp_m": 32, "warp_n": 32, "stages": 3, "group": 1,
    "splits": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_it_is_for(name: str) -> None:
    assert FAMILY.unsupported(KINDS[name]) is None


def test_every_kind_is_right(tmp_path: Path) -> None:
    """In one piece and in slices, copies as late as may be and at once."""
    found = [
        FAMILY.config(problem, {**CHOSEN, "splits": splits}, SM_90)
        for problem in KINDS.values()
        for splits in (1, 2)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for place, one in enumerate(build(found, tmp_path, 32)):
        problem = one.found.product.problem
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, (place // 2 + len(distribution)) % 2 == 1), case, runs=1)
            assert finding.wrong == "", (problem.slug, one.found.splits, distribution, finding.wrong)


#: n of the call is rows of weights; k that ends inside a tile, and k of fewer tiles than stages.
SHAPES: dict[str, GemmProblem] = {
    "sixty-five": linear(65, 130, 784, **ROWS, bias="bf16"),
    "a hundred and thirty-one": linear(131, 136, 656, "fp8_e4m3", **ROWS, beta=1.0),
    "three hundred": linear(300, 40, 272, **TENSORS, activation="silu", dtype_d="fp16"),
    "whole tiles": linear(128, 256, 512, "fp8_e5m2", **ROWS, dtype_d="fp32"),
    "few columns": linear(5, 200, 400, **ROWS),
    "sixteen of k": linear(70, 72, 16, "fp8_e4m3", **ROWS),
    "padded rows": linear(70, 136, 512, **ROWS, ldb=544, lda=528, ldd=141),
    "integers": linear(100, 131, 1040, dtype_d="int32", beta=1.0),
    "a batch": from_bmm(3, 66, 72, 320, "fp8_e4m3", trans_b="T", **ROWS, dtype_d="bf16"),
    "one of a batch for all": from_bmm(2, 70, 40, 320, "int8", trans_b="T", stride_b=0, dtype_d="int32"),
    "blocks": linear(70, 300, 912, "fp8_e4m3", **BLOCKS, beta=1.0),
    "blocks of a short k": linear(131, 64, 96, "fp8_e4m3", dtype_b="fp8_e5m2", **BLOCKS, dtype_d="fp32"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, L40S, 4, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for place, one in enumerate(build(found, tmp_path, 32)):
        finding = verifier.check(HostKernel(one, place % 2 == 1), Case(problem, 3, "normal", "exact"), runs=1)
        assert finding.wrong == "", (one.found.instantiation, one.found.splits, place, finding.wrong)


@pytest.mark.parametrize("splits", [1, 2])
def test_scales_of_zero_and_nan_reach_their_row_and_column_alone(splits: int, tmp_path: Path) -> None:
    problems = [linear(40, 72, 512, dtype, **ROWS, dtype_d="fp32") for dtype in ("int8", "fp8_e4m3")]
    found = [FAMILY.config(problem, {**CHOSEN, "splits": splits}, SM_90) for problem in problems]
    for one, problem in zip(build(found, tmp_path, 32), problems, strict=True):
        kind = DTYPES[problem.dtype_a].storage
        weights, tokens = np.ones(72, np.float32), np.ones(40, np.float32)
        weights[7], weights[9], tokens[2], tokens[3] = np.nan, 0.0, np.nan, 0.0
        inputs = {
            "a": np.full((72, 512), 1, np.float32).astype(kind),
            "b": np.full((40, 512), 2, np.float32).astype(kind), "scale_a": weights, "scale_b": tokens,
        }  # fmt: skip
        d = product_of(one, problem, (1.0, 0.0), inputs)
        np.testing.assert_array_equal(d, np.outer(tokens, weights) * np.float32(1024))


@pytest.mark.parametrize("kind", ["bf16", "int32"])
def test_long_sums_of_int8_are_exact(kind: str, tmp_path: Path) -> None:
    """The largest that int32 holds, in two slices, with scales that bring them back."""
    k = 131_056  # (-128) (-128) k is 2^31 - 2^18
    problem = linear(18, 16, k, dtype_d=kind, **({} if kind == "int32" else ROWS))
    values: dict[str, Parameter] = {**CHOSEN, "splits": 2, "tile_n": 32}
    (one,) = build([FAMILY.config(problem, values, SM_90)], tmp_path, 32)
    a, b = np.full((16, k), -128, np.int8), np.full((18, k), -128, np.int8)
    b[1], a[3, :5] = 127, 1
    inputs: dict[str, Any] = {"a": a, "b": b}
    if kind != "int32":
        inputs |= {"scale_a": np.full(16, 2.0**-16, np.float32), "scale_b": np.full(18, 2.0**-4, np.float32)}
    d = product_of(one, problem, (1.0, 0.0), inputs)
    sums = b.astype(np.int64) @ a.astype(np.int64).T
    assert sums.max() == 2**31 - 2**18
    want = sums if kind == "int32" else sums.astype(np.float32) * np.float32(2.0**-20)
    np.testing.assert_array_equal(d, want.astype(d.dtype))


LONG, FLOATS = linear(40, 72, 528, **ROWS), linear(40, 72, 528, "fp8_e4m3", **ROWS)
BLOCKED = linear(40, 300, 528, "fp8_e4m3", **BLOCKS)
HEADER, LOOP, OPERAND = "families/bytes_tile_mma.h", "device/tile_product.h", "device/operand_tile.h"
#: What is mistaken -> the header, its text, what stands there instead, a problem that shows it, parameters.
MISTAKES: dict[str, tuple[str, str, str, GemmProblem, dict[str, Parameter]]] = {
    "a tile's sums that stay": (HEADER, "                one = 0;\n", "", FLOATS, {}),
    "a tile's sums that are forgotten": (LOOP, "            around.after();\n", "", FLOATS, {}),
    "scales of the first tile": (LOOP, "around.before(begin + tile);", "around.before(begin);", BLOCKED, {}),
    "scales of the first slice": (
        LOOP, "around.before(begin + tile);", "around.before(tile);", BLOCKED, {"splits": 2},
    ),
    "scales of the first rows": (HEADER, "part.i / kBlock * groups", "0", BLOCKED, {}),
    "a pair's scales exchanged": (
        HEADER, "factor[n * 4 + half * 2 + e % 2]", "factor[n * 4 + half * 2 + 1 - e % 2]", BLOCKED, {},
    ),
    "scales of the first member's columns": (
        HEADER, "part.j + lane_index() % 4 * 2;", "part.j;", BLOCKED, {},
    ),
    "scales twice": (
        HEADER, "if constexpr (SUMS == kScaled) here.scale_a", "if constexpr (false) here.scale_a",
        BLOCKED, {},
    ),
    "scales twice, in slices": (HEADER, "SUMS != kScaled>;", "true>;", BLOCKED, {"splits": 2}),
    "columns of the group before": (
        LOOP, "write(part.j + c * kColumns, patch);\n        }", "write(part.j, patch);\n        }", LONG, {},
    ),
    "rows of another four": (HEADER, "Product::kPitch + row);", "Product::kPitch + (row ^ 4));", LONG, {}),
    "slices in fp32": (
        "device/matrix_epilogue.h", "const auto* from = reinterpret_cast<const typename TYPES::Sum*>",
        "const auto* from = reinterpret_cast<const float*>", LONG, {"splits": 2},
    ),
    "a wait that is too short": (LOOP, "wait_copies<kAhead - 1>();", "wait_copies<kAhead>();", LONG, {}),
    "elements beyond the last": (
        OPERAND, "left <= 0 ? 0 : least(left, kUnit)", "left <= 0 ? kUnit : least(left, kUnit)",
        linear(40, 72, 400, **ROWS), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem, given = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    (one,) = build([FAMILY.config(problem, {**CHOSEN, **given}, SM_90)], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


@pytest.mark.parametrize("deep", [64, 128])
def test_rows_that_share_banks_show(deep: int, tmp_path: Path) -> None:
    """The host refuses a matrix whose rows are read from the same banks."""
    path = copied_headers(tmp_path / "headers") / OPERAND
    text = "return kChunks >= 8 ? row % 8 : row / 2 % 4;"
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, "return 0;"))
    (one,) = build(
        [FAMILY.config(LONG, {**CHOSEN, "tile_k": deep}, SM_90)], tmp_path, 32, tmp_path / "headers"
    )
    assert "share banks" in wrong_of(one, LONG)


def test_nothing_is_wrong_without_a_mistake(tmp_path: Path) -> None:
    problems = (LONG, FLOATS, BLOCKED)
    values = [{**CHOSEN, "splits": splits} for splits in (1, 2)]
    found = [FAMILY.config(problem, one, SM_90) for problem in problems for one in values]
    for one in build(found, tmp_path, 32):
        assert wrong_of(one, one.found.product.problem) == ""


def test_sums_are_promoted_unless_fast_accumulation_is_asked_for() -> None:
    for name, kind in (
        ("e4m3 rows", "kPromoted"), ("e4m3, fast", "kPlain"), ("int8 rows", "kPlain"),
        ("e4m3 blocks", "kScaled"),
    ):  # fmt: skip
        assert f"gemmtune::{kind}, 64," in FAMILY.config(KINDS[name], CHOSEN, SM_90).instantiation


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    found = FAMILY.config(linear(320, 4096, 1024, **ROWS), CHOSEN, SM_90)
    assert found.shared_bytes == 3 * (64 + 64) * 128
    assert found.step == 128
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_80"), cache)
    changed = replace(found, shared_bytes=found.shared_bytes + 16)
    with pytest.raises(CompileError, match="as derived"):
        Nvrtc().compile(CompileUnit(changed.unit, "sm_80"), cache)


INT8, FP8, BLOCK = (
    linear(4096, 4096, 4096, **ROWS), linear(4096, 4096, 4096, "fp8_e4m3", dtype_b="fp8_e5m2", **ROWS),
    linear(4096, 4096, 4096, "fp8_e4m3", **BLOCKS),
)  # fmt: skip
#: Of the fewest registers for their sums: what the rule permits must fit.
TIGHT: tuple[tuple[str, GemmProblem, dict[str, Parameter]], ...] = (
    ("sm_80", INT8, {"tile_m": 256, "tile_n": 128, "warp_m": 64, "warp_n": 64}),
    ("sm_80", INT8, {"tile_m": 192, "tile_n": 192, "warp_m": 48, "warp_n": 96, "tile_k": 64}),
    ("sm_90", INT8, {"tile_m": 128, "tile_n": 256, "warp_m": 64, "warp_n": 64}),
    ("sm_89", FP8, {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 32}),
    ("sm_89", BLOCK, {"tile_m": 64, "tile_n": 256, "warp_m": 32, "warp_n": 64, "stages": 2}),
    ("sm_89", BLOCK, {"stages": 2}),
    ("sm_90", FP8, {}), ("sm_90", BLOCK, {}),
)  # fmt: skip


@pytest.mark.parametrize(("arch", "problem", "given"), TIGHT)
def test_warps_have_registers_for_their_sums(
    arch: str, problem: GemmProblem, given: dict[str, Parameter], tmp_path: Path
) -> None:
    values = {**CHOSEN, **given}
    assert FAMILY.rule(problem, values, replace(H200, arch=arch)) is None
    unit = FAMILY.config(problem, values, GPU_ARCHS[arch]).unit
    path = Nvrtc().compile(CompileUnit(unit, arch), BinaryCache(tmp_path))
    assert resources.read(path)["gemm"].spill_bytes == 0


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(100, 64, 1024, "bf16"), "not bf16 x bf16 in fp32"),
        (linear(100, 64, 1024, "fp8_e4m3_fnuz"), "not fp8_e4m3_fnuz x fp8_e4m3_fnuz"),
        (linear(100, 64, 1024, **BLOCKS), "not block_128x128 with block_1x128"),
    ],
)
def test_what_it_is_not_for(problem: GemmProblem, words: str) -> None:
    assert words in (FAMILY.unsupported(problem) or "")


@pytest.mark.parametrize(
    ("problem", "change", "arch", "words"),
    [
        (linear(100, 64, 1024, ldb=1032), {}, "sm_80", "lines of A must start at multiples of 16 bytes"),
        (linear(100, 64, 1000), {}, "sm_80", "lines of A must start at multiples of 16 bytes"),
        (linear(100, 64, 1024, lda=1028), {}, "sm_80", "lines of B must start at multiples of 16 bytes"),
        (from_mm(100, 64, 1024, "int8"), {}, "sm_80", "both operands must be contiguous along k"),
        (linear(100, 64, 1024), {}, "sm_75", "needs sm_80"),
        (FP8, {}, "sm_80", "8-bit floats need sm_89 or later, not sm_80"),
        (BLOCK, {"tile_k": 64}, "sm_89", "tile_k is a block of 128, not 64"),
        (BLOCK, {"tile_m": 192, "warp_m": 48}, "sm_90", "warp_m 48 does not divide a block of 128 rows"),
        (INT8, {"tile_m": 32, "warp_m": 64}, "sm_80", "tile_m 32 is no multiple of warp_m 64"),
        (INT8, {"tile_m": 32, "tile_n": 32}, "sm_80", "threads are a power of two, 64 or more, not 32"),
        (INT8, {"tile_m": 256, "warp_m": 64}, "sm_89", "bytes of shared memory"),
        (FP8, {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 64}, "sm_89",
         "operands and sums take 320 registers; 128 threads have 223 each for them"),
    ],
)  # fmt: skip
def test_rules_say_what_is_wrong(
    problem: GemmProblem, change: dict[str, Parameter], arch: str, words: str
) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, replace(H200, arch=arch)) or "")


@pytest.mark.parametrize("environment", [A100, L40S, H200], ids=lambda one: one.arch)
@pytest.mark.parametrize("columns", [65, 128, 300, 4096])
def test_there_are_candidates(columns: int, environment: Environment) -> None:
    """Of several shapes of tiles and warps, wherever the instruction is; not where wgmma has the type."""
    for problem in (INT8, FP8, BLOCK):
        given = replace(problem, n=columns)
        listed = list(FAMILY.candidates(given, environment))
        if problem is not INT8 and environment is not L40S:
            assert not listed
            continue
        assert 30 < len(listed) <= 64
        assert len({tuple(values.items()) for values in listed}) == len(listed)
        assert all(FAMILY.rule(given, values, environment) is None for values in listed)
        assert len({(values["tile_m"], values["tile_n"]) for values in listed}) >= 6
        assert {values["group"] for values in listed} == {1, 8}


def test_large_tiles_come_first_for_many_columns_and_small_ones_or_slices_for_few() -> None:
    """So that every multiprocessor has a tile."""
    first = [next(iter(FAMILY.candidates(linear(n, 4096, 4096, **ROWS), A100))) for n in (80, 4096)]
    areas = [int(one["tile_m"] or 0) * int(one["tile_n"] or 0) for one in first]
    assert areas[0] / int(first[0]["splits"] or 1) <= 4096 * 128 // 64
    assert areas[1] >= 128 * 128
    assert first[1]["splits"] == 1
