"""dequant-mfma and dequant-wmma: every type and zero point of weights, from one column to hundreds,
slices of k, epilogues and unaligned rows on the emulator; mistakes that must show; rules; candidates; code.
(What they share with their families for groups is that suite's.)"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.solution import Parameter
from backends.toolchains import clang
from backends.toolchains.clang import Clang
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import Built, build
from tests.backends.kernels.matrix_cores import PLAIN_WEIGHTS, Mistake, environment, findings, wrong_of
from tests.backends.kernels.samples import legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights

MFMA, WMMA = FAMILIES["dequant-mfma"], FAMILIES["dequant-wmma"]
#: One in two is in every run (conftest.py): both sizes of wavefronts, and every layout of WMMA.
ARCHS = ("gfx942", "gfx90a", "gfx1100", "gfx950", "gfx1201")
OF = {arch: MFMA if arch.startswith("gfx9") else WMMA for arch in ARCHS}

#: Columns, rows and k of the weights.
SHAPES: dict[str, GemmProblem] = {
    "mxfp4, one column": mxfp4(1, 72, 800),
    "words": weights(5, 200, 384, zero_b="uint4", bias="bf16", activation="gelu"),
    "mxfp4 in fp16": mxfp4(131, 50, 416, dtype_a="fp16", dtype_d="fp32", beta=1.0),
    "added": weights(300, 56, 288, zero_b="shift", scale_dtype="fp32", scale_b="block_1x32"),
    "words in fp16": weights(131, 40, 384, zero_b="uint4", dtype_a="fp16", scale_b="block_1x64"),
    "subtracted in fp16": weights(
        5, 76, 320, zero_b="float", dtype_a="fp16", scale_dtype="fp16", scale_b="block_1x32"
    ),
    "signed": weights(1, 133, 640, "int4", scale_b="block_1x32", bias="fp32", activation="silu"),
    "mxfp4, unaligned": mxfp4(31, 52, 416, ldb=420, lda=417, ldd=61, alignment=4),
    "words, padded": weights(131, 72, 768, zero_b="uint4", ldb=800, lda=776, dtype_d="fp32"),
    "subtracted": weights(300, 40, 256, zero_b="float", scale_dtype="fp32"),
    "added in fp16": weights(5, 97, 512, zero_b="shift", dtype_a="fp16", scale_b="block_1x32"),
    "eight, unaligned": weights(131, 33, 160, zero_b="eight", scale_b="block_1x32", ldb=170, lda=161),
    "none in fp16": weights(1, 33, 1280, zero_b="none", dtype_a="fp16", dtype_d="fp32", alpha=0.5),
    "signed in fp16": weights(70, 96, 192, "int4", dtype_a="fp16", scale_b="block_1x64"),
    "mxfp4, many": mxfp4(300, 133, 288),
    "bytes": weights(131, 72, 416, "int8", scale_b="outer", bias="bf16"),
    "bytes in fp16": weights(
        19, 133, 331, "int8", scale_b="tensor", dtype_a="fp16", scale_dtype="fp32", lda=333
    ),
    "bytes in groups": weights(40, 50, 384, "int8", scale_b="block_1x64", beta=1.0),
    "a row's scale": weights(33, 72, 400, "uint4", zero_b="float", scale_b="outer", ldb=404),
    "a matrix's scale": weights(70, 40, 288, "int4", scale_b="tensor", scale_dtype="fp32", dtype_a="fp16"),
}
#: In every run, of every architecture; the others are in `make exhaustive`.
FIRST = 4
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 32, "tile_k": 128, "warp_m": 32, "warp_n": 16, "instruction": 16, "stages": 1,
    "splits": 1, "group": 8,
}  # fmt: skip
MX, WORDS = mxfp4(70, 136, 800), weights(70, 136, 768, zero_b="uint4", scale_b="block_1x32")
#: Eight slices of five tiles along k, of which the last three are empty; and of the last, a part of a tile.
SLICED, SLICES = mxfp4(19, 72, 544), {**CHOSEN, "splits": 8}


def refusal(problem: GemmProblem, values: dict[str, Any], arch: str = "gfx942") -> str | None:
    return matrix_cores.refusal(MFMA, problem, {**CHOSEN, **values}, arch)


# ---- on the emulator ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_it_computes_right(arch: str, tmp_path: Path) -> None:
    """No row or column beyond D is written, and no operand is read beyond its end. Reads of shared memory
    have no bank conflicts."""
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
def test_every_kind_of_weights(arch: str, seed: int, tmp_path: Path) -> None:
    kinds = [problem for problem in every_kind(37, 72, 384) if OF[arch].supports(problem)]
    assert len(kinds) == 5 * 7 - 3 + 1
    found = [
        (problem, values)
        for problem in (*SHAPES.values(), *kinds)
        for values in legal_values(OF[arch], problem, environment(arch), 2, seed)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


def test_slices_of_k_add_up_and_one_unit_serves_every_size(tmp_path: Path) -> None:
    """Also slices that begin behind k. Scales are those of the slice."""
    row = GPU_ARCHS["gfx942"]
    problems = {"mxfp4": (MX, SLICED, mxfp4(1, 4096, 160)), "words": (WORDS, replace(WORDS, n=1, k=544))}
    made = {name: MFMA.config(some[0], CHOSEN, row) for name, some in problems.items()}
    for name, one in zip(made, build([*made.values()], tmp_path, 64), strict=True):
        for problem in problems[name]:
            for splits in (1, 3, 8):
                config = MFMA.config(problem, {**CHOSEN, "splits": splits}, row)
                assert config.unit == one.found.unit
                assert wrong_of(replace(one, found=config), problem) == "", (problem.slug, splits)


CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "mxfp4": (MX, CHOSEN),
    "words": (WORDS, {**CHOSEN, "splits": 3}),
    "sliced": (SLICED, SLICES),
    "plain": (replace(MX, beta="one"), CHOSEN),
    "bytes": (weights(70, 136, 656, "int8", scale_b="outer"), {**CHOSEN, "splits": 3}),
    "halves": (weights(70, 136, 272, "int8", scale_b="tensor", dtype_a="fp16"), CHOSEN),
    "rows": (weights(70, 136, 768, zero_b="uint4", scale_b="outer"), {**CHOSEN, "splits": 3}),
}
MISTAKES = (
    Mistake("multiply<false>(args, scales, i, j,", "multiply<false>(args, scales, i, 0,", "mxfp4"),
    Mistake("multiply<false>(args, scales, i, j,", "multiply<false>(args, scales, 0, j,", "mxfp4"),
    Mistake("all.scale_row, 0, 0, 0, args.m}", "all.scale_row, 0, 0, 0, 70}", "mxfp4"),
    Mistake("(finished, task.batch, i + row,", "(finished, task.batch, i,", "plain"),
    # Slices.
    Mistake("return slice.begin; }", "return 0; }", "words"),
    Mistake("slice.end - slice.begin", "slice.end", "words"),
    Mistake("kWholeRow ? 0 : p / kGroup", "0", "words"),
    Mistake("+ first * kSize;", ";", "words"),
    Mistake("+ first * kZeroSize;", ";", "words"),
    Mistake("p / kPerByte, k / kPerByte", "0, k / kPerByte", "words"),
    Mistake("args.ldb, j, args.n, first,", "args.ldb, j, args.n, 0,", "words"),
    Mistake("int left = args.k - first;", "int left = args.k;", "sliced"),
    Mistake("args.k) - 1) / BK + 1)", "args.k) - 1) / BK)", "sliced"),
    Mistake("SlicePlace<Sum>(args, task, i + row,", "SlicePlace<Sum>(args, task, i,", "words"),
    # 8 bits.
    Mistake("(number * kRead + word) + 1], pairs", "(number * kRead + word)], pairs", "bytes"),
    Mistake("step / TURNS * (kGroups * TURNS) + step % TURNS", "step", "bytes"),
    Mistake("group * kRead * TURNS", "group * kRead", "halves"),
    Mistake("number * I::kGroups)", "0 * number * I::kGroups)", "bytes"),
    Mistake("raw.load_edge(left / kPerByte);", "raw.load_edge(BK);", "bytes"),
    Mistake("first = low ^ 0x80808080u", "first = low", "bytes"),
    Mistake("both(0xe480u)", "both(0xe400u)", "halves"),
    Mistake("0x07060302);  // the upper halves", "0x05040100);", "bytes"),
    Mistake("QUANT::kBits == 4 ? PowerOf<T>::kLeft : 0.0f", "PowerOf<T>::kLeft", "bytes"),
    # One scale of a row.
    Mistake("kWholeRow ? 0 : p / kGroup", "p / kGroup", "rows"),
    Mistake("if constexpr (!kWholeRow) scales_", "scales_", "rows"),
)  # fmt: skip


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    folder = tmp_path_factory.mktemp("mistaken")
    return matrix_cores.mistaken(MFMA, "gfx942", MISTAKES, CASES, folder, PLAIN_WEIGHTS)


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    assert wrong_of(mistaken[index], CASES[MISTAKES[index].case][0]) != "", MISTAKES[index]


@pytest.mark.exhaustive
def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(MFMA, "gfx942", list(CASES.values()), tmp_path) == []


# ---- what is refused and listed -------------------------------------------------------------------

WIDE = {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 64}


@pytest.mark.parametrize(
    ("problem", "values", "arch", "words"),
    [
        (mxfp4(60, 72, 800, groups=6), {}, "gfx942", "rows of groups|groups of rows|grouped"),
        (from_linear(60, 136, 264, "bf16"), {}, "gfx942",
         "these kernels multiply quantised weights by bf16 or fp16, not bf16 x bf16"),
        (weights(8, 64, 256, "int8", scale_b="block_1x32"), {}, "gfx942",
         "groups of 32 elements of k; the lanes of a row read 64 of int8 at once"),
        (weights(8, 64, 1024, "int8"), {"tile_k": 512}, "gfx950", "64, 128 or 256 bytes of int8, not 512"),
        (replace(MX, trans_b="T", ldb=72), {}, "gfx942", "columns must be contiguous along k"),
        (MX, {}, "gfx1100", "gfx1100 has no mfma instruction for bf16"),
        (mxfp4(4, 72, 2**28), {}, "gfx942",
         "scales of tile_m 64 rows lie beyond 32 bits: k 268435456 is too long"),
        (mxfp4(60, 72, 96), {}, "gfx942", "tile_k 128 is more than k 96"),
        (MX, {"warp_m": 64, "tile_m": 32}, "gfx942", "tile_m 32 is no multiple of warp_m 64"),
        (MX, {"instruction": 32}, "gfx942", "warp_n 16 is no multiple of the instruction's columns, 32"),
        (WORDS, WIDE, "gfx942", "warp_m x warp_n is 144 sums of a lane with the scaled ones; at most 128"),
        (MX, {"tile_n": 64, "tile_k": 512}, "gfx942",
         "81920 bytes of shared memory; gfx942 has 65536 for a block"),
        (MX, {"tile_m": 256, "tile_n": 32, "warp_m": 16, "warp_n": 16}, "gfx942",
         "a block has 64 to 1024 threads, not 2048"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(problem: GemmProblem, values: dict[str, Any], arch: str, words: str) -> None:
    assert refusal(MX, {}) is None
    said = MFMA.unsupported(problem) or refusal(problem, values, arch)
    assert re.search(words, said or ""), said


#: Products of a layer: w4a16, MXFP4 and w8a16.
LAYERS = {
    columns: (
        weights(columns, 4096, 4096, zero_b="uint4"),
        mxfp4(columns, 5760, 2880, dtype_a="fp16"),
        weights(columns, 4096, 4096, "int8", scale_b="outer"),
    )
    for columns in (1, 5, 131, 300, 4096)
}


@pytest.mark.parametrize("arch", ARCHS)
def test_candidates_are_legal_and_as_wide_as_the_columns(arch: str) -> None:
    """The narrowest tiles for few columns, where some split k; wide ones alone for many. None for groups,
    and none on the other generation's matrix cores."""
    for columns, problems in LAYERS.items():
        for problem in problems:
            listed = list(OF[arch].solutions(problem, environment(arch)))
            assert 10 < len(listed) <= 48
            assert len({one.id for one in listed}) == len(listed)
            assert all(OF[arch].illegal(problem, one, environment(arch)) is None for one in listed)
            widths = [int(one.parameters["tile_n"] or 0) for one in listed]
            assert set(widths) == {16} if columns < 16 else max(widths) >= 64
            assert columns < 512 or min(widths) >= 64
            assert columns > 16 or max(int(one.parameters["splits"] or 0) for one in listed) > 1
            assert {one.parameters["group"] for one in listed[:-1]} == {8}
            assert dict(listed[-1].parameters) == {**listed[0].parameters, "group": 1}
    assert list(OF[arch].solutions(mxfp4(64, 1536, 2048, groups=4), environment(arch))) == []
    other = WMMA if OF[arch] is MFMA else MFMA
    assert list(other.solutions(MX, environment(arch))) == []


