"""short-k on the host: every k, lines that start and end anywhere, D stored wherever its columns start, and
mistakes that must show."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.kernels.families.short_k import LONGEST, ShortTile
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.oriented_gemm import OrientedGemm
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["short-k"]
Found = list[tuple[GemmProblem, dict[str, Parameter]]]
CHOSEN: dict[str, Parameter] = {"tile_m": 64, "tile_n": 32, "warp_m": 32, "warp_n": 16, "warps": 4}


def _findings(found: Found, folder: Path, headers: Path = HEADERS) -> list[str]:
    """What the verifier says of each configuration on the host, either way around."""
    kernels = build([FAMILY.config(*one, SM_90) for one in found], folder, headers=headers)
    said = []
    for (problem, _), built in zip(found, kernels, strict=True):
        verifier, case = Verifier(HostDevice()), Case(problem, 3, "normal", "exact")  # type: ignore[arg-type]
        ways = (HostKernel(built, other_way) for other_way in (False, True))
        said.append("; ".join(filter(None, (verifier.check(way, case, runs=1).wrong for way in ways))))
    return said


def _drawn(problems: list[GemmProblem]) -> Found:
    """A legal configuration of each, no two alike."""
    return [(one, legal_values(FAMILY, one, H200, 1, seed)[0]) for seed, one in enumerate(problems)]


@pytest.mark.parametrize(
    "ks",
    [
        (1, 7, 8),
        (15, 16, 17),
        (31, 33, 64),
        (65, 100, 120),
        (127, 128, 129),
        (135, 137, 200),
        (248, 255, 256),
    ],
)
def test_every_k(ks: tuple[int, ...], tmp_path: Path) -> None:
    """Whole pieces and elements beside them, whole steps and none; lines whose gaps are NaN, and without."""
    problems = [
        from_linear(n, m, k, kind, lda=k + gap, ldb=k + 2 * gap, alignment=2 if gap == 1 else 16)
        for k in ks
        for n, m, kind, gap in ((37, 75, "bf16", 0), (50, 130, "fp16", 1), (17, 64, "bf16", 5))
    ]
    found = _drawn(problems)
    assert _findings(found, tmp_path) == [""] * len(found), found


@pytest.mark.parametrize("k", [8, 24, 136])
def test_lines_of_whole_pieces(k: int, tmp_path: Path) -> None:
    """Either operand's lines at multiples of 16 bytes, or none's."""
    problems = [
        from_linear(33, 70, k, "bf16", lda=k + a, ldb=k + b, alignment=alignment)
        for a, b, alignment in ((0, 0, 16), (8, 4, 16), (1, 8, 16), (3, 2, 16), (0, 0, 2), (8, 8, 4))
    ]
    flags = {tuple(FAMILY.config(one, CHOSEN, SM_90).instantiation.split(", ")[4:6]) for one in problems}
    assert flags == set(product(("true", "false"), repeat=2))
    found = [*_drawn(problems), *((one, CHOSEN) for one in problems)]
    assert _findings(found, tmp_path) == [""] * len(found), found


def test_operands_of_few_lines(tmp_path: Path) -> None:
    """The first piece is the last one, too; a tile is mostly beyond D."""
    problems = [
        from_linear(n, m, k, "bf16", alignment=2) for n, m in ((1, 1), (2, 33), (16, 1)) for k in (8, 9, 23)
    ]
    found = _drawn(problems)
    assert _findings(found, tmp_path) == [""] * len(found), found


#: D's columns at multiples of 16 bytes, of 4, and at elements; a last row alone in its word.
STORED: dict[str, GemmProblem] = {
    "wide": from_linear(40, 136, 24, "bf16"),
    "wide, ragged": from_linear(40, 141, 24, "bf16", ldd=144),
    "words": from_linear(40, 138, 24, "fp16"),
    "odd": from_linear(33, 129, 24, "bf16"),
    "odd, padded": from_linear(33, 100, 24, "bf16", ldd=103),
    "addresses of two bytes": from_linear(40, 136, 24, "bf16", alignment=2),
    "fp32": from_linear(33, 129, 24, "bf16", dtype_d="fp32"),
    "fp32, wide": from_linear(33, 132, 24, "fp16", dtype_d="fp32", alpha=2.0),
}


@pytest.mark.parametrize("name", STORED)
def test_columns_of_d_start_anywhere(name: str, tmp_path: Path) -> None:
    values = legal_values(FAMILY, STORED[name], H200, 5, len(name))
    found = [(STORED[name], one) for one in (CHOSEN, *values)]
    assert _findings(found, tmp_path) == [""] * len(found), found


@pytest.mark.parametrize("rows", [65, 64])
def test_epilogues_and_batches(rows: int, tmp_path: Path) -> None:
    problems = [
        from_linear(40, rows, 33, "bf16", beta=1.0, alpha=2.0),
        from_linear(40, rows, 33, "bf16", bias="bf16", activation="gelu"),
        from_linear(40, rows, 32, "fp16", bias="fp16", beta=3.0, activation="silu", dtype_d="fp32"),
        from_blas(rows, 40, 17, "bf16", trans_a="T", bias="fp32", bias_axis="n", activation="relu", ldc=71,
                  beta=1.0),
        from_bmm(3, 21, rows, 19, "bf16", trans_b="T", beta=1.0),
        from_bmm(2, 40, rows, 16, "fp16", trans_b="T", stride_b=0, stride_a=40 * 16 + 3),
    ]  # fmt: skip
    found = [*_drawn(problems), (problems[1], CHOSEN)]
    assert _findings(found, tmp_path) == [""] * len(found), found


@pytest.mark.parametrize(
    ("header", "text", "wrong"),
    [
        ("families/short_k.h", "begins_ && t == 0", "false"),
        ("families/short_k.h", "if (ends_ && lane == (kPieces - 1) % LANES) --left_last_;", ""),
        ("families/short_k.h", "ends_ && lane / 8 == 1", "ends_ && lane / 8 == 4"),
        ("families/short_k.h", "        warp_barrier();  // pieces that ends replace are there\n", ""),
        ("families/short_k.h", "element < kRest ?", "element < 8 ?"),
        ("families/short_k.h", "read16_if(wanted, from + 16)", "read16_if(wanted, from)"),
        ("families/short_k.h", "THREADS / LANES / 8 * 8", "THREADS / LANES - 1"),
        ("families/short_k.h", "        block_barrier();\n        const Finish", "        const Finish"),
        ("families/short_k.h", "        block_barrier();  // sums", "        // sums"),
        ("families/short_k.h", "kUnit == 2 && t < columns && odd", "false && odd"),
        ("families/short_k.h", "row + kUnit <= rows", "true"),
        ("families/short_k.h", "if (kPieces + (kRest > 0) == 2 * kSteps) return;", "return;"),
        ("device/unaligned_loads.h", "if (shift & 8) all[5] = all[7];", ""),
    ],
)
def test_a_mistake_shows(header: str, text: str, wrong: str, tmp_path: Path) -> None:
    copied_headers(tmp_path)
    good = (HEADERS / header).read_text()
    assert good.count(text) == 1
    (tmp_path / header).write_text(good.replace(text, wrong))
    problems = [from_linear(41, 83, k, "bf16", alignment=2) for k in (35, 51, 96)]
    try:
        found = _findings([(one, CHOSEN) for one in problems], tmp_path, tmp_path)
    except Exception as error:  # what the launch itself finds, or the compiler
        found = [str(error)]
    assert any(found)


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """Lines of an odd number of 16 bytes, or where k is very short the sums'."""
    cache = BinaryCache(tmp_path)
    for k, size in ((129, (64 + 32) * (288 + 16)), (8, 32 * (64 + 8) * 4)):
        found = FAMILY.config(from_linear(127, 8191, k, "bf16"), CHOSEN, SM_90)
        assert found.shared_bytes == size
        Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
        for wrong in (-16, 16):
            bad = replace(found, shared_bytes=found.shared_bytes + wrong)
            with pytest.raises(CompileError, match="as derived"):
                Nvrtc().compile(CompileUnit(bad.unit, "sm_90"), cache)


