"""Weights of fp8_e4m3 on the host, in each family that dequantises: every code in every place, exactly; a
weight that is NaN; blocks of rows that share a scale; planted mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Parameter
from backends.toolchains import clang
from backends.toolchains.clang import Clang
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, Built, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_mxfp4 import product
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import OF_WARP, SM_90
from tests.backends.weight_samples import fp8
from tuners.inputs import Case
from tuners.verify import Verifier

Array = npt.NDArray[Any]
GEMV, RING, WGMMA, TILE = "dequant-gemv", "dequant-ring", "dequant-wgmma", "dequant-tile-mma"
MMA = "dequant-mma"
#: Of dequant-ring; the first warp's rows of a block end within a block of scales.
OF_RING: dict[str, Parameter] = {
    "rows": 48, "tile_k": 256, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1
}  # fmt: skip
#: Family -> a configuration of it, and the fewest and most columns of a test.
CHOSEN: dict[str, tuple[dict[str, Parameter], tuple[int, int]]] = {
    GEMV: ({"rows": 2, "unroll": 1, "warps": 2, "splits": 1}, (1, 8)),
    MMA: (
        {"row_tiles": 1, "unroll": 2, "warps_m": 1, "warps_k": 2, "splits": 1, "ahead": 0}, (1, 16),
    ),
    RING: (OF_RING, (1, 64)),
    WGMMA: ({**OF_RING, "rows": 16, "warps_m": 4}, (3, 64)),
    TILE: (
        {
            "tile_m": 64, "tile_n": 64, "tile_k": 64, "warp_m": 32, "warp_n": 32, "stages": 2, "group": 8,
            "splits": 1,
        },
        (33, 128),
    ),
    "dequant-tma-wgmma": (
        {
            "tile_m": 64, "teams": 1, "slots": 2, "stages": 4, "share": 1, "splits": 1, "blocks_per_unit": 1,
        },
        (3, 64),
    ),
    "dequant-tile-wgmma": (
        {
            "tile_m": 128, "tile_n": 64, "slots": 2, "stages": 3, "share": 1, "group": 8,
            "blocks_per_unit": 1, "persistent": 0,
        },
        (65, 128),
    ),
}  # fmt: skip
#: Families that take scales of blocks of every type. (A chunk of the others has one scale of a row, of which
#: only fp32 is a whole word.)
WITH_BLOCKS = (GEMV, MMA, RING, WGMMA, TILE)
#: Codes that are numbers, and the others.
NAN = (0x7F, 0xFF)
NUMBERS = np.array([code for code in range(256) if code not in NAN], np.uint8)


def one(name: str, problem: GemmProblem, folder: Path, headers: Path | None = None) -> Built:
    values = CHOSEN[name][0]
    assert FAMILIES[name].rule(problem, values, H200) is None
    config = FAMILIES[name].config(problem, values, SM_90)
    return build([config], folder, 32, *([headers] if headers else []))[0]


def read(codes: Array) -> Array:
    """The numbers of codes, in float64."""
    found: Array = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return found


def test_the_codes_are_those_of_the_standard() -> None:
    """OCP 8-bit Floating Point Specification 1.0, table 1: (-1)^s 2^(e - 7) (1 + m / 8), and 2^-6 m / 8 where
    e is 0."""
    sign, exponent, mantissa = NUMBERS >> 7, (NUMBERS >> 3 & 15).astype(float), (NUMBERS & 7) / 8
    sizes = np.where(exponent == 0, 2.0**-6 * mantissa, 2.0 ** (exponent - 7) * (1 + mantissa))
    assert np.array_equal(read(NUMBERS), sizes * (1.0 - 2.0 * sign))
    assert np.isnan(read(np.array(NAN, np.uint8))).all()


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("name", CHOSEN)
def test_every_code_is_exact_in_every_place(name: str, kind: str, tmp_path: Path) -> None:
    """A column's only element is one, of each element of k in turn: the product is the weights."""
    k, rows, columns = 128, len(NUMBERS), CHOSEN[name][1][1]
    codes = NUMBERS[(np.arange(rows)[:, None] + 3 * np.arange(k)) % rows]
    problem = fp8(columns, rows, k, dtype_a=kind, dtype_d="fp32", scale_b="tensor", scale_dtype="fp32")
    built = one(name, problem, tmp_path)
    storage = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
    for first in range(0, k, columns):
        inputs = np.zeros((columns, k), storage)
        inputs[np.arange(columns), first + np.arange(columns)] = 1
        d = product(built, {"a": codes, "scale_a": np.ones(1, np.float32), "b": inputs})
        assert np.array_equal(d, read(codes)[:, first : first + columns].T), first


