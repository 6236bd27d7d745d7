"""tile-wgmma on 8-bit operands: types, scales, promoted sums, mistakes that must show, rules, code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.solution import Parameter, Solution
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, build, copied_headers
from tests.backends.kernels.families.test_tile_wgmma import CHOSEN, VARIED, findings, refusal, wrong_of
from tests.backends.kernels.matrix_cores import product_of
from tests.backends.kernels.samples import SM_90

FAMILY = FAMILIES["tile-wgmma"]
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}
TENSORS: dict[str, Any] = {"scale_a": "tensor", "scale_b": "tensor"}
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
#: With columns that an instruction of int8 has.
WIDE: dict[str, Parameter] = {**CHOSEN, "tile_n": 32}
#: A tile of more columns than a thread reads scales of early, and than the producer warp has lanes.
WIDEST: dict[str, Parameter] = {**CHOSEN, "tile_m": 128, "tile_n": 72, "share": 2}


def linear(m: int, n: int, k: int, dtype: str = "int8", **more: Any) -> GemmProblem:
    """F.linear of m tokens, in bf16 unless `dtype_d` says otherwise."""
    return from_linear(m, n, k, dtype, **{"dtype_d": "bf16", **more})


KINDS: dict[str, GemmProblem] = {
    "int8 rows": linear(70, 133, 400, **ROWS, bias="bf16"),
    "int8 tensors": linear(70, 133, 400, **TENSORS, dtype_d="fp16", beta=1.0),
    "int8 unscaled": linear(70, 132, 400, dtype_d="int32"),
    "int8 unscaled, with C": linear(70, 133, 400, dtype_d="int32", beta=2.0, activation="relu"),
    "int8 in and out": linear(70, 132, 400, **ROWS, dtype_d="int8"),
    "e4m3 rows": linear(70, 133, 400, "fp8_e4m3", **ROWS),
    "e4m3 tensors": linear(70, 132, 400, "fp8_e4m3", **TENSORS, activation="gelu", bias="bf16"),
    "e4m3, fast": linear(70, 132, 400, "fp8_e4m3", **ROWS, fast_accumulation=True),
    "e5m2": linear(70, 132, 400, "fp8_e5m2", **ROWS, dtype_d="fp32"),
    "e4m3 by e5m2": linear(70, 132, 400, "fp8_e4m3", dtype_b="fp8_e5m2"),
    "e5m2 by e4m3": linear(70, 132, 400, "fp8_e5m2", dtype_b="fp8_e4m3", **ROWS),
    "e4m3 blocks": linear(70, 260, 400, "fp8_e4m3", **BLOCKS, bias="bf16"),
    "a batch": from_bmm(3, 30, 70, 272, "int8", trans_b="T", dtype_d="int32"),
    "e4m3, a batch": from_bmm(2, 30, 70, 272, "fp8_e4m3", trans_b="T", dtype_d="bf16", **ROWS),
    "few tokens": linear(3, 200, 144, "fp8_e4m3", **ROWS),
    "a k of less than a tile": linear(40, 72, 16, "fp8_e4m3", **BLOCKS),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_in_clusters_and_slices(name: str, tmp_path: Path) -> None:
    problem = KINDS[name]
    found = [
        (problem, values if problem.dtype_a != "int8" else _of_int8(values))
        for values in VARIED[list(KINDS).index(name) % 2 :: 2]
    ]
    assert findings(found, tmp_path) == []


def test_blocks_of_wide_tiles(tmp_path: Path) -> None:
    found = [
        (linear(m, 260, k, "fp8_e4m3", **BLOCKS), {**WIDEST, **more})
        for m, k in ((70, 1408), (150, 272))
        for more in ({}, {"share": 1, "share_b": 2, "tile_n": 80, "stages": 3}, {"splits": 3, "tile_n": 96})
    ]
    assert findings(found, tmp_path) == []


def _of_int8(values: dict[str, Parameter]) -> dict[str, Parameter]:
    return {**values, "tile_n": 48 if int(values["tile_n"] or 0) == 40 else values["tile_n"]}


def test_a_nan_in_a_scale_reaches_its_row_and_column_alone(tmp_path: Path) -> None:
    for dtype in ("int8", "fp8_e4m3"):
        problem = linear(33, 70, 256, dtype, **ROWS, dtype_d="fp32")
        (tmp_path / dtype).mkdir()
        (one,) = build([FAMILY.config(problem, {**WIDE, "splits": 2}, SM_90)], tmp_path / dtype, 32)
        weights, tokens = np.ones(70, np.float32), np.ones(33, np.float32)
        weights[7], weights[9], tokens[2], tokens[3] = np.nan, 0.0, np.nan, 0.0
        kind = np.int8 if dtype == "int8" else np.dtype("float8_e4m3fn")
        inputs = {
            "a": np.full((70, 256), 1, np.float32).astype(kind),
            "b": np.full((33, 256), 2, np.float32).astype(kind), "scale_a": weights, "scale_b": tokens,
        }  # fmt: skip
        d = product_of(one, problem, (1.0, 0.0), inputs)
        np.testing.assert_array_equal(d, np.outer(tokens, weights) * np.float32(512))


def test_long_sums_of_int8_are_exact(tmp_path: Path) -> None:
    """The largest that int32 holds, in slices that are added through distributed shared memory."""
    k = 131_056  # (-128) (-128) k is 2^31 - 2^18
    problem = linear(9, 16, k, dtype_d="int32")
    (one,) = build([FAMILY.config(problem, {**CHOSEN, "tile_n": 16, "splits": 2}, SM_90)], tmp_path, 32)
    a, b = np.full((16, k), -128, np.int8), np.full((9, k), -128, np.int8)
    b[1], a[3, :5] = 127, 1
    d = product_of(one, problem, (1.0, 0.0), {"a": a, "b": b})
    np.testing.assert_array_equal(d, b.astype(np.int64) @ a.astype(np.int64).T)


BLOCKED = linear(40, 200, 528, "fp8_e4m3", **BLOCKS)
#: What is mistaken -> the header, its text, what stands there instead, and a problem that shows it.
MISTAKES = {
    "a tile's sums that stay": (
        "families/tile_wgmma.h", "multiply_step(part.sum, a, b, step > 0);",
        "multiply_step(part.sum, a, b, true);",
        linear(40, 70, 528, "fp8_e4m3", **ROWS),
    ),
    "sums before they are there": (
        "families/tile_wgmma.h", "wait_products<0>(), settle(part.sum);", "settle(part.sum);",
        linear(40, 70, 528, "fp8_e4m3", **ROWS),
    ),
    "scales of the first tile": (
        "families/tile_wgmma.h", "ring.stage), begin + tile);", "ring.stage), begin);", BLOCKED,
    ),
    "scales of the first rows": (
        "families/tile_wgmma.h", "args.scale_a + row / 128 * groups", "args.scale_a", BLOCKED,
    ),
    "a pair's scales exchanged": (
        "device/block_scales.h", "factor[at / 4 * 2 + at % 2]", "factor[at / 4 * 2 + 1 - at % 2]", BLOCKED,
    ),
    "scales that a stage had before": (
        "families/tile_wgmma.h", "arrive_after_copies(done);", "arrive(done);", BLOCKED,
    ),
    "scales of the first columns": (
        "device/block_scales.h", "from + (i + lane) * apart", "from + lane * apart", BLOCKED,
    ),
    "scales twice": (
        "families/tile_wgmma.h", "if constexpr (SUMS == kScaled) here.scale_a",
        "if constexpr (false) here.scale_a",
        BLOCKED,
    ),
    "integers as floats": (
        "device/tile_sums.h", "sum_of(unsigned bits, int) { return static_cast<int>(bits); }",
        "sum_of(unsigned bits, int) { return static_cast<int>(as_float(bits)); }",
        linear(40, 72, 528, **ROWS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    values = WIDEST if problem is BLOCKED else WIDE
    (one,) = build([FAMILY.config(problem, values, SM_90)], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


@pytest.mark.parametrize("name", ["int8 rows", "e4m3 rows", "e4m3, fast", "e5m2 by e4m3", "e4m3 blocks"])
def test_it_compiles_for_hopper(name: str, tmp_path: Path) -> None:
    found = FAMILY.config(KINDS[name], WIDE, SM_90)
    path = Nvrtc().compile(CompileUnit(found.unit, "sm_90a"), BinaryCache(tmp_path))
    assert path.stat().st_size > 0


def test_sums_are_promoted_unless_fast_accumulation_is_asked_for() -> None:
    def made(problem: GemmProblem) -> str:
        return FAMILY.config(problem, WIDE, SM_90).instantiation.rsplit("::", 1)[1]

    assert made(KINDS["e4m3 rows"]) == "kPromoted>"
    assert made(KINDS["e4m3, fast"]) == "kPlain>"
    assert made(KINDS["int8 rows"]) == "kPlain>"
    assert made(KINDS["e4m3 blocks"]) == "kScaled>"


@pytest.mark.parametrize(
    ("problem", "values", "words"),
    [
        (linear(64, 64, 64), {"tile_n": 40}, "tile_n of int8 is a multiple of 16 or one of 8, 24, not 40"),
        (linear(64, 64, 72), {}, "lines at multiples of 16 bytes; A's are not"),
        (linear(64, 64, 64, "fp8_e4m3"), {"tile_m": 128, "tile_n": 256}, "sums take 256 registers"),
        (linear(64, 64, 64, "fp8_e4m3_fnuz"), {}, "not fp8_e4m3_fnuz x fp8_e4m3_fnuz"),
        (linear(64, 64, 64, **BLOCKS), {}, "not block_128x128 with block_1x128"),
        (from_linear(64, 64, 64, "bf16", dtype_b="int8", scale_b="outer"), {}, "not int8 x bf16"),
    ],
)  # fmt: skip
def test_what_a_rule_forbids(problem: GemmProblem, values: dict[str, Parameter], words: str) -> None:
    found = refusal(problem, {**WIDE, **values})
    assert found is not None
    assert re.search(words, found), found
    assert "wgmma needs sm_90a" in (refusal(linear(64, 64, 64), WIDE, "sm_89") or "")


@pytest.mark.parametrize("tokens", [33, 128, 4096])
@pytest.mark.parametrize("name", ["int8 rows", "e4m3 rows", "e4m3, fast", "e4m3 blocks"])
def test_what_is_listed_is_legal(name: str, tokens: int) -> None:
    problem = replace(KINDS[name], m=4096, n=tokens, k=4096, lda=4096, ldb=4096, ldc=4096, ldd=4096)
    found = list(FAMILY.solutions(problem, H200))
    assert 4 <= len(found) <= 48
    for one in found:
        assert FAMILY.illegal(problem, Solution(one.family, one.version, one.parameters), H200) is None
