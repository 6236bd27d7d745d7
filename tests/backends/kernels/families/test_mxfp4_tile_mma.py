"""Products of two MXFP4 operands on the host: every code times every code and every scale, exactly; lines of
scales that start anywhere; a scale that is NaN; planted mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.family import Values
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_mxfp4 import product
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.mx_codes import beyond_fp32, every_code
from tests.backends.kernels.samples import SM_90
from tests.backends.weight_samples import mx_product, mxfp4
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["mxfp4-tile-mma"]
SMALL: Values = {
    "tile_m": 64, "tile_n": 32, "tile_k": 128, "warp_m": 32, "warp_n": 32, "elements": "fp16", "stages": 2,
    "group": 1, "splits": 1,
}  # fmt: skip
CHOSEN: tuple[Values, ...] = (
    SMALL,
    {**SMALL, "elements": "int8"},
    {**SMALL, "elements": "int8", "tile_k": 256, "stages": 3, "splits": 2},
    {**SMALL, "tile_m": 128, "tile_n": 64, "warp_m": 64, "splits": 3, "group": 8},
    {**SMALL, "tile_m": 32, "tile_n": 128, "warp_n": 64, "elements": "int8", "stages": 4},
)


@pytest.mark.parametrize("values", CHOSEN[:3], ids=lambda v: f"{v['elements']}-{v['tile_k']}")
def test_every_code_times_every_code_is_exact(values: Values, tmp_path: Path) -> None:
    """Under every scale of the weights that is a number."""
    problem, given, want = every_code(255)
    built = build([FAMILY.config(problem, values, SM_90)], tmp_path)[0]
    assert np.array_equal(product(built, given), want)


@pytest.mark.parametrize("elements", ["fp16", "int8"])
def test_a_scale_that_is_nan_makes_its_row_nan(elements: str, tmp_path: Path) -> None:
    """And no other row or column, whatever the elements: here they are zero."""
    problem = mx_product(37, 41, 160, dtype_d="fp32")
    of_w, of_x = np.full((41, 5), 127, np.uint8), np.full((37, 5), 127, np.uint8)
    of_w[17, 3] = of_w[26, 0] = of_x[36, 4] = 255
    given = {
        "a": np.zeros((41, 80), np.uint8),
        "b": np.zeros((37, 80), np.uint8),
        "scale_a": of_w,
        "scale_b": of_x,
    }
    built = build([FAMILY.config(problem, {**SMALL, "elements": elements}, SM_90)], tmp_path)[0]
    d = product(built, given)
    wanted = np.zeros((37, 41), bool)
    wanted[:, [17, 26]] = wanted[36] = True
    assert np.array_equal(np.isnan(d), wanted)
    assert not d[~wanted].any()


@pytest.mark.parametrize("elements", ["fp16", "int8"])
def test_scales_whose_product_is_beyond_fp32(elements: str, tmp_path: Path) -> None:
    """From 2^130 on the least sum but zero is infinite, and zero is NaN; below, both are what they are."""
    built = build([FAMILY.config(beyond_fp32(0)[0], {**SMALL, "elements": elements}, SM_90)], tmp_path)[0]
    for power, least, zero in ((129, 2.0**127, 0.0), (130, np.inf, np.nan), (254, np.inf, np.nan)):
        want = np.array([[least, zero], [zero, zero]], np.float32)
        assert np.array_equal(product(built, beyond_fp32(power)[1]), want, equal_nan=True), power


#: Lines of 1, 3, 5, 8 and 90 scales; k that ends inside a tile, and inside two groups; padded lines;
#: epilogues.
PROBLEMS = (
    mx_product(1, 41, 32), mx_product(37, 35, 96, bias="bf16"), mx_product(33, 133, 160, activation="silu"),
    mx_product(70, 39, 288, beta=1.0, alpha=2.0), mx_product(4, 35, 2880),
    mx_product(40, 70, 512, dtype_d="fp32"),
    mx_product(3, 40, 512, dtype_d="fp16", lda=544, ldb=576), mx_product(130, 130, 1120, dtype_d="fp16"),
    mx_product(40, 48, 1024, alignment=16, dtype_d="fp32", bias="fp32", activation="gelu"),
)  # fmt: skip


@pytest.mark.parametrize("values", CHOSEN, ids=lambda v: f"{v['elements']}-{v['tile_m']}-{v['splits']}")
def test_every_shape_is_right(values: Values, tmp_path: Path) -> None:
    """Nothing is read beyond the last scale, and nothing is written beside D."""
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    found = [FAMILY.config(problem, values, SM_90) for problem in PROBLEMS]
    for built, problem in zip(build(found, tmp_path), PROBLEMS, strict=True):
        for other_way in (False, True):
            finding = verifier.check(
                HostKernel(built, other_way), Case(problem, 3, "normal", "exact"), runs=1
            )
            assert finding.wrong == "", (problem.slug, finding.wrong)


PAIRS, SCALES, TILE = "device/mx_pairs.h", "device/mx_scales.h", "families/mxfp4_tile_mma.h"
#: What is mistaken -> the elements, the header, its text, what stands there instead.
MISTAKES = {
    "an exponent in another place": ("fp16", PAIRS, "word >> 3 & kRest", "word >> 2 & kRest"),
    "no sign": ("fp16", PAIRS, "kSigns = 0x80008000u", "kSigns = 0x00008000u"),
    "another power": ("fp16", PAIRS, "kPower = 0x78007800u", "kPower = 0x74007400u"),
    "nibbles of one operand swapped": (
        "fp16", TILE, "PAIRS::eight(b[n / 2][n % 2 * 2 + half])",
        "PAIRS::eight((b[n / 2][n % 2 * 2 + half] & 0x0f0f0f0fu) << 4 | "
        "(b[n / 2][n % 2 * 2 + half] >> 4 & 0x0f0f0f0fu))",
    ),
    "another magnitude": ("int8", PAIRS, "0x03020100u, 0x0c080604u", "0x03020100u, 0x0c080504u"),
    "another negative number": ("int8", PAIRS, "0xfdfeff00u", "0xfdfeff01u"),
    "signs of the even elements": ("int8", PAIRS, "negative >> 16", "negative"),
    "the scale of the neighbouring group": ("int8", TILE, "of = number % 4", "of = number % 4 ^ 1"),
    "the upper rows' scale": ("fp16", TILE, "of_row[m][e / 2]", "of_row[m][0]"),
    "scales of columns exchanged": ("fp16", TILE, "of_column[e % 2]", "of_column[1 - e % 2]"),
    "the next tile's scales": ("fp16", TILE, "{ load(tile); }", "{ load(tile + 1); }"),
    "groups in each other's places": (
        "fp16", TILE, "a[at / 2][half * 2 + at % 2]", "a[at / 2][2 - half * 2 + at % 2]",
    ),
    "a scale too few": ("fp16", SCALES, "there && group + i < groups", "there && group + i + 1 < groups"),
    "a bias of 126": (
        "int8", "device/dequantise.h", "as_float(bits << 23 | more)", "as_float((bits + 1) << 23 | more)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str, tmp_path: Path) -> None:
    elements, header, text, other = MISTAKES[mistake]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, other))
    problem = mx_product(37, 41, 288)
    config = FAMILY.config(problem, {**SMALL, "elements": elements}, SM_90)
    assert wrong_of(build([config], tmp_path, 32, tmp_path / "headers")[0], problem)


def test_what_it_does_not_take_is_refused() -> None:
    def rule(problem: GemmProblem, environment: Environment = H200, **values: Parameter) -> str:
        return str(FAMILY.illegal(problem, Solution(FAMILY.name, 1, {**SMALL, **values}), environment))

    assert "multiply MXFP4 by MXFP4, not fp4_e2m1 x bf16" in rule(mxfp4(64, 64, 256))
    assert "must start at multiples of 16 bytes" in rule(mx_product(64, 64, 256, lda=258))
    assert "must start at multiples of 16 bytes" in rule(mx_product(64, 64, 256, alignment=8))
    assert "multiple of warp_m" in rule(mx_product(64, 64, 256), tile_m=32, warp_m=64)
    assert rule(mx_product(64, 64, 256), elements="bf16") != "None"
    assert rule(mx_product(64, 64, 256)) == "None"


def test_what_compilers_spill_is_refused() -> None:
    """Warps of 2048 elements of D with the scales of 256 elements of k, and columns of fp16 beside them."""

    def rule(warp_m: int, warp_n: int, tile_k: int, elements: str) -> str:
        values: dict[str, Parameter] = {"tile_m": 128, "tile_n": 64, "stages": 2, "group": 1, "splits": 1}
        values |= {"warp_m": warp_m, "warp_n": warp_n, "tile_k": tile_k, "elements": elements}
        found = Solution(FAMILY.name, 1, values)
        return str(FAMILY.illegal(mx_product(512, 512, 4096), found, H200))

    for elements in ("fp16", "int8"):
        assert rule(64, 32, 256, elements) == "warps of 64 x 32 have tile_k 128: scales of more would spill"
        assert "warps of 32 x 64 have tile_k 128" in rule(32, 64, 256, elements)
        assert rule(64, 32, 128, elements) == "None"
        assert rule(32, 32, 256, elements) == "None"
    assert rule(32, 64, 128, "fp16") == "warps of 32 x 64 multiply int8: columns of fp16 would spill"
    assert rule(32, 64, 128, "int8") == "None"


def test_it_lists_candidates_of_few_and_of_many_columns() -> None:
    for problem in (mx_product(1, 4096, 4096), mx_product(16, 7168, 2048), mx_product(4096, 4096, 4096)):
        found = list(FAMILY.solutions(problem, H200))
        assert len(found) > 20
        assert {one.parameters["elements"] for one in found} == {"fp16", "int8"}
        assert found[-1].parameters["group"] == 1
