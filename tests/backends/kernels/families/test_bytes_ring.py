"""bytes-ring on the host: every type and scale; rings that wrap around; rows, columns and k that are no whole
tile;
what zero and NaN scales and long sums of int8 become; planted mistakes; banks of shared memory; rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.dtypes import DTYPES
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import (
    H200,
    HostDevice,
    HostKernel,
    build,
    built,
    compiled,
    copied_headers,
    source,
)
from tests.backends.kernels.families.test_skinny_ring import WAYS
from tests.backends.kernels.matrix_cores import product_of, wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["bytes-ring"]
CHOSEN: dict[str, Parameter] = {
    "rows": 16, "tile_k": 256, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1
}  # fmt: skip
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}
TENSORS: dict[str, Any] = {"scale_a": "tensor", "scale_b": "tensor"}
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}


def linear(m: int, n: int, k: int, dtype: str = "int8", **more: Any) -> GemmProblem:
    """F.linear of m tokens, in bf16 unless `dtype_d` says otherwise."""
    return from_linear(m, n, k, dtype, **{"dtype_d": "bf16", **more})


#: Every pair of types, scale, output and part of the epilogue.
KINDS: dict[str, GemmProblem] = {
    "int8 rows": linear(3, 40, 1024, **ROWS),
    "int8 tensors": linear(3, 40, 1024, **TENSORS, dtype_d="fp16", bias="fp16"),
    "int8 row by tensor": linear(3, 40, 1024, scale_a="outer", scale_b="tensor", dtype_d="fp32"),
    "int8 of one side": linear(3, 40, 1024, scale_b="outer", activation="silu"),
    "int8 unscaled": linear(3, 40, 1024, dtype_d="int32"),
    "int8 unscaled, with C": linear(3, 40, 1024, dtype_d="int32", beta=1.0, activation="relu"),
    "int8 in and out": linear(3, 40, 1024, **ROWS, dtype_d="int8"),
    "e4m3 rows": linear(3, 40, 1024, "fp8_e4m3", **ROWS),
    "e4m3 tensors": linear(3, 40, 1024, "fp8_e4m3", **TENSORS, beta=1.0, activation="gelu"),
    "e4m3 unscaled": linear(3, 40, 1024, "fp8_e4m3", dtype_d="fp32", alpha=2.0),
    "e5m2 rows": linear(3, 40, 1024, "fp8_e5m2", **ROWS, bias="bf16"),
    "e4m3 by e5m2": linear(3, 40, 1024, "fp8_e4m3", dtype_b="fp8_e5m2", **ROWS),
    "e5m2 by e4m3": linear(3, 40, 1024, "fp8_e5m2", dtype_b="fp8_e4m3", **TENSORS),
    "e4m3, fast": linear(3, 40, 1024, "fp8_e4m3", **ROWS, fast_accumulation=True),
    "e4m3 out": linear(3, 40, 1024, "fp8_e4m3", **TENSORS, scale_d="tensor", dtype_d="fp8_e4m3"),
    "e4m3 blocks": linear(3, 140, 1024, "fp8_e4m3", **BLOCKS, bias="bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_it_is_for(name: str) -> None:
    assert FAMILY.unsupported(KINDS[name]) is None


def test_every_kind_is_right(tmp_path: Path) -> None:
    """Over several rounds of the rings, in one piece and in slices."""
    found = [
        FAMILY.config(p, {**CHOSEN, "splits": splits}, SM_90) for p in KINDS.values() for splits in (1, 2)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        problem = one.found.product.problem
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (problem.slug, one.found.splits, distribution, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk and inside a step.
SHAPES: dict[str, GemmProblem] = {
    "one column": linear(1, 40, 1280, **ROWS, bias="bf16"),
    "two columns": linear(2, 130, 784, "fp8_e4m3", **ROWS, beta=1.0),
    "five": linear(5, 64, 512, "fp8_e4m3", **TENSORS, activation="silu"),
    "eight": linear(8, 72, 1280, **TENSORS),
    "ten": linear(10, 72, 1552, "fp8_e5m2", **ROWS, dtype_d="fp16"),
    "twenty-four": linear(24, 33, 656, **ROWS, dtype_d="fp32"),
    "thirty-two": linear(32, 104, 1024, "fp8_e4m3", **ROWS),
    "thirty-three": linear(33, 100, 528, **ROWS),
    "sixty": linear(60, 24, 512, "fp8_e4m3", **ROWS),
    "sixty-four": linear(64, 131, 272, dtype_d="int32"),
    "a k of no whole chunk": linear(3, 48, 48, **TENSORS),
    "sixteen of k": linear(3, 48, 16, "fp8_e4m3", **ROWS),
    "padded rows": linear(4, 40, 512, **ROWS, ldb=544, lda=528, ldd=44),
    "a batch": from_bmm(3, 5, 40, 320, "fp8_e4m3", trans_b="T", **ROWS, dtype_d="bf16"),
    "one of a batch for all": from_bmm(2, 9, 40, 320, "int8", trans_b="T", stride_b=0, dtype_d="int32"),
    "blocks, one column": linear(1, 300, 1024, "fp8_e4m3", **BLOCKS),
    "blocks, forty": linear(40, 130, 912, "fp8_e4m3", **BLOCKS, beta=1.0),
    "blocks of a short k": linear(12, 64, 96, "fp8_e4m3", **BLOCKS, dtype_d="fp32"),
}  # fmt: skip


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
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way, finding.wrong)


def _bits(shape: tuple[int, ...], value: float, dtype: str) -> Any:
    return np.full(shape, value, np.float32).astype(DTYPES[dtype].storage)


@pytest.mark.parametrize("splits", [1, 2])
def test_scales_of_zero_and_nan_reach_their_row_and_column_alone(splits: int, tmp_path: Path) -> None:
    problems = [linear(5, 40, 512, dtype, **ROWS, dtype_d="fp32") for dtype in ("int8", "fp8_e4m3")]
    found = [FAMILY.config(problem, {**CHOSEN, "splits": splits}, SM_90) for problem in problems]
    for one, problem in zip(build(found, tmp_path, 32), problems, strict=True):
        dtype = problem.dtype_a
        weights, tokens = np.ones(40, np.float32), np.ones(5, np.float32)
        weights[7], weights[9], tokens[2], tokens[3] = np.nan, 0.0, np.nan, 0.0
        inputs = {
            "a": _bits((40, 512), 1, dtype), "b": _bits((5, 512), 2, dtype),
            "scale_a": weights, "scale_b": tokens,
        }  # fmt: skip
        d = product_of(one, problem, (1.0, 0.0), inputs)
        np.testing.assert_array_equal(d, np.outer(tokens, weights) * np.float32(1024))


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "int32"])
def test_long_sums_of_int8_are_not_rounded_before_they_are_scaled(kind: str, tmp_path: Path) -> None:
    """The largest sums that int32 holds, far beyond fp16's range, with scales that bring them back."""
    k = 131_056  # (-128) (-128) k is 2^31 - 2^18
    scales = {} if kind == "int32" else ROWS
    problem = linear(2, 16, k, dtype_d=kind, **scales)
    values: dict[str, Parameter] = {**CHOSEN, "warps_m": 1, "tile_k": 512, "splits": 2}
    (one,) = build([FAMILY.config(problem, values, SM_90)], tmp_path, 32)
    a, b = np.full((16, k), -128, np.int8), np.full((2, k), -128, np.int8)
    b[1] = 127
    a[3, :5] = 1
    inputs: dict[str, Any] = {"a": a, "b": b}
    if scales:
        inputs |= {"scale_a": np.full(16, 2.0**-16, np.float32), "scale_b": np.full(2, 2.0**-4, np.float32)}
    d = product_of(one, problem, (1.0, 0.0), inputs)
    sums = b.astype(np.int64) @ a.astype(np.int64).T
    assert sums.max() == 2**31 - 2**18
    want = sums if kind == "int32" else (sums.astype(np.float32) * np.float32(2.0**-20))
    np.testing.assert_array_equal(d, want.astype(DTYPES[kind].storage))