def test_lanes_share_lines_so_that_a_thread_has_few_pieces() -> None:
    def tile(k: int, *numbers: int) -> tuple[int, tuple[int, int], int]:
        t = ShortTile(OrientedGemm(from_linear(127, 8191, k, "bf16")), *numbers)
        return t.lanes, t.pieces, t.rests

    assert tile(129, 64, 128, 32, 32, 16) == (16, (2, 4), 3)
    assert tile(128, 64, 128, 32, 32, 8) == (16, (4, 8), 0)
    assert tile(255, 64, 64, 32, 32, 4) == (16, (16, 16), 8)
    assert tile(5, 32, 16, 16, 16, 4)[1] == (0, 0)
    for k, warps in product(range(1, LONGEST + 1), (4, 8, 16)):
        lanes, pieces, _ = tile(k, 128, 128, 32, 32, warps)
        assert warps * 32 // lanes >= 8
        assert sum(pieces) <= 1.5 * (256 * (k // 8) / (warps * 32)) + 2, (k, warps)


def test_what_is_listed() -> None:
    """A block a multiprocessor where one wave does, and few candidates."""
    odd = list(FAMILY.solutions(from_linear(127, 8191, 129, "bf16"), H200))
    assert 8 <= len(odd) <= 24
    assert {(odd[0].parameters["tile_m"], odd[0].parameters["tile_n"])} <= {(64, 128), (128, 64)}
    assert odd[0].parameters["warps"] == 16
    for rank in (8, 16, 64, 128):
        assert 8 <= len(list(FAMILY.solutions(from_linear(4096, 4096, rank, "bf16"), H200))) <= 24
    for other in (
        from_linear(8, 8191, 129, "bf16"), from_linear(64, 64, 64, "bf16"),
        from_linear(127, 8191, 257, "bf16"), from_mm(127, 8191, 129, "bf16"),
    ):  # fmt: skip
        assert not list(FAMILY.solutions(other, H200))
    assert not FAMILY.supports(from_linear(127, 8191, 129))
