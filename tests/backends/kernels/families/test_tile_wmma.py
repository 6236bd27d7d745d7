"""tile-wmma: types, layouts, sizes, scales and int8 on the emulator; mistakes that must show; rules; code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of
from backends.problem import GemmProblem, from_blas, from_linear, from_mm
from backends.solution import Parameter
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import H200, Built
from tests.backends.kernels.matrix_cores import EDGES, TYPES, Mistake, environment, findings, wrong_of

FAMILY = FAMILIES["tile-wmma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "warp_m": 32, "warp_n": 32, "stages": 1, "splits": 1,
    "group": 8,
}  # fmt: skip


def refusal(problem: GemmProblem, values: dict[str, Parameter], arch: str = "gfx1100") -> str | None:
    return matrix_cores.refusal(FAMILY, problem, values, arch)


# ---- on the emulator ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "kinds", "seed"),
    [
        ("gfx1100", ("bf16", "int8"), 0), ("gfx1201", ("fp16", "int8", "fp8_e4m3"), 0),
    ],
)  # fmt: skip
def test_operands_in_every_layout_and_alignment(
    arch: str, kinds: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    found = matrix_cores.in_any_layout(FAMILY, arch, kinds, seed)
    assert findings(FAMILY, arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 600, 100))
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_every_type_in_every_layout_and_alignment(arch: str, seed: int, tmp_path: Path) -> None:
    found = matrix_cores.in_any_layout(FAMILY, arch, TYPES[arch], seed)
    assert findings(FAMILY, arch, found, tmp_path) == []


@pytest.mark.parametrize(("arch", "splits"), [("gfx1100", 3), ("gfx1201", 1)])
def test_sizes_addresses_batches_and_slices(arch: str, splits: int, tmp_path: Path) -> None:
    values = {**CHOSEN, "stages": 1 + splits // 2, "splits": splits, "warp_m": 16}
    assert findings(FAMILY, arch, [(problem, values) for problem in EDGES], tmp_path) == []


def test_8_bit_floats_have_scales(tmp_path: Path) -> None:
    problems = matrix_cores.scaled("fp8_e4m3", "fp8_e5m2")
    found = [(one, {**CHOSEN, "splits": 1 + at % 2}) for at, one in enumerate(problems)]
    assert findings(FAMILY, "gfx1201", found, tmp_path) == []


@pytest.mark.parametrize("arch", ["gfx1100", pytest.param("gfx1201", marks=pytest.mark.exhaustive)])
def test_int8_has_scalars_of_fp32(arch: str, tmp_path: Path) -> None:
    matrix_cores.check_int8_scalars(FAMILY, arch, CHOSEN, tmp_path)


# ---- mistakes that must show ----------------------------------------------------------------------

#: (What tile-mfma shares is its suite's.)
CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "halves": (from_blas(71, 85, 203, "fp16", trans_a="T", alignment=2), {**CHOSEN, "stages": 2}),
    "bytes": (from_blas(71, 85, 203, "int8", trans_b="T", alignment=1), CHOSEN),
}
MISTAKES = (
    Mistake("kGroups > 1 ? lane / kLines : 0", "lane / kLines", "halves"),
    Mistake("turn * kRead + c", "turn * kRead", "halves"),
    Mistake("kLines, group * kRead * TURNS)", "kLines, group * kRead * TURNS + lane / 16)", "bytes"),
    Mistake("to[I::row(lane, i)] = sum[i];", "to[lane / 16 * 8 + i] = sum[i];", "halves"),
    Mistake("column % kColumns * kPitch + row", "(column ^ 1) % kColumns * kPitch + row", "bytes"),
    Mistake("const i64 first = static_cast<i64>(mine.begin) * BK;", "const i64 first = BK;", "bytes"),
)


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    folder = tmp_path_factory.mktemp("mistaken")
    return matrix_cores.mistaken(FAMILY, "gfx1100", MISTAKES, CASES, folder)


def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(FAMILY, "gfx1100", list(CASES.values()), tmp_path) == []


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    assert wrong_of(mistaken[index], CASES[MISTAKES[index].case][0]) != "", MISTAKES[index]


# ---- what is refused and listed -------------------------------------------------------------------

SQUARE = from_linear(4096, 4096, 4096, "bf16")
INT8 = from_linear(512, 512, 512, "int8", dtype_d="int8")


@pytest.mark.parametrize(
    ("problem", "values", "arch", "words"),
    [
        (from_mm(512, 512, 512), {}, "gfx1100", "matrix cores multiply .*, not fp32 in fp32"),
        (SQUARE, {}, "gfx942", "gfx942 has no wmma instruction for bf16"),
        (from_linear(64, 64, 64, "fp8_e4m3"), {}, "gfx1100", "gfx1100 has no wmma instruction for fp8_e4m3"),
        (from_linear(64, 64, 64, "fp8_e4m3_fnuz"), {}, "gfx1201", "gfx1201 has no wmma .* for fp8_e4m3_fnuz"),
        (SQUARE, {"tile_m": 32, "warp_m": 64}, "gfx1100", "tile_m 32 is no multiple of warp_m 64"),
        (INT8, {"tile_k": 32}, "gfx1201", "tile_k is 64, 128 or 256 bytes of int8, not 32"),
        (SQUARE, {"tile_m": 256, "tile_n": 256}, "gfx1100", "a block has 32 to 1024 threads, not 2048"),
        (SQUARE, {"warp_m": 64, "warp_n": 64}, "gfx1100", "registers"),
        (SQUARE, {"tile_m": 128, "tile_n": 128, "tile_k": 128, "stages": 2}, "gfx1100",
         "131072 bytes of shared memory; gfx1100 has 65536 for a block"),
        (SQUARE, {"warp_m": 128}, "gfx1100", "warp_m must be one of 16, 32, 64, not 128"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(
    problem: GemmProblem, values: dict[str, Parameter], arch: str, words: str
) -> None:
    found = refusal(problem, {**CHOSEN, **values}, arch)
    assert found is not None
    assert re.search(words, found), found


def test_what_is_refused_above_is_legal_otherwise() -> None:
    for arch, kinds in TYPES.items():
        if arch.startswith("gfx1"):
            for kind in kinds:
                assert refusal(from_linear(64, 64, 64, kind), CHOSEN, arch) is None


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_the_likeliest_fill_the_device_and_are_few(arch: str) -> None:
    for problem in (SQUARE, from_mm(4096, 512, 4096, "fp16"), from_linear(2049, 2049, 2049, "int8")):
        found = list(FAMILY.solutions(problem, environment(arch)))
        assert 20 <= len(found) <= 48
        for one in found[:8]:
            first = FAMILY.config(problem, one.parameters, arch_of(environment(arch)))
            assert first.blocks * first.splits >= 32
        assert len({one.parameters["tile_m"] for one in found}) > 1


def test_other_gpus_and_narrow_products_have_none() -> None:
    assert not list(FAMILY.solutions(SQUARE, environment("gfx942")))
    assert not list(FAMILY.solutions(SQUARE, H200))
    assert not list(FAMILY.solutions(from_linear(4, 4096, 4096, "bf16"), environment("gfx1100")))


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "kind", "instruction"),
    [
        ("gfx1100", "bf16", "v_wmma_f32_16x16x16_bf16"),
        ("gfx1201", "int8", "v_wmma_i32_16x16x16_iu8"),
        ("gfx1201", "fp8_e5m2", "v_wmma_f32_16x16x16_bf8_bf8"),
    ],
)  # fmt: skip
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, kind: str, instruction: str, cache: BinaryCache
) -> None:
    """Of the likeliest candidate, for unaligned operands that are contiguous along k."""
    problem = from_linear(1000, 999, 1001, kind)
    matrix_cores.check_code(FAMILY, arch, problem, {}, instruction, cache)


@pytest.mark.clang
@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_code_of_every_type(arch: str, cache: BinaryCache) -> None:
    names = {
        "fp16": "f32_16x16x16_f16", "bf16": "f32_16x16x16_bf16", "int8": "i32_16x16x16_iu8",
        "fp8_e4m3": "f32_16x16x16_fp8_fp8", "fp8_e5m2": "f32_16x16x16_bf8_bf8",
    }  # fmt: skip
    for kind in TYPES[arch]:
        for problem in (from_linear(4096, 4096, 4096, kind), from_mm(1000, 999, 1001, kind)):
            matrix_cores.check_code(FAMILY, arch, problem, {}, f"v_wmma_{names[kind]}", cache)


@pytest.mark.clang
@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_no_candidate_spills(arch: str, cache: BinaryCache) -> None:
    matrix_cores.check_spills(FAMILY, arch, cache)
