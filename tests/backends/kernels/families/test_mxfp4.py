"""MXFP4 on the host, in each family that dequantises: every code times every scale, exactly; sizes whose rows
of scales start anywhere; a scale that is NaN; planted mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from backends.dtypes import E2M1
from backends.kernels.families import FAMILIES
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.quantisation import packed
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import Built, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import OF_WARP, SM_90
from tests.backends.weight_samples import mxfp4
from tuners.inputs import Case
from tuners.verify import Verifier

Array = npt.NDArray[Any]
RING: dict[str, Parameter] = {
    "rows": 16, "tile_k": 128, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1
}  # fmt: skip
#: Family -> a configuration of it.
CHOSEN: dict[str, dict[str, Parameter]] = {
    "dequant-gemv": {"rows": 2, "unroll": 2, "warps": 2, "splits": 1},
    "dequant-ring": RING,
    "dequant-wgmma": {**RING, "warps_m": 4},
}
#: Bytes of a scale that are not NaN.
SCALES = 255


def one(name: str, problem: GemmProblem, tmp_path: Path, headers: Path | None = None) -> Built:
    config = FAMILIES[name].config(problem, CHOSEN[name], SM_90)
    return build([config], tmp_path, 32, *([headers] if headers else []))[0]


def product(built: Built, given: dict[str, Array]) -> Array:
    """D [columns, rows] of operands in the order of memory."""
    problem, device = built.found.product.problem, HostDevice()
    shapes = layouts(problem)
    buffers = {name: device.allocate(shape.bytes) for name, shape in shapes.items()}
    for name, values in given.items():
        buffers[name].upload(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
    workspace = device.allocate(max(1, built.found.workspace_bytes))
    at = {name: buffer.address for name, buffer in buffers.items()}
    HostKernel(built, False).bind(Operands.at(at, problem.scalars), workspace.address)()
    d = buffers["d"].download(0, shapes["d"].bytes).view(shapes["d"].dtype.storage)
    return d.reshape(problem.n, problem.m)


#: Where the eight columns' only element is: in each half of a byte, and in every lane's part of a group.
PLACES = [0, 5, 10, 15, 16, 21, 26, 31]


@pytest.mark.parametrize("name", CHOSEN)
def test_every_code_times_every_scale_is_exact(name: str, tmp_path: Path) -> None:
    """An fp32 product of one element, rounded once where a sum of fp32 is: scales beyond the range of 16
    bits, and numbers that are subnormal in fp32, among them."""
    rows = 2 * SCALES
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (rows, 32))
    for column, place in enumerate(PLACES):
        codes[:, place] = column + 8 * (np.arange(rows) // SCALES)
    scales = (np.arange(rows) % SCALES).astype(np.uint8)
    weights = packed(np.array(E2M1)[codes], "fp4_e2m1")
    number = np.array(E2M1)[codes[:, PLACES]] * 2.0 ** (scales.astype(np.float64) - 127)[:, None]
    problems = [mxfp4(len(PLACES), rows, 32, dtype_a=kind, dtype_d="fp32") for kind in ("bf16", "fp16")]
    found = [FAMILIES[name].config(problem, CHOSEN[name], SM_90) for problem in problems]
    assert {
        (int(c), int(s)) for c, s in zip(codes[:, PLACES].T.ravel(), np.tile(scales, 8), strict=True)
    } == {(code, scale) for code in range(16) for scale in range(SCALES)}
    for built, storage in zip(build(found, tmp_path), (ml_dtypes.bfloat16, np.float16), strict=True):
        for x in (1.0, 2.0**-8, 3 * 2.0**6):
            inputs = np.zeros((len(PLACES), 32), storage)
            inputs[np.arange(len(PLACES)), PLACES] = x
            d = product(built, {"a": weights, "scale_a": scales, "b": inputs})
            with np.errstate(over="ignore"):
                want = (number * x).astype(np.float32).T
            assert np.array_equal(d, want), (storage, x)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_scale_that_is_nan_makes_its_row_nan(name: str, tmp_path: Path) -> None:
    """And no other row, whatever the elements: here they are zero. A row's first scale may lie in the word of
    the last one of the row before it."""
    problem = mxfp4(3, 41, 160)
    scales = np.full((41, 5), 127, np.uint8)
    scales[17, 3] = scales[26, 0] = 255
    weights, inputs = np.zeros((41, 80), np.uint8), np.ones((3, 160), ml_dtypes.bfloat16)
    d = product(one(name, problem, tmp_path), {"a": weights, "scale_a": scales, "b": inputs}).astype(
        np.float32
    )
    rows_of_nan = np.isin(np.arange(41), (17, 26))
    assert np.array_equal(np.isnan(d), np.tile(rows_of_nan, (3, 1)))
    assert not d[:, ~rows_of_nan].any()


#: Rows of 1, 3, 5, 9 and 90 scales (gpt-oss's 2880), of which the last ends within a word; k that ends inside
#: a chunk.
SHAPES = [
    mxfp4(1, 41, 32), mxfp4(2, 37, 96, bias="bf16"), mxfp4(5, 133, 160, dtype_a="fp16", activation="silu"),
    mxfp4(7, 39, 288, beta=1.0), mxfp4(4, 35, 2880), mxfp4(8, 40, 512, dtype_a="fp16", dtype_d="fp32"),
    mxfp4(3, 40, 512, lda=520, ldb=544),
]  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_rows_of_scales_start_anywhere(name: str, tmp_path: Path) -> None:
    """Nothing is read beyond the last scale, and nothing is written beside D."""
    more = [] if name == "dequant-gemv" else [mxfp4(17, 39, 288), mxfp4(33, 130, 1120, dtype_a="fp16")]
    problems = [*SHAPES, *more]
    found = [FAMILIES[name].config(problem, CHOSEN[name], SM_90) for problem in problems]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for built, problem in zip(build(found, tmp_path), problems, strict=True):
        for other_way in (False, True):
            finding = verifier.check(
                HostKernel(built, other_way), Case(problem, 3, "normal", "exact"), runs=1
            )
            assert finding.wrong == "", (problem.slug, finding.wrong)


def test_warps_of_64(tmp_path: Path) -> None:
    family, verifier = FAMILIES["dequant-gemv"], Verifier(HostDevice())  # type: ignore[arg-type]
    found = [family.config(problem, CHOSEN["dequant-gemv"], OF_WARP[64]) for problem in SHAPES]
    for built, problem in zip(build(found, tmp_path, 64), SHAPES, strict=True):
        assert not verifier.check(HostKernel(built, False), Case(problem, 3, "normal", "exact"), runs=1).wrong


RINGS, WGMMA, GEMV = "dequant-ring", "dequant-wgmma", "dequant-gemv"
#: What is mistaken -> a family, the header, its text, what stands there instead.
MISTAKES = {
    "an exponent in another place": (RINGS, "device/dequantise.h", "? 6 : 3;", "? 5 : 3;"),
    "no sign": (RINGS, "device/dequantise.h", "top[i] & 0x80008000u", "top[i] & 0x00008000u"),
    "another power": (RINGS, "device/dequantise.h", "? 0x7e807e80u", "? 0x7e007e00u"),
    "the odd element first": (RINGS, "device/dequantise.h", "even = word << 4;", "even = word;"),
    "a bias of 126": (
        RINGS, "device/dequantise.h", "as_float(bits << 23 | more)", "as_float((bits + 1) << 23 | more)",
    ),
    "another lane's four bytes": (
        RINGS, "device/dequant_chunk.h", "kWeightBytes + member * 4", "kWeightBytes + (member ^ 1) * 4",
    ),
    "lines in each other's places": (
        RINGS, "device/dequant_chunk.h", "step ^ spread<kWeightBytes>(group)",
        "step ^ spread<kWeightBytes>(group ^ 2)",
    ),
    "scales from a word's first byte": (
        RINGS, "device/dequant_chunk.h", "group * groups & 3", "group * groups * 0 & 3",
    ),
    "the scale of the upper rows": (
        RINGS, "device/dequant_tiles.h", "factor[t][i / 2] * own", "factor[t][0] * own",
    ),
    "a word of scales too few": (
        RINGS, "device/line_copies.h", "(begin - whole) + there", "(begin - whole) * 0 + there",
    ),
    "a group's sums added to the next": (
        WGMMA, "device/dequant_together.h", "factor[on][i / 2] * part", "factor[1 - on][i / 2] * part",
    ),
    "weights that are not waited for": (
        WGMMA, "device/dequant_together.h", "group + 1 : 0, 1 - on)", "group + 1 : 0, on)",
    ),
    "another lane's byte": (
        WGMMA, "device/dequant_chunk.h", "0x4000u + static_cast", "0x5010u + static_cast",
    ),
    "a sign that spreads": (GEMV, "families/dequant_gemv.h", "& 0x81c00000u", "& 0x83c00000u"),
    "half the power": (GEMV, "families/dequant_gemv.h", "as_float(253u << 23)", "as_float(252u << 23)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str, tmp_path: Path) -> None:
    name, header, text, other = MISTAKES[mistake]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, other))
    problem = mxfp4(5, 41, 288)
    assert wrong_of(one(name, problem, tmp_path, tmp_path / "headers"), problem)
