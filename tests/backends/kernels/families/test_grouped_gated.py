"""Grouped products with swiglu on the host: halves of any size, groups without rows, tiles that reach beyond
D, clusters; planted mistakes; what is refused; code for devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.kernels.matrix_core_tile import MatrixCoreFamily
from backends.kernels.tensor_map import LINE_BYTES
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.toolchains import clang
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_grouped import CHOSEN, NAMES, WGMMA
from tests.backends.kernels.families.test_grouped_matrix_core import CHOSEN as CHOSEN_MFMA
from tests.backends.kernels.families.test_grouped_matrix_core import MFMA, OF
from tests.backends.kernels.matrix_cores import Mistake, environment, findings, wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier


def gated(m: int, n: int, k: int, dtype: str = "bf16", **more: Any) -> GemmProblem:
    """A grouped product with swiglu of m rows by [groups, n, k]."""
    return from_linear(m, n, k, dtype, activation="swiglu", **more)


SHAPES: dict[str, GemmProblem] = {
    "one row": gated(1, 40, 264, groups=3),
    "two of eight": gated(2, 130, 512, groups=8, routing="skewed"),
    "some without rows": gated(83, 72, 136, groups=6, routing=[0, 70, 0, 1, 12, 0]),
    "one group": gated(33, 96, 192, "fp16", groups=1),
    "a row of D": gated(20, 2, 72, groups=5),
    "odd halves": gated(90, 38, 72, "fp16", groups=40, dtype_d="fp32"),
    "padded rows": gated(31, 50, 200, groups=4, ldb=216, lda=208, ldd=37),
    "groups apart": gated(31, 48, 200, groups=4, stride_b=200 * 53),
}


def check(found: list[Any], problem: GemmProblem, folder: Path) -> None:
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, folder, 32):
        for other_way, units in ((False, 1), (True, 100)):
            kernel = HostKernel(one, other_way, units)
            finding = verifier.check(kernel, Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, units, finding.wrong)


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, family: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILIES[family], problem, H200, 3, len(name))
    assert sample
    check([FAMILIES[family].config(problem, values, SM_90) for values in sample], problem, tmp_path)


SKEWED = gated(60, 136, 264, groups=6, routing=[0, 41, 0, 1, 18, 0])


@pytest.mark.parametrize("rows", [72, 130, 200])
def test_clusters_share_columns(rows: int, tmp_path: Path) -> None:
    """Also where the last block of a cluster has no rows."""
    problem = gated(60, rows, 264, groups=6, routing=[0, 41, 0, 1, 18, 0])
    found = [
        FAMILIES["grouped-wgmma"].config(
            problem, {**WGMMA, "tile_n": columns, "stages": stages, "cluster": 2}, SM_90
        )
        for columns, stages in ((16, 2), (48, 4))
    ]
    check(found, problem, tmp_path)


def test_boxes_have_lines_of_both_halves_in_turn() -> None:
    """One box for a tile's gates and ups: dimensions k, the halves, the lines of all groups' gates."""
    problem = gated(31, 48, 200, groups=4, ldb=208, stride_b=208 * 53)
    config = FAMILIES["grouped-wgmma"].config(problem, {**WGMMA, "tile_m": 128}, SM_90)
    weights, rows = config.tensors
    assert weights.sizes == (200, 2, 3 * 53 + 24)
    assert weights.strides == (24 * 208 * 2, 208 * 2)
    assert weights.box == (LINE_BYTES // 2, 2, 64)
    assert (rows.sizes, rows.box) == ((200, 31, 1), (LINE_BYTES // 2, 16, 1))


# ---- mistakes ------------------------------------------------------------------------------------

_HEADER = "device/gated_rows.h"
#: What is mistaken -> the families, the header, its text, and what stands there instead.
MISTAKES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "gate and up exchanged": (NAMES, _HEADER, "activate(gate, kSilu) * up", "activate(up, kSilu) * gate"),
    "no activation": (NAMES, _HEADER, "activate(gate, kSilu) * up", "gate * up"),
    "nothing multiplied": (NAMES, _HEADER, "activate(gate, kSilu) * up", "activate(gate, kSilu) + 0.0f * up"),
    "another activation": (NAMES, _HEADER, "activate(gate, kSilu)", "activate(gate, kGelu)"),
    "the halves' lines exchanged": (
        ("grouped-ring", "grouped-tile"), _HEADER,
        "line % 2 * half", "(line + 1) % 2 * half",
    ),
    "both lines of the gate": (("grouped-ring", "grouped-tile"), _HEADER, "line % 2 * half", "0 * half"),
    "gates of the next group": (
        ("grouped-wgmma",), "families/grouped_wgmma.h",
        "at.group * lines + row / 2", "(at.group + 1) * lines + row / 2",
    ),
    "the first tile's rows": (
        ("grouped-wgmma",), "families/grouped_wgmma.h",
        "at.group * lines + row / 2", "at.group * lines + rank() * BM / 2",
    ),
    "a lane's own sums": (
        ("grouped-wgmma",), "families/grouped_wgmma.h", "odd ? low : high, 4", "odd ? high : low, 4",
    ),
    "rows of the other half of a patch": (
        ("grouped-wgmma",), "families/grouped_wgmma.h",
        "odd * 4 + group / 2", "(1 - odd) * 4 + group / 2",
    ),
    "a patch that is not yet written": (
        ("grouped-wgmma",), "families/grouped_wgmma.h",
        "warp_barrier();\n            const D* const from = patch + lane / 2 * kDown",
        "const D* const from = patch + lane / 2 * kDown",
    ),
    "rows as far apart as sums": (
        ("grouped-ring",), "families/grouped_ring.h", "d + at.row / 2)", "d + at.row)",
    ),
    "one team's sums": (
        ("grouped-ring",), "families/grouped_ring.h", "gate += from[0], up", "gate = from[0], up",
    ),
    "passes as far apart as lines": (
        ("grouped-tile",), "device/operand_tile.h", "(GATED ? kPass / 2 : kPass)", "kPass",
    ),
    "the first rows of a tile": (
        ("grouped-tile",), "families/grouped_tile.h",
        "args.d_column + part.i / 2", "args.d_column + 0 * part.i",
    ),
    "a step as long as lines": (
        ("grouped-ring",), "families/grouped_ring.h", "(GATED ? kOn / 2 : kOn)", "kOn",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "family"), [(name, family) for name, (families, *_) in MISTAKES.items() for family in families]
)
def test_a_mistake_shows(name: str, family: str, tmp_path: Path) -> None:
    _, header, right, wrong = MISTAKES[name]
    folder = copied_headers(tmp_path)
    text = (folder / header).read_text()
    assert right in text
    (folder / header).write_text(text.replace(right, wrong))
    (one,) = build([FAMILIES[family].config(SKEWED, CHOSEN[family], SM_90)], tmp_path, 32, folder)
    assert wrong_of(one, SKEWED) != ""


# ---- AMD -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_matrix_cores_compute_right(arch: str, tmp_path: Path) -> None:
    problems = [SHAPES["some without rows"], gated(35, 34, 71, "fp16", groups=4, routing=[0, 0, 34, 1])]
    found = [
        (problem, legal_values(OF[arch], problem, environment(arch), 1, seed)[0])
        for seed, problem in enumerate(problems)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["gfx90a", "gfx950", "gfx1100", "gfx942", "gfx1201"])
def test_every_kind_of_groups_on_matrix_cores(arch: str, tmp_path: Path) -> None:
    found = [
        (problem, values)
        for problem in SHAPES.values()
        for values in legal_values(OF[arch], problem, environment(arch), 2, 1)
    ]
    assert findings(OF[arch], arch, found, tmp_path) == []


_STAGED = ("device/staged_operand.h", "device/grouped_staged_tile.h", _HEADER)
MFMA_MISTAKES = (
    Mistake("(GATED ? line_ / 2 : line_)", "line_", "skewed"),
    Mistake("if (GATED) own_ += ", "if (false) own_ += ", "skewed"),
    Mistake("(GATED ? line / 2 : line) * step_ + p", "line * step_ + p", "skewed"),
    Mistake("(GATED ? line / 2 : line) * step_ + depth", "line * step_ + depth", "skewed"),
    Mistake("gated(sum[2], sum[3])", "gated(sum[3], sum[2])", "skewed"),
    Mistake("args.d) + i / 2 + j", "args.d) + i + j", "skewed"),
    Mistake("D* const to = d + row / 2 + column * apart", "D* const to = d + row + column * apart", "skewed"),
)


@pytest.mark.parametrize("index", range(len(MFMA_MISTAKES)))
def test_a_mistake_of_matrix_cores_shows(index: int, tmp_path: Path) -> None:
    mistake, folder = MFMA_MISTAKES[index], copied_headers(tmp_path)
    (header,) = (one for one in _STAGED if mistake.text in (folder / one).read_text())
    text = (folder / header).read_text()
    (folder / header).write_text(text.replace(mistake.text, mistake.wrong))
    arch = GPU_ARCHS["gfx942"]
    values = {**CHOSEN_MFMA, "tile_m": 128}
    (one,) = build([MFMA.config(SKEWED, values, arch)], tmp_path, arch.warp, folder)
    assert wrong_of(one, SKEWED) != ""


def test_halves_far_apart_have_offsets_of_64_bits() -> None:
    """32 bits reach up's rows from the gate's where the halves are less than 2 GiB apart."""
    near = gated(64, 2 * 4096, 4096, groups=2)
    far = gated(64, 2 * 4096, 4096, groups=2, ldb=2**18)
    plain = from_linear(64, 2 * 4096, 4096, "bf16", groups=2, ldb=2**18)
    assert isinstance(MFMA, MatrixCoreFamily)
    of = [MFMA.tile(one, CHOSEN_MFMA, GPU_ARCHS["gfx942"]).far for one in (near, far, plain)]
    assert of == [False, True, False]


# ---- what is refused, listed and compiled ----------------------------------------------------------


def test_what_is_refused() -> None:
    ring, wgmma = FAMILIES["grouped-ring"], FAMILIES["grouped-wgmma"]
    one = {**CHOSEN["grouped-ring"], "warps_m": 1, "tile_k": 256}
    assert "gated rows are pairs" in (ring.rule(SKEWED, one, H200) or "")
    assert ring.rule(replace(SKEWED, activation="none", ldc=136, ldd=136), one, H200) is None
    apart = replace(SKEWED, stride_a=SKEWED.stride_a + 8)
    assert "no multiple of 264" in (wgmma.rule(apart, CHOSEN["grouped-wgmma"], H200) or "")
    far = from_linear(64, 1 << 26, 8, "bf16", groups=40, activation="swiglu")
    assert "at most 2147483647" in (wgmma.rule(far, CHOSEN["grouped-wgmma"], H200) or "")
    near = from_linear(64, 1 << 26, 8, "bf16", groups=31, activation="swiglu")
    assert "2147483647" not in (wgmma.rule(near, CHOSEN["grouped-wgmma"], H200) or "")
    fused = TRITON_FAMILIES["triton-fused-moe"]
    assert "no activation" in (fused.unsupported(SKEWED) or "")


@pytest.mark.parametrize("family", NAMES)
def test_there_are_candidates(family: str) -> None:
    for rows in (8, 4096):
        problem = gated(rows, 1536, 2048, groups=128)
        listed = list(FAMILIES[family].candidates(problem, H200))
        assert listed or family == "grouped-tile"
        assert all(FAMILIES[family].rule(problem, values, H200) is None for values in listed)


@pytest.mark.parametrize("family", NAMES)
def test_it_compiles_for_a_device(family: str, tmp_path: Path) -> None:
    """One unit for every product of as many groups, and another without the activation."""
    nvrtc = Nvrtc()
    config = FAMILIES[family].config(SKEWED, CHOSEN[family], SM_90)
    assert config.unit == FAMILIES[family].config(SHAPES["two of eight"], CHOSEN[family], SM_90).unit
    plain = replace(SKEWED, activation="none", ldc=136, ldd=136)
    assert config.unit != FAMILIES[family].config(plain, CHOSEN[family], SM_90).unit
    if nvrtc.missing("sm_90") is not None:
        pytest.skip("NVRTC is not installed")
    unit = CompileUnit(config.unit, nvrtc.target("sm_90", family == "grouped-wgmma"))
    assert nvrtc.compile(unit, BinaryCache(tmp_path)).stat().st_size > 0


@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "values", "instruction"),
    [
        ("gfx942", {"instruction": 16}, "v_mfma_f32_16x16x16_bf16"),
        ("gfx1100", {}, "v_wmma_f32_16x16x16_bf16"),
        pytest.param(
            "gfx90a", {"instruction": 32}, "v_mfma_f32_32x32x8bf16_1k", marks=pytest.mark.exhaustive
        ),
        pytest.param("gfx1201", {}, "v_wmma_f32_16x16x16_bf16", marks=pytest.mark.exhaustive),
    ],
)
def test_code_has_the_instruction_and_spills_nothing(
    arch: str, values: dict[str, Any], instruction: str, cache: BinaryCache
) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    problem = gated(8192, 1536, 2048, groups=8)
    matrix_cores.check_code(OF[arch], arch, problem, values, instruction, cache)
