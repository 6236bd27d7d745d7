"""grouped-mfma and grouped-wmma: groups without rows, all rows in one, ragged ends and unaligned rows on the
emulator; mistakes that must show; rules; candidates; code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.solution import Parameter
from backends.toolchains import clang
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import Built, HostDevice, HostKernel, build
from tests.backends.kernels.matrix_cores import GROUPED, Mistake, environment, findings, wrong_of
from tests.backends.kernels.samples import legal_values
from tests.backends.weight_samples import mxfp4
from tuners import inputs
from tuners.inputs import Case
from tuners.verify import Verifier

MFMA, WMMA = FAMILIES["grouped-mfma"], FAMILIES["grouped-wmma"]
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
OF = {arch: MFMA if arch.startswith("gfx9") else WMMA for arch in ARCHS}

#: Rows of the call, n, k of every group's weights.
SHAPES: dict[str, GemmProblem] = {
    "some without rows": from_linear(83, 72, 136, "bf16", groups=6, routing=[0, 70, 0, 1, 12, 0]),
    "unaligned, many groups": from_linear(90, 33, 71, "fp16", groups=40, dtype_d="fp32"),
    "one row": from_linear(1, 40, 264, "bf16", groups=3),
    "padded rows": from_linear(31, 50, 200, "bf16", groups=4, ldb=213, lda=208, ldd=61),
    "two of eight": from_linear(2, 130, 512, "bf16", groups=8, routing="skewed"),
    "the last group": from_linear(35, 64, 320, "fp16", groups=4, routing=[0, 0, 0, 35]),
    "one group": from_linear(33, 96, 192, "bf16", groups=1),
    "few of k": from_linear(20, 48, 7, "bf16", groups=5),
}
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}


def bytes_of(kind: str) -> list[GemmProblem]:
    """8-bit floats with scales: blocks that are whole and not, rows."""
    return [
        from_linear(23, 150, 264, kind, groups=4, routing=[0, 20, 2, 1], dtype_d="fp32", **BLOCKS),
        from_linear(35, 40, 71, kind, groups=4, routing=[0, 0, 34, 1], **ROWS),
        from_linear(83, 300, 405, kind, groups=6, routing=[0, 70, 0, 1, 12, 0], ldb=433, ldd=311, **BLOCKS),
        from_linear(90, 33, 272, kind, groups=40, dtype_d="fp16", **ROWS),
    ]


#: Architecture -> the 8-bit floats of its instructions.
BYTES = {"gfx942": "fp8_e4m3_fnuz", "gfx950": "fp8_e4m3", "gfx1201": "fp8_e4m3"}
#: In every run; the others are in `make exhaustive`.
SOME = {"gfx942": 2, "gfx950": 1, "gfx1100": 1, "gfx1201": 1}
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 32, "warp_n": 32, "instruction": 16, "stages": 1,
    "blocks_per_unit": 1,
}  # fmt: skip
SKEWED = from_linear(60, 136, 264, "bf16", groups=6, routing=[0, 41, 0, 1, 18, 0])


def refusal(problem: GemmProblem, values: dict[str, Any], arch: str = "gfx942") -> str | None:
    return matrix_cores.refusal(MFMA, problem, {**CHOSEN, **values}, arch)


# ---- on the emulator ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", SOME)
def test_it_computes_right(arch: str, tmp_path: Path) -> None:
    """Neither a row beyond D nor one of another group is written, and none beyond X is read."""
    found = [
        (problem, legal_values(OF[arch], problem, environment(arch), 1, seed)[0])
        for seed, problem in enumerate(list(SHAPES.values())[: SOME[arch]])
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_of_groups(arch: str, seed: int, tmp_path: Path) -> None:
    found = [
        (problem, values)
        for problem in SHAPES.values()
        for values in legal_values(OF[arch], problem, environment(arch), 2, seed)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_8_bit_floats_have_scales_of_their_group(arch: str, tmp_path: Path) -> None:
    found = [
        (problem, legal_values(OF[arch], problem, environment(arch), 1, seed)[0])
        for seed, problem in enumerate(bytes_of(BYTES[arch])[:2])
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", BYTES)
def test_every_kind_of_scales(arch: str, tmp_path: Path) -> None:
    found = [
        (problem, values)
        for problem in bytes_of(BYTES[arch])
        for values in legal_values(OF[arch], problem, environment(arch), 2, 1)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One kernel for any sizes and counts."""
    (found,) = build([MFMA.config(SKEWED, CHOSEN, GPU_ARCHS["gfx942"])], tmp_path_factory.mktemp("one"), 64)
    return found


@pytest.mark.parametrize("units", [1, 100])
def test_a_launch_may_have_any_number_of_blocks(units: int, chosen: Built) -> None:
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for other_way in (False, True):
        kernel = HostKernel(chosen, other_way, units)
        assert verifier.check(kernel, Case(SKEWED, 3, "normal", "exact"), runs=1).wrong == ""


