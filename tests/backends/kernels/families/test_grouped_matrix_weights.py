"""grouped-dequant-mfma and grouped-dequant-wmma: every type and zero point of 4-bit weights, groups without
rows, all rows in one, ragged ends and unaligned rows on the emulator; scales at the ends of their range;
mistakes that must show; rules; candidates; code."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.grouping import spans_of
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.quantisation import dequantised, groups_of
from backends.solution import Parameter
from backends.toolchains import clang
from backends.toolchains.clang_compilers import compiler_for
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import Built, HostDevice, HostKernel, build
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.matrix_cores import (
    ASSEMBLY,
    GROUPED_WEIGHTS,
    Mistake,
    environment,
    findings,
    wrong_of,
)
from tests.backends.kernels.samples import legal_values
from tests.backends.weight_samples import mxfp4, weights
from tuners import inputs
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

MFMA, WMMA = FAMILIES["grouped-dequant-mfma"], FAMILIES["grouped-dequant-wmma"]
#: One in two is in every run (conftest.py): both sizes of wavefronts, and every layout of WMMA.
ARCHS = ("gfx942", "gfx90a", "gfx1100", "gfx950", "gfx1201")
OF = {arch: MFMA if arch.startswith("gfx9") else WMMA for arch in ARCHS}
SOME: dict[str, Any] = {"groups": 6, "routing": [0, 70, 0, 1, 12, 0]}

#: Rows of the call, n, k of every group's weights.
SHAPES: dict[str, GemmProblem] = {
    "mxfp4, some without rows": mxfp4(83, 72, 160, **SOME),
    "words": weights(20, 40, 256, zero_b="uint4", groups=5),
    "mxfp4 in fp16, the last group": mxfp4(35, 50, 416, dtype_a="fp16", groups=4, routing=[0, 0, 0, 35]),
    "added": weights(33, 56, 288, zero_b="shift", groups=3, scale_dtype="fp32", scale_b="block_1x32"),
    "words in fp16": weights(40, 64, 384, zero_b="uint4", dtype_a="fp16", scale_b="block_1x64", groups=3),
    "subtracted in fp16": weights(
        20, 40, 320, zero_b="float", dtype_a="fp16", scale_dtype="fp16", scale_b="block_1x32", groups=5
    ),
    "signed": weights(5, 64, 320, "int4", scale_b="block_1x32", groups=4, routing=[0, 0, 0, 5]),
    "mxfp4, one row": mxfp4(1, 40, 288, groups=3),
    "mxfp4, unaligned": mxfp4(
        31, 52, 416, groups=4, ldb=420, lda=417, ldd=61, stride_b=420 * 52 + 6, alignment=4
    ),
    "words, padded": weights(
        31, 56, 768, zero_b="uint4", groups=4, ldb=800, lda=776, stride_b=800 * 56 + 96, dtype_d="fp32"
    ),
    "subtracted": weights(20, 40, 256, zero_b="float", scale_dtype="fp32", groups=5),
    "added in fp16": weights(33, 33, 384, zero_b="shift", dtype_a="fp16", groups=3, scale_b="block_1x32"),
    "eight, unaligned": weights(
        31, 33, 160, zero_b="eight", scale_b="block_1x32", groups=4, ldb=170, lda=161
    ),
    "none in fp16, many groups": weights(
        90, 33, 256, zero_b="none", dtype_a="fp16", groups=40, dtype_d="fp32"
    ),
    "signed in fp16": weights(33, 96, 192, "int4", dtype_a="fp16", scale_b="block_1x64", groups=1),
}
#: In every run, of every architecture; the others are in `make exhaustive`.
FIRST = 3
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 32, "tile_k": 128, "warp_m": 32, "warp_n": 16, "instruction": 16, "stages": 1,
    "blocks_per_unit": 1,
}  # fmt: skip
SKEW: dict[str, Any] = {"groups": 6, "routing": [0, 41, 0, 1, 0, 18]}
#: A product by each way of what is subtracted: nothing of MXFP4, 4-bit and floating-point zero points.
SKEWED = {
    "mxfp4": mxfp4(60, 72, 800, **SKEW),
    "words": weights(60, 72, 768, zero_b="uint4", **SKEW),
    "words in fp16": weights(60, 72, 288, zero_b="uint4", dtype_a="fp16", scale_b="block_1x32", **SKEW),
    "subtracted": weights(60, 72, 288, zero_b="float", scale_b="block_1x32", **SKEW),
    "added": weights(60, 72, 768, zero_b="shift", **SKEW),
}


def refusal(problem: GemmProblem, values: dict[str, Any], arch: str = "gfx942") -> str | None:
    return matrix_cores.refusal(MFMA, problem, {**CHOSEN, **values}, arch)


# ---- on the emulator ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_it_computes_right(arch: str, tmp_path: Path) -> None:
    """Neither a row beyond D nor one of another group is written, and no operand is read beyond its end.
    Reads of shared memory have no bank conflicts."""
    first = ARCHS.index(arch)  # others for every architecture
    found = [
        (problem, legal_values(OF[arch], problem, environment(arch), 1, seed)[0])
        for seed, problem in enumerate([*SHAPES.values()][first * FIRST : (first + 1) * FIRST])
    ]
    assert len(found) == FIRST
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_of_weights_and_groups(arch: str, seed: int, tmp_path: Path) -> None:
    found = [
        (problem, values)
        for problem in SHAPES.values()
        for values in legal_values(OF[arch], problem, environment(arch), 3, seed)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """One kernel of each kind, for any sizes and counts."""
    found = [MFMA.config(problem, CHOSEN, GPU_ARCHS["gfx942"]) for problem in SKEWED.values()]
    return dict(zip(SKEWED, build(found, tmp_path_factory.mktemp("one"), 64), strict=True))


@pytest.mark.parametrize("name", SKEWED)
def test_a_launch_may_have_any_number_of_blocks(name: str, chosen: dict[str, Built]) -> None:
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for other_way, units in ((False, 1), (True, 100)):
        kernel = HostKernel(chosen[name], other_way, units)
        assert verifier.check(kernel, Case(SKEWED[name], 3, "normal", "exact"), runs=1).wrong == ""


def test_one_unit_serves_every_size_and_any_counts(chosen: dict[str, Built]) -> None:
    other = mxfp4(20, 40, 512, groups=32, routing="skewed")
    config = MFMA.config(other, CHOSEN, GPU_ARCHS["gfx942"])
    assert config.unit == chosen["mxfp4"].found.unit
    assert wrong_of(replace(chosen["mxfp4"], found=config), other) == ""


def test_ends_that_lead_out_of_the_operands_are_clamped(
    chosen: dict[str, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the device knows the ends: those below 0 and beyond the rows count as 0 and as the last row."""
    problem = mxfp4(60, 72, 288, groups=4, routing=[0, 41, 19, 0])
    wrong = np.array([-7, 41, 2**31 - 1, 61], np.int32)
    monkeypatch.setattr(inputs, "ends_of", lambda _: wrong)
    config = MFMA.config(problem, CHOSEN, GPU_ARCHS["gfx942"])
    assert wrong_of(replace(chosen["mxfp4"], found=config), problem) == ""