def test_a_single_column_and_few_rows_have_candidates() -> None:
    for problem in (weights(1, 8, 128), weights(4096, 8, 256), mxfp4(3, 33, 160)):
        assert list(MFMA.solutions(problem, environment("gfx942"))) != []
    assert list(MFMA.solutions(mxfp4(3, 33, 96), environment("gfx942"))) == []


def test_rows_that_begin_anywhere_are_loaded_unaligned() -> None:
    made = MFMA.config(MX, CHOSEN, GPU_ARCHS["gfx942"]).instantiation
    assert "Mxfp4, true, true, false, 64" in made
    apart = replace(MX, lda=MX.lda + 4)
    assert "Mxfp4, false, true, false, 64" in MFMA.config(apart, CHOSEN, GPU_ARCHS["gfx942"]).instantiation


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "values", "instruction"),
    [
        ("gfx942", {"instruction": 16, "tile_n": 16}, "v_mfma_f32_16x16x16_bf16"),
        ("gfx1100", {"tile_n": 16}, "v_wmma_f32_16x16x16_bf16"),
        ("gfx942", {"instruction": 32, "tile_n": 64}, "v_mfma_f32_32x32x8_bf16"),
        ("gfx90a", {"instruction": 16, "tile_n": 64}, "v_mfma_f32_16x16x16bf16_1k"),
        ("gfx950", {"instruction": 16, "tile_n": 128}, "v_mfma_f32_16x16x32_bf16"),
        ("gfx1201", {"tile_n": 128}, "v_wmma_f32_16x16x16_bf16"),
    ],
)  # fmt: skip
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, values: dict[str, Parameter], instruction: str, cache: BinaryCache
) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    problem = LAYERS[1 if values["tile_n"] == 16 else 4096][0]
    matrix_cores.check_code(OF[arch], arch, problem, values, instruction, cache)


@pytest.mark.clang
@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
def test_no_candidate_spills(arch: str, cache: BinaryCache) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    for problem in (one for of in LAYERS.values() for one in of):
        for found in list(OF[arch].solutions(problem, environment(arch)))[::4]:
            unit = OF[arch].config(problem, found.parameters, GPU_ARCHS[arch]).unit
            path = Clang().compile(CompileUnit(unit, arch), cache)
            assert resources.read(path)["gemm"].spill_bytes == 0, (problem.slug, found.slug)