@pytest.mark.parametrize(
    ("name", "scale"),
    [*((name, "outer") for name in CHOSEN), *((name, "block_128x128") for name in CHOSEN)],
)
def test_a_weight_that_is_nan_makes_its_row_nan(name: str, scale: str, tmp_path: Path) -> None:
    """And no other row, whatever it is multiplied by: here zero. Both NaNs, in every byte of a word."""
    k, columns = 2048, CHOSEN[name][1][0]
    problem = fp8(columns, 41, k, scale_b=scale, scale_dtype="fp32")
    codes = np.full((41, k), 0x7E, np.uint8)  # the largest number
    places = {3: (17, 0x7F), 8: (1102, 0xFF), 21: (2047, 0x7F), 40: (0, 0xFF)}
    for row, (place, code) in places.items():
        codes[row, place] = code
    scales = np.ones((41, 1) if scale == "outer" else (1, k // 128), np.float32)
    inputs = np.zeros((columns, k), ml_dtypes.bfloat16)
    d = product(one(name, problem, tmp_path), {"a": codes, "scale_a": scales, "b": inputs}).astype(np.float32)
    rows_of_nan = np.isin(np.arange(41), list(places))
    assert np.array_equal(np.isnan(d), np.tile(rows_of_nan, (columns, 1)))
    assert not d[:, ~rows_of_nan].any()


def blocks(columns: int, rows: int, k: int, **options: Any) -> GemmProblem:
    return fp8(columns, rows, k, scale_b="block_128x128", **options)


@pytest.mark.parametrize("name", CHOSEN)
def test_blocks_of_rows_share_a_scale(name: str, tmp_path: Path) -> None:
    """The last block has fewer rows. A block's rows differ by many tiles, or lie in one."""
    fewest, most = CHOSEN[name][1]
    problems = [blocks(fewest, 300, 2048, scale_dtype="fp32"), blocks(fewest, 9, 1024, scale_dtype="fp32")]
    if name in WITH_BLOCKS:
        problems += [
            blocks(fewest, 300, 2048), blocks(most, 140, 1024, dtype_a="fp16", scale_dtype="fp16", beta=1.0),
        ]  # fmt: skip
    if name != TILE:  # whose pages are eight groups
        problems.append(blocks(fewest, 300, 384, scale_dtype="fp32"))
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    found = [FAMILIES[name].config(problem, CHOSEN[name][0], SM_90) for problem in problems]
    for built, problem in zip(build(found, tmp_path), problems, strict=True):
        assert FAMILIES[name].rule(problem, CHOSEN[name][0], H200) is None
        for other_way in (False, True):
            finding = verifier.check(
                HostKernel(built, other_way), Case(problem, 3, "normal", "exact"), runs=1
            )
            assert finding.wrong == "", (problem.slug, finding.wrong)


def test_scales_of_blocks_that_families_take() -> None:
    """What multiplies sums takes every type; what multiplies weights takes the activations', and fp32
    beside bf16, whose range is the same."""
    wide, narrow = blocks(100, 256, 1024, scale_dtype="fp32"), blocks(100, 256, 1024)
    assert FAMILIES["dequant-ring"].supports(wide)
    assert FAMILIES["dequant-wgmma"].supports(wide)
    halves = blocks(100, 256, 1024, dtype_a="fp16", scale_dtype="fp32")
    for name in (TILE, "dequant-tma-wgmma", "dequant-tile-wgmma"):
        assert FAMILIES[name].rule(wide, CHOSEN[name][0], H200) is None
        assert "scales of their type here, not of fp32" in (FAMILIES[name].unsupported(halves) or "")
    assert FAMILIES[TILE].rule(narrow, CHOSEN[TILE][0], H200) is None
    for name in ("dequant-tma-wgmma", "dequant-tile-wgmma"):
        assert "no whole 4-byte words" in (FAMILIES[name].rule(narrow, CHOSEN[name][0], H200) or "")
    for name in ("dequant-mfma", "dequant-wmma"):
        assert "weights of integers or MXFP4, not fp8_e4m3" in (FAMILIES[name].unsupported(narrow) or "")


def off_by(name: str, folder: Path, headers: Path | None = None) -> float:
    """The most that weights differ from what they are, in units of bf16's rounding: scales of fp32 with all
    of their bits multiply weights, of which one a column is multiplied by one."""
    k, rows, columns = 1024, len(NUMBERS), CHOSEN[name][1][1]
    problem = fp8(columns, rows, k, dtype_d="fp32", scale_b="block_128x128", scale_dtype="fp32")
    rng = np.random.default_rng(7)
    scales = (rng.random((2, 8)) * 2.0 ** rng.integers(-20, 20, (2, 8))).astype(np.float32)
    codes = NUMBERS[(np.arange(rows)[:, None] + 3 * np.arange(k)) % rows]
    places = rng.permutation(k)[:columns]
    inputs = np.zeros((columns, k), ml_dtypes.bfloat16)
    inputs[np.arange(columns), places] = 1
    d = product(one(name, problem, folder, headers), {"a": codes, "scale_a": scales, "b": inputs})
    wanted = (read(codes) * scales.astype(np.float64).repeat(128, 0)[:rows].repeat(128, 1))[:, places].T
    off = np.abs(d - wanted)[wanted != 0] / np.abs(wanted[wanted != 0])
    return float(off.max() * 2**8)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_weight_is_rounded_once_by_a_scale_of_fp32(name: str, tmp_path: Path) -> None:
    """To half a unit at most, or not at all where the scale multiplies sums."""
    assert off_by(name, tmp_path) <= (2**-15 if name in (GEMV, RING, WGMMA) else 1 + 2**-6)


def test_a_scale_that_is_rounded_first_shows(tmp_path: Path) -> None:
    what = "device/dequantise.h", "if constexpr (kSplit) added =", "if constexpr (false) added ="
    assert off_by(TILE, tmp_path, changed(tmp_path / "headers", *what)) > 1.2


def test_warps_of_64(tmp_path: Path) -> None:
    family, values = FAMILIES[GEMV], CHOSEN[GEMV][0]
    problems = [
        blocks(3, 300, 384, scale_dtype="fp32"), fp8(8, 41, 1040, dtype_a="fp16", scale_b="tensor"),
        fp8(1, 41, 272, scale_dtype="fp32"),
    ]  # fmt: skip
    found = [family.config(problem, values, OF_WARP[64]) for problem in problems]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for built, problem in zip(build(found, tmp_path, 64), problems, strict=True):
        assert not verifier.check(HostKernel(built, False), Case(problem, 3, "normal", "exact"), runs=1).wrong


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "gfx942", "gfx1201"])
def test_they_compile_without_spilling(arch: str, tmp_path: Path) -> None:
    """On every architecture from sm_80 on, whether it converts 8-bit floats itself or not; by FMAs on AMD."""
    nvidia, cache = arch.startswith("sm_"), BinaryCache(tmp_path)
    if not nvidia and (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    for name in [*CHOSEN] if arch == "sm_90" else [GEMV, RING, TILE] if nvidia else [GEMV]:
        for scale in ("tensor", "block_128x128"):
            problem = fp8(CHOSEN[name][1][0], 1288, 4096, scale_b=scale, scale_dtype="fp32")
            found = FAMILIES[name].config(problem, CHOSEN[name][0], GPU_ARCHS[arch])
            if nvidia:
                target = Nvrtc().target(arch, found.arch_specific)
                binary = Nvrtc().compile(CompileUnit(found.unit, target), cache)
            else:
                binary = Clang().compile(CompileUnit(found.unit, arch), cache)
            assert resources.read(binary)["gemm"].spill_bytes == 0, (name, scale)


#: What is mistaken -> a family, the header, its text, what stands there instead.
MISTAKES = {
    "an exponent in another place": (
        RING, "device/dequantise.h", "kUp = kWide ? 4 : 7;", "kUp = kWide ? 5 : 7;",
    ),
    "no sign": (RING, "device/dequantise.h", "? 0x87f087f0u", "? 0x07f007f0u"),
    "half the power": (RING, "device/dequantise.h", "? 0x7b807b80u", "? 0x7b007b00u"),
    "the upper bytes twice": (
        RING, "device/dequantise.h", "sign_extended<0>(word) << kUp", "sign_extended<1>(word) << kUp",
    ),
    "numbers that are taken for shrunk": (
        RING, "device/dequantise.h", "QUANT::kFloat || QUANT::kFp8 ? 1.0f", "QUANT::kFloat ? 1.0f",
    ),
    "rows that begin a block anew": (
        RING, "device/line_copies.h", "(phase + line) / SIDE", "(phase * 0 + line) / SIDE",
    ),
    "scales of the first rows": (
        RING, "device/dequant_chunk.h", "begin / QUANT::kSide * groups", "begin * 0 * groups",
    ),
    "scales of the first rows, in pages": (
        TILE, "device/dequant_stages.h", "begin / QUANT::kSide * ld", "begin * 0 * ld",
    ),
    "blocks of 64 rows": (MMA, "families/dequant_mma.h", "row / QUANT::kSide *", "row / 64 *"),
    "a scale a row": (GEMV, "families/dequant_gemv.h", "row / QUANT::kSide *", "row / 64 *"),
    "no sign, in fp32": (GEMV, "families/dequant_gemv.h", "& 0x87f00000u", "& 0x07f00000u"),
    "half the power, in fp32": (
        GEMV, "families/dequant_gemv.h", "as_float(247u << 23)", "as_float(246u << 23)",
    ),
    "bytes in reverse": (GEMV, "families/dequant_gemv.h", "(24 - i % 4 * 8)", "(i % 4 * 8)"),
}  # fmt: skip
#: The same, that only a weight which is NaN shows.
NAN_MISTAKES = {
    "a NaN that reads as 480": (RING, "device/dequantise.h", "? 0x7b097b09u", "? 0x7b007b00u"),
    "a NaN that reads as 480, in fp32": (
        GEMV, "families/dequant_gemv.h", "if (any_nan(raw[r][u]))", "if (any_nan(raw[r][u]) && r < 0)",
    ),
    "NaN in the last byte alone": (GEMV, "families/dequant_gemv.h", "+ 0x01010101u", "+ 0x01000000u"),
}  # fmt: skip


def changed(folder: Path, header: str, text: str, other: str) -> Path:
    """A copy of the headers with a mistake."""
    path = copied_headers(folder) / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, other))
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str, tmp_path: Path) -> None:
    name, *what = MISTAKES[mistake]
    headers = changed(tmp_path / "headers", *what)
    problem = blocks(max(5, CHOSEN[name][1][0]), 300, 1024)
    assert wrong_of(one(name, problem, tmp_path, headers), problem)


@pytest.mark.parametrize("mistake", NAN_MISTAKES)
def test_a_mistake_of_nan_shows(mistake: str, tmp_path: Path) -> None:
    name, *what = NAN_MISTAKES[mistake]
    headers = changed(tmp_path / "headers", *what)
    codes = np.zeros((41, 1024), np.uint8)
    codes[7, 513] = 0x7F
    given = {
        "a": codes,
        "scale_a": np.ones(41, ml_dtypes.bfloat16),
        "b": np.ones((5, 1024), ml_dtypes.bfloat16),
    }
    d = product(one(name, fp8(5, 41, 1024), tmp_path, headers), given)
    assert not np.isnan(d.astype(np.float32)).any()