def test_one_unit_serves_every_size_and_any_counts(chosen: Built) -> None:
    other = from_linear(20, 40, 512, "bf16", groups=32, routing="skewed")
    config = MFMA.config(other, CHOSEN, GPU_ARCHS["gfx942"])
    assert config.unit == chosen.found.unit
    assert wrong_of(replace(chosen, found=config), other) == ""


def test_ends_that_lead_out_of_the_operands_are_clamped(
    chosen: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the device knows the ends: those below 0 and beyond the rows count as 0 and as the last row."""
    problem = from_linear(60, 72, 264, "bf16", groups=4, routing=[0, 41, 19, 0])
    wrong = np.array([-7, 41, 2**31 - 1, 61], np.int32)
    monkeypatch.setattr(inputs, "ends_of", lambda _: wrong)
    config = MFMA.config(problem, CHOSEN, GPU_ARCHS["gfx942"])
    assert wrong_of(replace(chosen, found=config), problem) == ""


def test_a_group_begins_not_before_the_last_end_so_far(
    chosen: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = from_linear(60, 72, 264, "bf16", groups=6, routing=[20, 0, 21, 0, 19, 0])
    wrong = np.array([20, 5, 41, 30, 60, -1], np.int32)
    monkeypatch.setattr(inputs, "ends_of", lambda _: wrong)
    config = MFMA.config(problem, CHOSEN, GPU_ARCHS["gfx942"])
    assert wrong_of(replace(chosen, found=config), problem) == ""


CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "skewed": (SKEWED, CHOSEN),
    "blocks": (
        from_linear(44, 150, 400, "fp8_e4m3_fnuz", groups=3, routing=[2, 40, 2], **BLOCKS),
        {**CHOSEN, "tile_k": 128},
    ),
    "rows": (
        from_linear(35, 40, 72, "fp8_e4m3_fnuz", groups=4, routing=[0, 2, 32, 1], **ROWS),
        {**CHOSEN, "tile_k": 128},
    ),
}
MISTAKES = (
    Mistake("at.group * args.stride_a", "0 * args.stride_a", "skewed"),
    Mistake("first * args.ldb", "at.column * args.ldb", "skewed"),
    Mistake("first * args.d_column", "at.start * args.d_column", "skewed"),
    Mistake("own.n = at.columns", "own.n = at.columns + 1", "skewed"),
    Mistake("            block_barrier();  // sums have been read", "            //", "skewed"),
    Mistake("(all.gemm.k) - 1) / BK + 1", "(all.gemm.k) - 1) / BK", "skewed"),
    Mistake("(tile.group * down + ", "(0 * down + ", "blocks"),
    Mistake("(tile.row + row) / kScaleBlock", "0", "blocks"),
    Mistake("(tile.start) + tile.column) * tiles", "(tile.column)) * tiles", "blocks"),
    Mistake("column + n * I::kLines + I::column(lane_index())", "column + I::column(lane_index())", "blocks"),
    Mistake("            request();\n            GEMMTUNE_UNROLL", "            GEMMTUNE_UNROLL", "blocks"),
    Mistake("                    sum[m][n] = {};\n", "", "blocks"),
    Mistake("static_cast<i64>(at.group) * own.m, own", "0, own", "rows"),
    Mistake("all.scale_b + at.start + at.column, own", "all.scale_b, own", "rows"),
    Mistake(
        "const int start = group > 0 ? ends[group - 1] : 0, first", "const int start = 0, first", "skewed"
    ),
)


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    folder = tmp_path_factory.mktemp("mistaken")
    return matrix_cores.mistaken(MFMA, "gfx942", MISTAKES, CASES, folder, GROUPED)


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    assert wrong_of(mistaken[index], CASES[MISTAKES[index].case][0]) != "", MISTAKES[index]


@pytest.mark.exhaustive
def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(MFMA, "gfx942", list(CASES.values()), tmp_path) == []


# ---- what is refused and listed -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "values", "arch", "words"),
    [
        (from_linear(60, 136, 264, "bf16"), {}, "gfx942", "this is a product of one matrix"),
        (mxfp4(64, 1536, 2080, groups=8), {}, "gfx942", "our kernels multiply .*, not fp4_e2m1 x bf16"),
        (bytes_of("fp8_e4m3")[0], {"tile_k": 128}, "gfx942", "gfx942 has no mfma instruction for fp8_e4m3"),
        (bytes_of("fp8_e4m3")[0], {"tile_k": 64}, "gfx950",
         "a tile along k has one scale of blocks: tile_k is 128, not 64"),
        (bytes_of("fp8_e4m3")[0], {"tile_k": 128, "tile_m": 256, "tile_n": 64, "warp_m": 128, "warp_n": 64},
         "gfx950", "warp_m x warp_n is 256 sums of a lane with the scaled ones; at most 128"),
        (SKEWED, {}, "gfx1100", "gfx1100 has no mfma instruction for bf16"),
        (SKEWED, {"warp_m": 128}, "gfx942", "tile_m 64 is no multiple of warp_m 128"),
        (SKEWED, {"tile_n": 16, "warp_n": 16, "warp_m": 16, "instruction": 32}, "gfx942",
         "warp_m 16 is no multiple of the instruction's rows, 32"),
        (SKEWED, {"tile_m": 256, "tile_n": 256, "tile_k": 64, "warp_m": 128, "warp_n": 64}, "gfx942",
         "67584 bytes of shared memory; gfx942 has 65536 for a block"),
        (SKEWED, {"tile_m": 128, "tile_n": 128, "tile_k": 64, "warp_m": 64, "warp_n": 64,
                  "blocks_per_unit": 2}, "gfx942",
         "2 blocks take 33280 bytes of shared memory each; gfx942 has fewer"),
        (SKEWED, {"tile_m": 128, "tile_n": 128, "warp_m": 32, "warp_n": 16, "blocks_per_unit": 1},
         "gfx942", "a block has 64 to 1024 threads, not 2048"),
        (SKEWED, {"tile_m": 128, "tile_n": 32, "warp_m": 16, "warp_n": 16, "blocks_per_unit": 3},
         "gfx942", "3 blocks have 1024 threads each; gfx942 runs 2048"),
        (SKEWED, {"tile_m": 128, "tile_n": 64, "warp_m": 64, "warp_n": 64, "blocks_per_unit": 8},
         "gfx942", "8 blocks take .* bytes of shared memory each"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(problem: GemmProblem, values: dict[str, Any], arch: str, words: str) -> None:
    assert refusal(SKEWED, {}) is None
    said = MFMA.unsupported(problem) or refusal(problem, values, arch)
    assert re.search(words, said or ""), said


@pytest.mark.parametrize("arch", ARCHS)
def test_candidates_are_legal_and_of_every_width(arch: str) -> None:
    """Narrow tiles for few rows a group, wide ones for many; none for a product of one matrix."""
    for rows, most in ((8, 16), (128 * 64, 128)):
        problem = from_linear(rows, 1536, 2048, "bf16", groups=128)
        listed = list(OF[arch].candidates(problem, environment(arch)))
        assert 10 < len(listed) < 48
        assert max(int(values["tile_n"] or 0) for values in listed) == most
        assert all(OF[arch].rule(problem, values, environment(arch)) is None for values in listed)
    assert list(OF[arch].solutions(from_linear(64, 1536, 2048, "bf16"), environment(arch))) == []
    for scales in (BLOCKS, ROWS) if arch in BYTES else ():
        problem = from_linear(4096, 1536, 2048, BYTES[arch], groups=128, **scales)
        assert len(list(OF[arch].candidates(problem, environment(arch)))) > 10
    other = WMMA if OF[arch] is MFMA else MFMA
    assert list(other.candidates(SKEWED, environment(arch))) == []


def test_weights_of_groups_that_begin_anywhere_are_loaded_unaligned() -> None:
    made = MFMA.config(SKEWED, CHOSEN, GPU_ARCHS["gfx942"]).instantiation
    assert "32, true, true, false, 64" in made
    apart = replace(SKEWED, stride_a=SKEWED.stride_a + 4)
    assert "32, false, true, false, 64" in MFMA.config(apart, CHOSEN, GPU_ARCHS["gfx942"]).instantiation


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "values", "instruction"),
    [
        ("gfx942", {"tile_k": 128, "instruction": 32}, "v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx942", {"instruction": 16, "tile_n": 16}, "v_mfma_f32_16x16x16_bf16"),
        ("gfx1100", {"tile_n": 16}, "v_wmma_f32_16x16x16_bf16"),
        pytest.param(
            "gfx90a", {"instruction": 32}, "v_mfma_f32_32x32x8bf16_1k", marks=pytest.mark.exhaustive
        ),
        pytest.param("gfx1201", {}, "v_wmma_f32_16x16x16_bf16", marks=pytest.mark.exhaustive),
    ],
)
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, values: dict[str, Parameter], instruction: str, cache: BinaryCache
) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    kind = "fp8_e4m3_fnuz" if "fp8" in instruction else "bf16"
    scales = BLOCKS if "fp8" in instruction else {}
    problem = from_linear(64 if "tile_n" in values else 8192, 1536, 2048, kind, groups=8, **scales)
    matrix_cores.check_code(OF[arch], arch, problem, values, instruction, cache)