@pytest.mark.parametrize("name", ["mxfp4", "added"])
def test_scales_reach_their_own_rows_alone(name: str, tmp_path: Path) -> None:
    """The least and the greatest scales, and of MXFP4 also NaN, in one group of rows; others in the next. No
    scaled weight is rounded."""
    problem = replace(SKEWED[name], dtype_d="fp32", dtype_c="fp32")
    (one,) = build([MFMA.config(problem, CHOSEN, GPU_ARCHS["gfx942"])], tmp_path, 64)
    given = host_inputs(problem, 3, "integers")
    scales = given["scale_a"].astype(np.float32)
    scales[1, 3], scales[1, 4], scales[5] = 2.0**-100, 2.0**100, scales[5] * 4
    stored = scales.astype(given["scale_a"].dtype)
    if problem.mx:
        stored.view(np.uint8)[1, 70, 1] = 255
    given["scale_a"] = stored
    d = computed(one, problem, **given)
    for group, start, end in spans_of(problem):
        zeros = given["zero_a"][group] if "zero_a" in given else None
        whole = dequantised(problem, given["a"][group], stored[group].reshape(-1, groups_of(problem)), zeros)
        with np.errstate(invalid="ignore", over="ignore"):
            want = given["b"][0, start:end].astype(np.float64) @ whole.T
        sizes = np.abs(given["b"][0, start:end].astype(np.float64)) @ np.abs(whole.T)
        off = np.abs(d[start:end] - want)
        assert np.all((off <= 1e-5 * sizes + 1e-30) | (np.isnan(want) & np.isnan(d[start:end])))
        assert np.isnan(d[start:end]).sum() == (end - start if problem.mx and group == 1 else 0)


CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    **{name: (problem, CHOSEN) for name, problem in SKEWED.items()},
    "two": (
        SKEWED["words in fp16"],
        {**CHOSEN, "tile_n": 32, "tile_k": 256, "stages": 2, "instruction": 32, "warp_n": 32},
    ),
}
_ADDED = "if constexpr (QUANT::kZero == kAdded) sum[m][n][i] += added * ones[n][i];"
MISTAKES = (
    # Which group, and which rows.
    Mistake("at.group * args.stride_a", "0 * args.stride_a", "mxfp4"),
    Mistake("first * args.ldb", "at.column * args.ldb", "words"),
    Mistake("all.matrix * all.scale_bytes", "0 * all.scale_bytes", "mxfp4"),
    Mistake("all.matrix * all.zero_bytes", "0 * all.zero_bytes", "words"),
    Mistake("scales(of, static_cast<int>(i) + row,", "scales(of, row,", "mxfp4"),
    Mistake("* all.scale_bytes + row * each", "* all.scale_bytes", "mxfp4"),
    Mistake("kOfRows ? row / 8 * all.each * 4", "kOfRows ? 0", "words"),
    Mistake("mine / 8)", "mine / 16)", "words"),
    Mistake("wanted < last ? wanted : last", "wanted", "mxfp4"),
    Mistake("tile * LINES + line", "line", "mxfp4"),
    # Their way to the instructions.
    Mistake("+ chunk / I::kGroups) ^ chunk", "+ chunk / I::kGroups)", "mxfp4"),
    Mistake("chunk % I::kGroups * (4 * kRun)", "0", "mxfp4"),
    Mistake("group * kRead + i % kRead];", "i % kRead];", "mxfp4"),
    Mistake("number / kRun * 4 + number % kRun", "number % kRun", "two"),
    Mistake("lane % I::kLines, group * kRun)", "lane % I::kLines, 0)", "two"),
    Mistake(" paired(words, found);", " found = {{words[0], words[1], words[2], words[3]}};", "mxfp4"),
    Mistake("0x06020400, kSecond", "0x06030400, kSecond", "mxfp4"),
    Mistake("word << 4 & kSigns, word & kSigns", "word & kSigns, word & kSigns", "mxfp4"),
    Mistake("0xc0800000u, 0xc0804000u", "0xc0800000u, 0xc0800000u", "mxfp4"),
    Mistake("words.at[number * kRead + word]", "words.at[word]", "words"),
    Mistake("words[number % 2]);", "words[0]);", "two"),
    # What is subtracted, and when sums are scaled.
    Mistake("both(0xe400u + zero)", "both(0xe400u)", "words in fp16"),
    Mistake("lane_index() % 8 * 4 & 15u", "0 & 15u", "words"),
    Mistake("kLeft = 128.0f", "kLeft = 127.0f", "words"),
    Mistake("static_cast<float>(zero(tile, of));", "8.0f;", "words"),
    Mistake("found += number(now_.zeros[tile], of);", "found += 0.0f;", "subtracted"),
    Mistake(_ADDED, "", "added"),
    Mistake("if (step % kRun == 0) clear", "if (step == 0) clear", "mxfp4"),
    Mistake("scales, step / kRun, sum);", "scales, 0, sum);", "mxfp4"),
    Mistake("scales.zero(m, step / kRun)", "scales.zero(m, 0)", "words in fp16"),
    Mistake("of * kSize % 4 * 8", "0", "mxfp4"),
    # Ends, and what is used now.
    Mistake("kScales - left / kGroup : 0", "0 : 0", "mxfp4"),
    Mistake("if (bytes) shift_right(out,", "if (false) shift_right(out,", "mxfp4"),
    Mistake("scales_ += kScales * kSize, zeros_", "zeros_", "mxfp4"),
    Mistake("            if constexpr (!IDLE) scales.take();\n", "", "mxfp4"),
    Mistake("if (raw.full() && left >= BK) raw.load();", "if (true) raw.load();", "mxfp4"),
    Mistake("raw.load_edge(left / kPerByte)", "raw.load_edge(left)", "mxfp4"),
    Mistake("            left -= BK;\n", "", "mxfp4"),
    Mistake("            block_barrier();  // sums have been read", "            //", "words"),
    # From sums to D.
    Mistake("i / kSumsOfHalf == half", "true", "two"),
    Mistake("% kColumns * kPitch + row + column]", "% kColumns * kPitch + column]", "mxfp4"),
)  # fmt: skip


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    folder = tmp_path_factory.mktemp("mistaken")
    return matrix_cores.mistaken(MFMA, "gfx942", MISTAKES, CASES, folder, GROUPED_WEIGHTS)


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    assert wrong_of(mistaken[index], CASES[MISTAKES[index].case][0]) != "", MISTAKES[index]


