"""dequant-mma on the host: every storage type that it takes, columns, slices of k, planted mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.families.dequant_mma import DequantMma
from backends.problem import GemmProblem
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-mma"]
CHOSEN: dict[str, Parameter] = {
    "row_tiles": 1, "unroll": 2, "warps_m": 1, "warps_k": 2, "splits": 1, "ahead": 1,
}  # fmt: skip
UNROLLS = (2, 1, 4, 8)
#: Few columns and many, rows that are no whole tile, a k that ends within a step and within a warp's turn.
PROBLEMS: list[GemmProblem] = [
    one
    for one in (
        *every_kind(1, 40, 1152), *every_kind(3, 40, 4224, dtype_a="fp16", scale_dtype="fp32"),
        *every_kind(2, 40, 2048), *every_kind(12, 24, 2048, dtype_a="fp16", scale_dtype="fp16"),
        weights(8, 21, 2176, zero_b="eight", bias="bf16", activation="silu"),
        weights(16, 40, 1152, zero_b="uint4", bias="bf16"),
        weights(11, 72, 2176, zero_b="shift"), weights(9, 40, 640, zero_b="float", dtype_a="fp16"),
        weights(5, 40, 48, "int8", scale_b="outer", beta=1.0, dtype_d="fp32"),
        weights(2, 40, 640, "int4", scale_b="outer", ldb=672, lda=680),
    )
    if FAMILY.supports(one)
]  # fmt: skip


def test_every_kind_is_right(tmp_path: Path) -> None:
    found = [
        FAMILY.config(
            p,
            {
                **CHOSEN,
                "row_tiles": 1 + number % 2,
                "splits": 1 + number % 3 // 2,
                "warps_m": 1 + number // 2 % 2,
                "unroll": UNROLLS[number % len(UNROLLS)],
            },
            SM_90,
        )
        for number, p in enumerate(PROBLEMS)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path), PROBLEMS, strict=True):
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (one.found.instantiation, problem.zero_a, problem.scale_a)


def test_scales_are_read_at_once_and_one_by_one() -> None:
    """Of every zero point that is stored, by both ways."""
    assert isinstance(FAMILY, DequantMma)
    ways = set()
    for number, p in enumerate(PROBLEMS):
        values = {**CHOSEN, "unroll": UNROLLS[number % len(UNROLLS)]}
        ways.add((p.zero_a, ", true, true>" in FAMILY.config(p, values, SM_90).instantiation))
    assert ways >= {(zero, whole) for zero in ("eight", "uint4", "none") for whole in (False, True)}


def test_every_stored_form_with_whole_steps_is_taken() -> None:
    kinds = {(p.dtype_a, p.zero_a, p.scale_a) for p in PROBLEMS}
    assert {kind for kind, *_ in kinds} == {"uint4", "int4", "int8", "fp8_e4m3"}
    assert {zero for _, zero, _ in kinds} >= {"none", "eight", "uint4", "float", "shift"}
    for small in (weights(1, 40, 1152, "int4", scale_b="block_1x32"), mxfp4(1, 40, 1152)):
        assert "steps of 128 are of one group" in str(FAMILY.unsupported(small))


def test_what_is_listed() -> None:
    """The first loads of enough warps are on their way at once."""
    for m, n, k in ((1, 4096, 4096), (8, 28672, 4096), (16, 4096, 14336)):
        listed = list(FAMILY.candidates(weights(m, n, k), H200))
        assert 20 < len(listed) <= 128
        assert listed[0]["ahead"] == 0
    assert not list(FAMILY.candidates(weights(17, 4096, 4096), H200))


MISTAKES = {
    "a zero point of the next row": ("% 8 * 4 & 15u", "% 7 * 4 & 15u", "uint4"),
    "the scales of another turn": ("(from + first);", "(from + first / 4 * 2);", "eight"),
    "no sum of activations": ("own -= offset * inputs[c][i];", "own -= offset;", "eight"),
    "another power of two": ("kFolded ? kPower +", "kFolded ? kPower + 1.0f +", "eight"),
    "rows of a tile exchanged": ("{w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]}",
                                 "{w[1][i], w[0][i], w[1][i + 1], w[0][i + 1]}", "eight"),
    "a step that is left out": ("at + u, mine.end, mask,", "at + 2 * u, mine.end, mask,", "eight"),
    "neighbouring columns exchanged": ("parts[warp_k * kPart + j * kPitch + r] =",
                                       "parts[warp_k * kPart + (j ^ 1) * kPitch + r] =", "eight"),
    "activations of the first tile of columns": ("const int column = c * 8",
                                                 "const int column = 0 * c", "eight"),
    "no zero point that is a float": ("offset += widen(", "offset += 0.0f * widen(", "float"),
    "no shift": ("+= added * inputs[c][i];", "+= 0.0f * inputs[c][i];", "shift"),
    "sums of the first warp alone": ("part < WARPS_K; ++part", "part < 1; ++part", "eight"),
    "activations in the order of memory": ("paired(read.at, x);",
                                           "for (int i = 0; i < 4; ++i) x[i] = read.at[i];", "eight"),
    "every other turn": ("at += WARPS_K * UNROLL)", "at += 2 * WARPS_K * UNROLL)", "eight"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    text, mistake, zero = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / FAMILY.header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    problem = weights(11, 40, 2048, zero_b=zero)
    (tmp_path / "right").mkdir()
    (right,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path / "right")
    assert not wrong_of(right, problem)
    (one,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)
