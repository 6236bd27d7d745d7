"""tile-mfma: types, layouts, sizes, scales and int8 on the emulator; mistakes that must show; rules; code."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.legality import arch_of
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains import clang
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import H200, Built, build
from tests.backends.kernels.matrix_cores import EDGES, TYPES, Mistake, environment, findings, wrong_of

FAMILY = FAMILIES["tile-mfma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "warp_m": 32, "warp_n": 32, "instruction": 16, "stages": 1,
    "splits": 1, "group": 8,
}  # fmt: skip


def refusal(problem: GemmProblem, values: dict[str, Parameter], arch: str = "gfx942") -> str | None:
    return matrix_cores.refusal(FAMILY, problem, values, arch)


# ---- on the emulator ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "kinds", "seed"),
    [
        ("gfx90a", ("int8",), 0), ("gfx942", TYPES["gfx942"], 0), ("gfx950", ("bf16", "int8"), 0),
    ],
)  # fmt: skip
def test_operands_in_every_layout_and_alignment(
    arch: str, kinds: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    found = matrix_cores.in_any_layout(FAMILY, arch, kinds, seed)
    assert findings(FAMILY, arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 600, 100))
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_every_type_in_every_layout_and_alignment(arch: str, seed: int, tmp_path: Path) -> None:
    found = matrix_cores.in_any_layout(FAMILY, arch, TYPES[arch], seed)
    assert findings(FAMILY, arch, found, tmp_path) == []


@pytest.mark.parametrize("splits", [1, 3])
def test_sizes_addresses_batches_and_slices(splits: int, tmp_path: Path) -> None:
    values = {**CHOSEN, "stages": 1 + splits // 2, "splits": splits, "instruction": 16 * (1 + splits // 2)}
    assert findings(FAMILY, "gfx942", [(problem, values) for problem in EDGES], tmp_path) == []


@pytest.mark.parametrize(
    ("arch", "e4m3", "e5m2"),
    [("gfx942", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"), ("gfx950", "fp8_e4m3", "fp8_e5m2")],
)
def test_8_bit_floats_have_scales(arch: str, e4m3: str, e5m2: str, tmp_path: Path) -> None:
    found = [
        (one, {**CHOSEN, "splits": 1 + at % 2}) for at, one in enumerate(matrix_cores.scaled(e4m3, e5m2))
    ]
    assert findings(FAMILY, arch, found, tmp_path) == []


@pytest.mark.parametrize("arch", ["gfx942", pytest.param("gfx90a", marks=pytest.mark.exhaustive)])
def test_int8_has_scalars_of_fp32(arch: str, tmp_path: Path) -> None:
    matrix_cores.check_int8_scalars(FAMILY, arch, CHOSEN, tmp_path)


def test_lines_may_be_far_apart(tmp_path: Path) -> None:
    """A tile whose lines lie within 2^31 bytes has 32-bit offsets; the other kind is as right."""
    far = from_linear(64, 64, 64, "bf16", lda=2**26, ldb=2**26)
    made = FAMILY.config(far, CHOSEN, GPU_ARCHS["gfx942"]).instantiation
    assert made.endswith("true, true, true, true, true, 64, 64, 64, 32, 32, 16, 16, 1, 8>")
    problems = (from_linear(70, 90, 208, "bf16"), from_mm(71, 91, 209, "int8"))
    configurations = [FAMILY.config(one, CHOSEN, GPU_ARCHS["gfx942"]) for one in problems]
    changed = [
        replace(one, instantiation=one.instantiation.replace("false, 64, 64", "true, 64, 64"))
        for one in configurations
    ]
    assert all(a.instantiation != b.instantiation for a, b in zip(changed, configurations, strict=True))
    for one, problem in zip(build(changed, tmp_path, 64), problems, strict=True):
        assert wrong_of(one, problem) == ""


# ---- mistakes that must show ----------------------------------------------------------------------


def ragged(kind: str, sides: str, **more: Any) -> GemmProblem:
    return from_blas(71, 85, 203, kind, trans_a=sides[0], trans_b=sides[1], alignment=1, **more)


#: Along k, across k, one of each; two tiles in shared memory, slices, a batch, few units, scales, wide parts.
CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "along": (ragged("bf16", "TN"), {**CHOSEN, "tile_k": 32}),
    "across": (ragged("bf16", "NT"), CHOSEN),
    "mixed": (ragged("int8", "TT", dtype_d="int32"), CHOSEN),
    "two": (ragged("fp16", "TN"), {**CHOSEN, "stages": 2, "instruction": 32}),
    "slices": (from_bmm(2, 40, 37, 300, "bf16", trans_b="T"), {**CHOSEN, "tile_k": 32, "splits": 3}),
    "few": (ragged("bf16", "TN"), {**CHOSEN, "tile_m": 256, "tile_n": 32, "tile_k": 32}),
    "short": (from_blas(5, 70, 9, "int8", trans_a="T", trans_b="T", alignment=1), CHOSEN),
    "scaled": (from_linear(71, 85, 96, "fp8_e4m3_fnuz", scale_a="outer", scale_b="outer", scale_d="tensor",
                           dtype_d="fp8_e4m3_fnuz"), CHOSEN),
    "wide": (ragged("fp16", "TN", beta=1.0, bias="fp16", activation="relu"),
             {**CHOSEN, "tile_m": 128, "warp_m": 128, "warp_n": 64, "tile_k": 32}),
}  # fmt: skip
_LOW = "const unsigned low[2] = {permute_bytes(b, a, kLow), permute_bytes(d, c, kLow)};"
_STORED = "        store(shared);\n        shared_barrier();\n    }\n    int at"
_BARRIER = "            shared_barrier();\n        }\n        if (tile < tiles)"
MISTAKES = (
    # Loads and their ends.
    Mistake("there = ALONG_K ? line < lines_ : depth < left;", "there = true;", "along"),
    Mistake("ALONG_K ? left - depth : lines_ - line", "ALONG_K ? left - depth + 1 : lines_ - line", "along"),
    Mistake("ALONG_K ? left - depth : lines_ - line", "ALONG_K ? left - depth : LINES - line", "across"),
    Mistake("depth < left;", "depth <= left;", "across"),
    Mistake("            if (!WHOLE) shift_right(out,", "            if (false) shift_right(out,", "along"),
    Mistake("? 0 : kWide - here", "? 0 : 0", "along"),
    Mistake("if (WHOLE || length_ >= kWide)", "if (true)", "short"),
    Mistake("            if (e >= here) continue;\n", "", "short"),
    Mistake("bits_of(element) << e * kSize % 4 * 8;", "bits_of(element) << e * kSize % 4 * 4;", "short"),
    Mistake("BK * kSize) : BK * step_;", "BK * kSize) : (BK - 1) * step_;", "across"),
    Mistake("(ALONG_K ? (GATED ? line_ / 2 : line_) : depth_) * step;", "(0) * step;", "mixed"),
    Mistake("const bool full = a.full() && b.full();", "const bool full = true;", "along"),
    Mistake("            left -= BK;\n", "", "along"),
    Mistake("p * kSize : p * step_", "0 * kSize : 0 * step_", "slices"),
    # Their way through shared memory.
    Mistake("(thread_index()) < kUnits;", "(thread_index()) < kUnits / 2;", "few"),
    Mistake("(place ^ (swizzle(lines) ^ low) * 16)", "(place ^ low * 16)", "along"),
    Mistake(_LOW, _LOW.replace("b, a", "a, b"), "across"),
    Mistake("permute_bytes(cd[i / 2], ab[i / 2]", "permute_bytes(ab[i / 2], cd[i / 2]", "mixed"),
    Mistake("ab[i / 2], i % 2 ? kHigh : kLow", "ab[i / 2], i % 2 ? kLow : kHigh", "mixed"),
    Mistake("place(line + lane % kLines,", "place(line + (lane ^ 1) % kLines,", "along"),
    Mistake("kGroups > 1 ? lane / kLines : 0", "kGroups > 1 ? lane % 32 / kLines : 0", "along"),
    Mistake("place(line + lane % kLines, group * kRead * TURNS)", "place(line + lane % kLines, 0)", "two"),
    Mistake("turn * kRead + c", "(kSteps - 1) * kGroups * kRead + c", "two"),
    # Barriers, buffers, and who has what.
    Mistake(_STORED, _STORED.replace("        shared_barrier();\n", ""), "two"),
    Mistake(_BARRIER, _BARRIER.replace("            shared_barrier();\n", ""), "along"),
    Mistake("        }\n        shared_barrier();\n    }\n", "        }\n    }\n", "along"),
    Mistake("            at ^= TILE;\n", "", "two"),
    Mistake("fragments[(step + 1) % 2]);", "fragments[step % 2]);", "two"),
    Mistake("from.b[n][part]);", "from.b[n][0]);", "two"),
    Mistake("row = wave % kWavesM * WM", "row = wave / kWavesM * WM", "along"),
    Mistake("const i64 first = static_cast<i64>(mine.begin) * BK;", "const i64 first = 0;", "slices"),
    # From sums to D.
    Mistake("to[I::row(lane, i)] = sum[i];", "to[I::row(lane, i ^ 1)] = sum[i];", "along"),
    Mistake("column / kColumns != half", "column / kColumns == half", "two"),
    Mistake("if (group > 0) warp_barrier();", "if (false) warp_barrier();", "wide"),
    Mistake("            warp_barrier();\n            const auto to", "            const auto to", "along"),
    Mistake("*reinterpret_cast<const Words*>(patch + c * kPitch + row)",
            "*reinterpret_cast<const Words*>(patch + c * WM + row)", "along"),
    Mistake("if (row + e < rows) store_global(to + e * args.d_row, four[e]);",
            "store_global(to + e * args.d_row, four[e]);", "along"),
    Mistake("if (fours && row + 4 <= rows) return write", "if (true) return write", "wide"),
    Mistake("value[e] *= load_global(scale_a + at[e] * args.scale_row);", "value[e] *= 1.0f;", "scaled"),
    Mistake("scale_b + column * args.scale_column", "scale_b", "scaled"),
    Mistake("if (args.scale_d) {", "if (false) {", "scaled"),
    Mistake("value[e] += args.beta * of_c[e];", "value[e] += of_c[e] * of_c[e];", "wide"),
    Mistake("return c + row * args.c_row", "return c + (row & ~1) * args.c_row", "wide"),
    Mistake("slice * all);", "slice * size);", "slices"),
    Mistake("(slice * args.n + j) * m + i", "(slice * args.n + j) * m", "slices"),
    Mistake("(task.slice) * args.batch + task.batch;\n        at =", "(task.slice);\n        at =", "slices"),
)  # fmt: skip


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    folder = tmp_path_factory.mktemp("mistaken")
    return matrix_cores.mistaken(FAMILY, "gfx942", MISTAKES, CASES, folder)


def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(FAMILY, "gfx942", list(CASES.values()), tmp_path) == []


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    assert wrong_of(mistaken[index], CASES[MISTAKES[index].case][0]) != "", MISTAKES[index]


# ---- what is refused and listed -------------------------------------------------------------------

SQUARE = from_linear(4096, 4096, 4096, "bf16")
INT8 = from_linear(512, 512, 512, "int8", dtype_d="int8")


@pytest.mark.parametrize(
    ("problem", "values", "arch", "words"),
    [
        (from_mm(512, 512, 512), {}, "gfx942", "matrix cores multiply fp16 in fp32, .*, not fp32 in fp32"),
        (from_mm(512, 512, 512, "tf32"), {}, "gfx942", "not fp32 in tf32"),
        (SQUARE, {}, "gfx1100", "gfx1100 has no mfma instruction for bf16"),
        (SQUARE, {}, "gfx1201", "gfx1201 has no mfma instruction for bf16"),
        (from_linear(64, 64, 64, "fp8_e4m3"), {}, "gfx942", "gfx942 has no mfma instruction for fp8_e4m3"),
        (from_linear(64, 64, 64, "fp8_e4m3_fnuz"), {}, "gfx950", "gfx950 has no mfma .* for fp8_e4m3_fnuz"),
        (from_linear(64, 64, 64, "fp8_e4m3_fnuz"), {}, "gfx90a", "gfx90a has no mfma .* for fp8_e4m3_fnuz"),
        (from_linear(64, 64, 64, "fp8_e4m3", dtype_b="fp8_e4m3_fnuz"), {}, "gfx950", "do not multiply"),
        (from_linear(64, 64, 64, "fp8_e4m3", scale_a="block_1x128"), {}, "gfx950",
         "our kernels have scales of tensors, rows and columns, not block_1x128"),
        (from_linear(64, 64, 64, "fp8_e4m3", scale_a="tensor", scale_dtype="fp8_e8m0"), {}, "gfx950",
         "our kernels have scales of fp32, not fp8_e8m0"),
        (SQUARE, {"warp_m": 128}, "gfx942", "tile_m 64 is no multiple of warp_m 128"),
        (SQUARE, {"warp_n": 128}, "gfx942", "tile_n 64 is no multiple of warp_n 128"),
        (INT8, {"tile_k": 32}, "gfx942", "tile_k is 64, 128 or 256 bytes of int8, not 32"),
        (SQUARE, {"tile_m": 256, "tile_n": 256}, "gfx942", "a block has 64 to 1024 threads, not 4096"),
        (SQUARE, {"tile_m": 256, "tile_n": 128, "warp_m": 64, "warp_n": 64, "tile_k": 128}, "gfx942",
         "98304 bytes of shared memory; gfx942 has 65536 for a block"),
        (SQUARE, {"tile_m": 128, "tile_n": 128, "warp_m": 128, "warp_n": 128}, "gfx942",
         "warp_m x warp_n is 256 sums of a lane; at most 128"),
        (SQUARE, {"tile_m": 128, "tile_k": 128, "warp_m": 128, "warp_n": 64}, "gfx942",
         "operands and sums take 320 registers; 64 threads have 224 each for them"),
        (SQUARE, {"instruction": 8}, "gfx942", "instruction must be one of 16, 32, not 8"),
        (SQUARE, {"stages": 3}, "gfx942", "stages must be one of 1, 2, not 3"),
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
        if arch.startswith("gfx9"):
            for kind in kinds:
                assert refusal(from_linear(64, 64, 64, kind), CHOSEN, arch) is None
    deep = {**CHOSEN, "tile_m": 256, "tile_n": 128, "warp_m": 64, "warp_n": 64, "tile_k": 128}
    assert refusal(SQUARE, deep, "gfx950") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("64, 64, 64, 128, 32, 16, 16, 1, 8", "whole wavefronts' parts"),
        ("64, 64, 64, 32, 48, 16, 16, 1, 8", "whole wavefronts' parts"),
        ("64, 64, 64, 32, 16, 32, 8, 1, 8", "whole instructions"),
        ("64, 64, 16, 32, 32, 16, 16, 1, 8", "lines of 4, 8 or 16 chunks"),
        ("64, 64, 256, 32, 32, 16, 16, 1, 8", "lines of 4, 8 or 16 chunks"),
        ("64, 64, 64, 32, 32, 16, 16, 3, 8", "one tile in shared memory, or two"),
        ("64, 64, 64, 32, 32, 16, 64, 1, 8", "instructions have 2 words"),
        ("64, 64, 64, 32, 32, 8, 16, 1, 8", "16 or 32 rows"),
        ("96, 64, 64, 32, 32, 16, 16, 1, 8", "tiles"),
    ],
)  # fmt: skip
def test_the_header_refuses_what_the_rules_do(text: str, words: str) -> None:
    types = ", ".join(["gemmtune::Half"] * 5)
    unit = (
        f'#include "{FAMILY.header}"\n'
        f"using Chosen = gemmtune::TileMfma<gemmtune::MatrixTypes<{types}>, true, true, true, true, false, "
        f"{text}>;\nconst int threads = Chosen::kThreads + Chosen::kSharedBytes;\n"
        "void use(const gemmtune::ScaledArgs& args, char* shared) { Chosen::run(args, shared); }"
    )
    command = ["g++", "-std=c++17", "-fsyntax-only", "-DGEMMTUNE_HOST", "-DGEMMTUNE_WARP=64", f"-I{HEADERS}"]
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input=unit, text=True, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert f"static assertion failed: {words}" in done.stderr or words in done.stderr


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_the_likeliest_fill_the_device_and_are_few(arch: str) -> None:
    for problem in (SQUARE, from_mm(4096, 512, 4096, "fp16"), from_linear(2049, 2049, 2049, "int8")):
        found = list(FAMILY.solutions(problem, environment(arch)))
        assert 20 <= len(found) <= 48
        for one in found[:8]:
            first = FAMILY.config(problem, one.parameters, arch_of(environment(arch)))
            assert first.blocks * first.splits >= 50
        assert {one.parameters["instruction"] for one in found} == {16, 32}
        assert len({one.parameters["tile_m"] for one in found}) > 1


def test_other_gpus_and_narrow_products_have_none() -> None:
    assert not list(FAMILY.solutions(SQUARE, environment("gfx1100")))
    assert not list(FAMILY.solutions(SQUARE, H200))
    assert not list(FAMILY.solutions(from_linear(4, 4096, 4096, "bf16"), environment("gfx942")))
    assert not FAMILY.supports(from_mm(64, 64, 64))
    assert FAMILY.supports(from_linear(64, 64, 64, "fp8_e5m2", dtype_b="fp8_e4m3"))


# ---- code -----------------------------------------------------------------------------------------


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "kind", "m", "instruction"),
    [
        ("gfx90a", "int8", 32, "v_mfma_i32_32x32x8i8"),
        ("gfx942", "bf16", 16, "v_mfma_f32_16x16x16_bf16"),
        ("gfx942", "fp8_e5m2_fnuz", 32, "v_mfma_f32_32x32x16_bf8_bf8"),
        ("gfx950", "bf16", 16, "v_mfma_f32_16x16x32_bf16"),
    ],
)  # fmt: skip
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, kind: str, m: int, instruction: str, cache: BinaryCache
) -> None:
    """Of the likeliest candidate with that instruction, for unaligned operands contiguous along k."""
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    problem = from_linear(1000, 999, 1001, kind)
    matrix_cores.check_code(FAMILY, arch, problem, {"instruction": m}, instruction, cache)


@pytest.mark.clang
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "kind", "instructions"),
    [
        ("gfx90a", "fp16", "v_mfma_f32_16x16x16f16 v_mfma_f32_32x32x8f16"),
        ("gfx90a", "bf16", "v_mfma_f32_16x16x16bf16_1k v_mfma_f32_32x32x8bf16_1k"),
        ("gfx90a", "int8", "v_mfma_i32_16x16x16i8 v_mfma_i32_32x32x8i8"),
        ("gfx942", "fp16", "v_mfma_f32_16x16x16_f16 v_mfma_f32_32x32x8_f16"),
        ("gfx942", "int8", "v_mfma_i32_16x16x32_i8 v_mfma_i32_32x32x16_i8"),
        ("gfx942", "fp8_e4m3_fnuz", "v_mfma_f32_16x16x32_fp8_fp8 v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx950", "fp16", "v_mfma_f32_16x16x32_f16 v_mfma_f32_32x32x16_f16"),
        ("gfx950", "int8", "v_mfma_i32_16x16x64_i8 v_mfma_i32_32x32x32_i8"),
        ("gfx950", "fp8_e4m3", "v_mfma_f32_16x16x32_fp8_fp8 v_mfma_f32_32x32x16_fp8_fp8"),
    ],
)  # fmt: skip
def test_code_of_every_type(arch: str, kind: str, instructions: str, cache: BinaryCache) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    for m, instruction in zip((16, 32), instructions.split(), strict=True):
        for problem in (from_linear(4096, 4096, 4096, kind), from_mm(1000, 999, 1001, kind)):
            matrix_cores.check_code(FAMILY, arch, problem, {"instruction": m}, instruction, cache)


@pytest.mark.clang
@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_no_candidate_spills(arch: str, cache: BinaryCache) -> None:
    matrix_cores.check_spills(FAMILY, arch, cache)
