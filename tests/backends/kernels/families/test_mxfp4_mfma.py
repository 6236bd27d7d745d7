"""mxfp4-mfma on the emulator: sizes, lines of scales that start anywhere, slices of k, epilogues; every code
and a scale that is NaN; planted mistakes; rules; candidates; code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.kernels.family import Values
from backends.problem import GemmProblem
from backends.toolchains import clang
from backends.toolchains.clang import Clang
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels import matrix_cores
from tests.backends.kernels.emulator.host import build, copied_headers
from tests.backends.kernels.families.test_mxfp4 import product
from tests.backends.kernels.matrix_cores import environment, findings, wrong_of
from tests.backends.kernels.mx_codes import COLUMNS, beyond_fp32, every_code
from tests.backends.weight_samples import mx_product, mxfp4

FAMILY = FAMILIES["mxfp4-mfma"]
SMALL: Values = {
    "tile_m": 64, "tile_n": 32, "tile_k": 128, "warp_m": 32, "warp_n": 32, "instruction": 16, "stages": 1,
    "splits": 1, "group": 1,
}  # fmt: skip
CHOSEN: tuple[Values, ...] = (
    SMALL,
    {**SMALL, "instruction": 32, "stages": 2},
    {**SMALL, "tile_k": 256, "tile_n": 64, "warp_n": 64, "splits": 3, "group": 8},
    {**SMALL, "tile_k": 512, "tile_m": 128, "warp_m": 64, "instruction": 32, "splits": 2},
)
PROBLEMS = (
    mx_product(1, 41, 32), mx_product(37, 35, 96, bias="bf16"), mx_product(33, 133, 160, activation="silu"),
    mx_product(70, 39, 288, beta=1.0, alpha=2.0), mx_product(4, 35, 2880),
    mx_product(40, 70, 512, dtype_d="fp32"), mx_product(3, 40, 512, dtype_d="fp16", lda=544, ldb=576),
    mx_product(130, 130, 1120, dtype_d="fp16"),
)  # fmt: skip


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("values", CHOSEN, ids=lambda v: f"{v['instruction']}-{v['tile_k']}-{v['splits']}")
def test_every_shape_is_right(values: Values, arch: str, tmp_path: Path) -> None:
    """Nothing is read beyond the last scale, and nothing is written beside D."""
    assert findings(FAMILY, arch, [(problem, values) for problem in PROBLEMS], tmp_path) == []


@pytest.mark.parametrize("values", CHOSEN[:2], ids=lambda v: f"{v['instruction']}")
def test_every_code_times_every_code_is_exact(values: Values, tmp_path: Path) -> None:
    """Under every scale of the weights, of which one is NaN."""
    problem, given, want = every_code(256)
    built = build([FAMILY.config(problem, values, GPU_ARCHS["gfx942"])], tmp_path, 64)[0]
    assert np.array_equal(product(built, given), want, equal_nan=True)
    assert np.array_equal(np.isnan(want), np.tile(np.arange(256) == 255, (COLUMNS, 1)))


def test_scales_whose_product_is_beyond_fp32(tmp_path: Path) -> None:
    """From 2^130 on the least sum but zero is infinite, and zero is NaN; below, both are what they are."""
    built = build([FAMILY.config(beyond_fp32(0)[0], SMALL, GPU_ARCHS["gfx942"])], tmp_path, 64)[0]
    for power, least, zero in ((129, 2.0**127, 0.0), (130, np.inf, np.nan), (254, np.inf, np.nan)):
        want = np.array([[least, zero], [zero, zero]], np.float32)
        assert np.array_equal(product(built, beyond_fp32(power)[1]), want, equal_nan=True), power


HEADER = "families/mxfp4_mfma.h"
#: What is mistaken -> its text, what stands there instead.
MISTAKES = {
    "another magnitude": ("0x0c080604u, 0x03020100u", "0x0c080504u, 0x03020100u"),
    "another negative number": ("0xf4f8fafcu, 0xfdfeff00u", "0xf4f8fafcu, 0xfdffff00u"),
    "no sign": ("* 0xffu", "* 0u"),
    "the scale of the neighbouring group": ("scale_of(of_columns[n], of)", "scale_of(of_columns[n], of ^ 1)"),
    "another row's scale": ("scale_of(of_rows[m][e], of)", "scale_of(of_rows[m][0], of)"),
    "a group in another's place": ("convert(of_b, of, columns)", "convert(of_b, of ^ 1, columns)"),
    "another power": ("0.25f * scale_of", "0.5f * scale_of"),
    "the tile before": ("group += BK / 16;", "group += 0;"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str, tmp_path: Path) -> None:
    text, other = MISTAKES[mistake]
    path = copied_headers(tmp_path / "headers") / HEADER
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, other))
    problem = mx_product(37, 41, 288)
    config = FAMILY.config(problem, SMALL, GPU_ARCHS["gfx942"])
    assert wrong_of(build([config], tmp_path, 64, tmp_path / "headers")[0], problem)


def test_what_it_does_not_take_is_refused() -> None:
    def rule(problem: GemmProblem, arch: str = "gfx950", **values: Any) -> str:
        return str(matrix_cores.refusal(FAMILY, problem, {**SMALL, **values}, arch))

    both = mx_product(64, 64, 256)
    assert "multiply MXFP4 by MXFP4, not fp4_e2m1 x bf16" in rule(mxfp4(64, 64, 256))
    assert "must start at multiples of 16 bytes" in rule(replace(both, lda=258))
    for arch in ("gfx90a", "gfx1201"):
        assert "has no MFMA of int8 of which a lane has 8 elements" in rule(both, arch)
    assert rule(both) == "None"


def test_it_lists_candidates_of_few_and_of_many_columns() -> None:
    for problem in (mx_product(1, 4096, 4096), mx_product(16, 7168, 2048), mx_product(4096, 4096, 4096)):
        found = list(FAMILY.solutions(problem, environment("gfx950")))
        assert len(found) > 10
        assert found[-1].parameters["group"] == 1


@pytest.mark.clang
@pytest.mark.skipif(clang.missing() is not None, reason=str(clang.missing()))
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_instructions_are_those_of_int8(arch: str, tmp_path: Path) -> None:
    for values, name in ((SMALL, "16x16x32"), (CHOSEN[1], "32x32x16")):
        unit = FAMILY.config(mx_product(64, 64, 256), values, GPU_ARCHS[arch]).unit
        found = Clang().compile(CompileUnit(unit, arch), BinaryCache(tmp_path))
        assert found.stat().st_size, name