#: What is mistaken -> the header, its text, what stands there instead, and a problem that shows it.
MISTAKES = {
    "columns of one member alone": (
        "families/bytes_ring.h", "member * 32 + lane_index()),\n              k(args.k)",
        "lane_index()),\n              k(args.k)", linear(11, 40, 512, **ROWS),
    ),
    "weights of the team's first member": (
        "families/bytes_ring.h", "line_place<BK>(row + group, member)", "line_place<BK>(group, member)",
        linear(2, 40, 512, **ROWS),
    ),
    "elements beyond the last": (
        "families/bytes_ring.h", "inputs.template run<false>(slot + kX, at, left);",
        "inputs.template run<false>(slot + kX, at, BK);", linear(2, 40, 400, **ROWS),
    ),
    "a chunk that is none": (
        "families/bytes_ring.h", "WARPS_K == 1 || next - SLOTS * WARPS_K < end", "true",
        linear(2, 40, 1280, **ROWS),
    ),
    "a wait that is too short": (
        "families/bytes_ring.h", "wait_copies<SLOTS - 2>();", "wait_copies<SLOTS - 1>();",
        linear(2, 40, 512, **ROWS),
    ),
    "a place that is taken before it is free": (
        "families/bytes_ring.h", "team_barrier(team);  //", "warp_barrier();  //",
        linear(2, 40, 2048, **ROWS),
    ),
    "one scale for all rows": (
        "families/bytes_ring.h", "args.scale_a + (first + i) * args.scale_row",
        "args.scale_a + first * args.scale_row",
        linear(2, 40, 512, **ROWS),
    ),
    "scales of columns where rows' are": (
        "families/bytes_ring.h", "here.scale_b = scales + kAll;", "here.scale_b = scales;",
        linear(2, 40, 512, **ROWS),
    ),
    "a block's first scale for all of k": (
        "device/byte_tiles.h", "const int of = from / kRun, pair", "const int of = 0, pair",
        linear(2, 140, 512, "fp8_e4m3", **BLOCKS),
    ),
    "the first block's scale for all rows": (
        "families/bytes_ring.h", "(offset + tile * 16) / kDeep) * groups + block", "0) * groups + block",
        linear(2, 300, 512, "fp8_e4m3", **BLOCKS),
    ),
    "scales twice": (
        "device/matrix_epilogue.h", "if (!SCALED) here.scale_a", "if (false) here.scale_a",
        linear(2, 140, 512, "fp8_e4m3", **BLOCKS),
    ),
    "slices in fp32": (
        "device/matrix_epilogue.h", "const auto* from = reinterpret_cast<const typename TYPES::Sum*>",
        "const auto* from = reinterpret_cast<const float*>", linear(2, 40, 512, **ROWS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    values = dict(CHOSEN)
    if name == "the first block's scale for all rows":
        values |= {"rows": 48, "warps_m": 3}  # a warp has rows of two blocks
    if name in ("scales twice", "slices in fp32"):
        values["splits"] = 2
    config = FAMILY.config(problem, values, SM_90)
    (one,) = build([config], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Lanes that read at once read from different banks."""
    problems = [
        linear(columns, 40, 1024, kind, **ROWS)
        for columns in (1, 2, 4, 8, 16)
        for kind in ("int8", "fp8_e4m3")
    ]
    found = [
        FAMILY.config(problem, {**CHOSEN, "tile_k": deep}, SM_90)
        for problem in problems
        for deep in (128, 256, 512)
    ]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in built(library, found):
        problem = one.found.product.problem
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == 1, (problem.slug, one.found.instantiation)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (linear(8, 64, 1024, **ROWS), 2 * 2 * (32 + 8) * 256 + (32 + 8) * 4),
        (linear(8, 140, 1024, "fp8_e4m3", **BLOCKS), 2 * 2 * ((32 + 8) * 256 + (2 + 8) * 2 * 4)),
    ],
    ids=("rows", "blocks"),
)
def test_the_compiler_knows_the_shared_memory_that_python_derives(
    problem: GemmProblem, expected: int, tmp_path: Path
) -> None:
    """A ring a team: weights, activations and scales of blocks; and scales of rows and columns."""
    found = FAMILY.config(problem, CHOSEN, SM_90)
    assert found.shared_bytes == expected
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    for wrong in (-16, 16):
        changed = replace(found, shared_bytes=found.shared_bytes + wrong)
        with pytest.raises(CompileError, match="as derived"):
            Nvrtc().compile(CompileUnit(changed.unit, "sm_90"), cache)


@pytest.mark.parametrize(
    ("arch", "kind"), [("sm_80", "int8"), ("sm_89", "fp8_e4m3"), ("sm_90", "fp8_e5m2"), ("sm_90", "int8")]
)
def test_it_compiles_for(arch: str, kind: str, tmp_path: Path) -> None:
    found = FAMILY.config(linear(33, 4096, 4096, kind, **ROWS), CHOSEN, SM_90)
    assert Nvrtc().compile(CompileUnit(found.unit, arch), BinaryCache(tmp_path)).stat().st_size > 0


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(1, 64, 1024, "bf16"), "not bf16 x bf16 in fp32"),
        (from_linear(1, 64, 1024, "bf16", dtype_b="int8", scale_b="outer"), "not int8 x bf16 in fp32"),
        (linear(1, 64, 1024, "fp8_e4m3_fnuz"), "not fp8_e4m3_fnuz x fp8_e4m3_fnuz"),
        (linear(1, 64, 1024, "fp8_e4m3", **ROWS, scale_dtype="fp8_e8m0"), "scales of fp32, not fp8_e8m0"),
        (linear(1, 64, 1024, "fp8_e4m3", scale_a="block_128x128", scale_b="block_128x128"),
         "not block_128x128 with block_128x128"),
        (linear(1, 64, 1024, **BLOCKS), "not block_128x128 with block_1x128"),
    ],
)  # fmt: skip
def test_what_it_is_not_for(problem: GemmProblem, words: str) -> None:
    assert words in (FAMILY.unsupported(problem) or "")


@pytest.mark.parametrize(
    ("problem", "change", "arch", "words"),
    [
        (linear(65, 64, 1024), {}, "sm_90", "1 to 64 columns beside the streamed operand, not 65"),
        (linear(1, 64, 1024, ldb=1032), {}, "sm_90", "lines of A must start at multiples of 16 bytes"),
        (linear(1, 64, 1000), {}, "sm_90", "lines of A must start at multiples of 16 bytes"),
        (linear(1, 64, 1024, alignment=8), {}, "sm_90", "lines of A must start at multiples of 16 bytes"),
        (linear(3, 64, 1024, lda=1028), {}, "sm_90", "lines of B must start at multiples of 16 bytes"),
        (from_mm(2, 64, 1024, "int8"), {}, "sm_90", "both operands must be contiguous along k"),
        (linear(8, 140, 1024, "fp8_e4m3", **BLOCKS), {"tile_k": 64}, "sm_90", "whole blocks of 128, not 64"),
        (linear(1, 64, 1024), {}, "sm_75", "needs sm_80"),
        (linear(1, 64, 1024, "fp8_e4m3"), {}, "sm_80", "8-bit floats need sm_89 or later, not sm_80"),
        (linear(1, 64, 1024), {"warps_k": 16}, "sm_90", "barriers for 15 teams of several warps, not 16"),
        (linear(1, 64, 1024), {"rows": 64, "tile_k": 512, "warps_k": 8}, "sm_90", "bytes of shared memory"),
    ],
)  # fmt: skip
def test_rules_say_what_is_wrong(
    problem: GemmProblem, change: dict[str, Parameter], arch: str, words: str
) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, replace(H200, arch=arch)) or "")


@pytest.mark.parametrize("tokens", [1, 8, 32, 33, 64])
def test_what_is_listed_is_legal_and_compiles_without_spills(tokens: int, tmp_path: Path) -> None:
    """The likeliest of every kind; and as many as a search takes turns on."""
    for kind, scales in (("int8", ROWS), ("fp8_e4m3", ROWS), ("fp8_e4m3", BLOCKS)):
        problem = linear(tokens, 4096, 4096, kind, **scales)
        listed = list(FAMILY.solutions(problem, H200))
        assert len(listed) > 40
        for one in listed:
            assert FAMILY.illegal(problem, one, H200) is None