@pytest.mark.exhaustive
def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(MFMA, "gfx942", list(CASES.values()), tmp_path) == []


# ---- what is refused and listed -------------------------------------------------------------------

MX = SKEWED["mxfp4"]
WIDE = {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 64}


@pytest.mark.parametrize(
    ("problem", "values", "arch", "words"),
    [
        (mxfp4(60, 72, 800), {}, "gfx942", "this is a product of one matrix"),
        (from_linear(60, 136, 264, "bf16", groups=6), {}, "gfx942",
         "these kernels multiply quantised weights by bf16 or fp16, not bf16 x bf16"),
        (MX, {}, "gfx1100", "gfx1100 has no mfma instruction for bf16"),
        (mxfp4(4, 72, 2**28, groups=6), {}, "gfx942",
         "scales of tile_m 64 rows lie beyond 32 bits: k 268435456 is too long"),
        (mxfp4(60, 72, 96, groups=6), {}, "gfx942", "tile_k 128 is more than k 96"),
        (MX, {"warp_m": 64, "tile_m": 32}, "gfx942", "tile_m 32 is no multiple of warp_m 64"),
        (MX, {"instruction": 32}, "gfx942", "warp_n 16 is no multiple of the instruction's columns, 32"),
        (MX, {**WIDE, "blocks_per_unit": 3}, "gfx950",
         "operands and sums take 238 registers; 768 threads have 138 each for them"),
        (SKEWED["words"], WIDE, "gfx942",
         "warp_m x warp_n is 144 sums of a lane with the scaled ones; at most 128"),
        (MX, {"tile_n": 64, "tile_k": 512}, "gfx942",
         "81920 bytes of shared memory; gfx942 has 65536 for a block"),
        (MX, {"tile_k": 512, "tile_m": 128, "tile_n": 16, "blocks_per_unit": 2}, "gfx942",
         "2 blocks take 49664 bytes of shared memory each; gfx942 has fewer"),
        (MX, {"tile_m": 256, "tile_n": 32, "warp_m": 16, "warp_n": 16}, "gfx942",
         "a block has 64 to 1024 threads, not 2048"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(problem: GemmProblem, values: dict[str, Any], arch: str, words: str) -> None:
    assert refusal(MX, {}) is None
    said = MFMA.unsupported(problem) or refusal(problem, values, arch)
    assert re.search(words, said or ""), said


#: gpt-oss-20b's products of a layer with 1, 32 and 4096 tokens, and one in w4a16.
LAYERS = {
    16: (mxfp4(4, 5760, 2880, groups=32), mxfp4(128, 2880, 2880, groups=32, dtype_a="fp16"),
         weights(64, 1536, 2048, groups=128, zero_b="uint4")),
    128: (mxfp4(16384, 5760, 2880, groups=32),),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_candidates_are_legal_and_of_every_width(arch: str) -> None:
    """Narrow tiles for few rows a group, wide ones for many; none for a product of one matrix, and none on
    the other generation's matrix cores."""
    for most, problems in LAYERS.items():
        for problem in problems:
            listed = list(OF[arch].solutions(problem, environment(arch)))
            assert 10 < len(listed) < 48
            assert all(OF[arch].illegal(problem, one, environment(arch)) is None for one in listed)
            widths = [int(one.parameters["tile_n"] or 0) for one in listed]
            assert widths[0] >= min(most, 32)
            assert max(widths) == most or (most, arch[:5]) in ((128, "gfx11"), (128, "gfx12"))
    assert list(OF[arch].solutions(mxfp4(64, 1536, 2048), environment(arch))) == []
    other = WMMA if OF[arch] is MFMA else MFMA
    assert list(other.solutions(MX, environment(arch))) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_few_rows_have_enough_bytes_on_their_way(arch: str) -> None:
    """The likeliest for one token of gpt-oss: every unit has tiles, and they are deep or many."""
    problem = LAYERS[16][0]
    first = next(iter(OF[arch].solutions(problem, environment(arch))))
    values = {name: int(value or 0) for name, value in first.parameters.items()}
    tiles = 4 * -(-problem.m // values["tile_m"])
    here = min(values["blocks_per_unit"], -(-tiles // environment(arch).units))
    in_flight = here * values["tile_m"] * values["tile_k"] // 2
    assert in_flight >= 0.6 * GPU_ARCHS[arch].rates.in_flight_bytes


def test_weights_of_groups_that_begin_anywhere_are_loaded_unaligned() -> None:
    made = MFMA.config(MX, CHOSEN, GPU_ARCHS["gfx942"]).instantiation
    assert "Mxfp4, 32, true, true, false, 64" in made
    apart = replace(MX, stride_a=MX.stride_a + 4)
    assert "32, false, true, false, 64" in MFMA.config(apart, CHOSEN, GPU_ARCHS["gfx942"]).instantiation


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "values", "instruction"),
    [
        ("gfx942", {"instruction": 16, "tile_n": 16}, "v_mfma_f32_16x16x16_bf16"),
        ("gfx1100", {"tile_n": 16}, "v_wmma_f32_16x16x16_bf16"),
        ("gfx942", {"instruction": 32, "tile_n": 64}, "v_mfma_f32_32x32x8_bf16"),
        ("gfx90a", {"instruction": 16, "tile_n": 16}, "v_mfma_f32_16x16x16bf16_1k"),
        ("gfx950", {"instruction": 16, "tile_n": 64}, "v_mfma_f32_16x16x32_bf16"),
        ("gfx1201", {"tile_n": 64}, "v_wmma_f32_16x16x16_bf16"),
    ],
)  # fmt: skip
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, values: dict[str, Parameter], instruction: str, cache: BinaryCache
) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    problem = LAYERS[16][0] if values["tile_n"] == 16 else weights(4096, 1536, 2048, groups=8, zero_b="uint4")
    matrix_cores.check_code(OF[arch], arch, problem, values, instruction, cache)


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "problem"),
    [(arch, problem) for arch in ("gfx1100", "gfx942") for problem in (LAYERS[16][0], LAYERS[16][2])],
)
def test_the_next_tile_is_on_its_way_while_one_is_multiplied(arch: str, problem: GemmProblem) -> None:
    """Nothing waits for loads from memory between the last of a tile's and the first matrix instruction
    behind it. Loads arrive in order: a late use of this tile's scales would wait for all of the next tile."""
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    first = next(iter(OF[arch].solutions(problem, environment(arch))))
    unit = OF[arch].config(problem, first.parameters, GPU_ARCHS[arch]).unit
    target = (f"--offload-arch={arch}", f"-DGEMMTUNE_WARP={GPU_ARCHS[arch].warp}", "-")
    command = [*compiler_for(arch).clang, *ASSEMBLY, *target]
    code = subprocess.run(command, input=unit, text=True, capture_output=True, check=True).stdout
    told = re.findall(r"^\t(?:(global_load)|(v_w?m\w*ma_)|s_wait\w* .*(vmcnt|loadcnt))", code, re.MULTILINE)
    kinds = "".join("l" if load else "m" if multiply else "w" for load, multiply, _ in told)
    assert re.search("l+m", kinds), kinds
    assert not re.search("lw+m", kinds), kinds
