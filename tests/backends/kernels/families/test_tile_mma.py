"""tile-mma: every way that operands start and lie, banks of shared memory, and mistakes that must show."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from backends.errors import LaunchError
from backends.kernels.families import FAMILIES
from backends.kernels.families.tile_mma import TileMma
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.oriented_gemm import GemmArgs, OrientedGemm
from backends.kernels.tensor_core_tile import ANYWHERE, AT_4, AT_16, start_of
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, compiled, copied_headers
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["tile-mma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 32, "warp_m": 32, "warp_n": 32, "stages": 3, "group": 8,
    "splits": 1,
}  # fmt: skip


def _problem(kind: str, sides: str, extra: tuple[int, int]) -> GemmProblem:
    """Ragged, or (no `extra` elements between the lines of A and of B) whole in every direction."""
    m, n, k = (72, 88, 136) if extra == (0, 0) else (71, 85, 133)
    trans_a, trans_b = sides[0], sides[1]
    lines = [size + -size % 8 + more for size, more in zip((m if trans_a == "N" else k,
             k if trans_b == "N" else n), extra, strict=True)]  # fmt: skip
    return from_blas(m, n, k, kind, trans_a=trans_a, trans_b=trans_b, lda=lines[0], ldb=lines[1], beta=1.0)


def _findings(
    found: list[tuple[GemmProblem, dict[str, Parameter]]], folder: Path, headers: Path = HEADERS
) -> list[str]:
    """What the verifier says of each configuration on the host, either way around."""
    kernels = build([FAMILY.config(*one, SM_90) for one in found], folder, headers=headers)
    said = []
    for (problem, _), built in zip(found, kernels, strict=True):
        verifier, case = Verifier(HostDevice()), Case(problem, 3, "normal", "exact")  # type: ignore[arg-type]
        ways = (HostKernel(built, other_way) for other_way in (False, True))
        said.append("; ".join(filter(None, (verifier.check(way, case, runs=1).wrong for way in ways))))
    return said


#: Types, elements between the lines of A and of B, and how those start.
STARTS = (
    ("bf16", (0, 0), (AT_16, AT_16)), ("fp16", (1, 2), (ANYWHERE, ANYWHERE)),
    ("bf16", (8, 3), (AT_16, ANYWHERE)), ("fp16", (4, 0), (ANYWHERE, AT_16)),
    ("tf32", (0, 0), (AT_16, AT_16)), ("tf32", (1, 2), (AT_4, AT_4)),
)  # fmt: skip


@pytest.mark.parametrize("sides", ["NN", "NT", "TN", "TT"])
def test_operands_in_every_layout_and_alignment(sides: str, tmp_path: Path) -> None:
    found: list[tuple[GemmProblem, dict[str, Parameter]]] = []
    for kind, extra, starts in STARTS:
        if AT_16 in starts and ANYWHERE in starts and sides in ("NT", "TN"):
            continue  # either operand has been along k and across it
        problem = _problem(kind, sides, extra)
        assert (start_of(OrientedGemm(problem), "a"), start_of(OrientedGemm(problem), "b")) == starts
        found.append((problem, legal_values(FAMILY, problem, H200, 1, seed=len(found) + ord(sides[0]))[0]))
    said = _findings(found, tmp_path)
    assert said == [""] * len(found), found


def test_addresses_batches_and_single_lines(tmp_path: Path) -> None:
    problems = (
        from_linear(70, 90, 200, "bf16", alignment=2, bias="bf16", activation="gelu"),
        from_bmm(3, 66, 35, 71, "bf16", stride_b=0, stride_a=66 * 71 + 3, dtype_d="fp32", beta=1.0),
        from_mm(6, 6, 1, "bf16"), from_blas(33, 1, 40, "fp16", trans_a="T", trans_b="T", ldb=3),
        from_mm(1, 1, 1, "tf32"), from_blas(9, 1, 5, "tf32", trans_b="N", ldb=7, alignment=4),
        from_linear(40, 70, 301, "tf32", bias="fp32", activation="silu", alignment=4),
    )  # fmt: skip
    found = [(problem, {**CHOSEN, "splits": 1 + index % 2 * 2}) for index, problem in enumerate(problems)]
    assert _findings(found, tmp_path) == [""] * len(found)


@pytest.mark.parametrize("sides", ["NN", "NT", "TN", "TT"])
def test_operands_end_anywhere(sides: str, tmp_path: Path) -> None:
    """A tile is copied in one of three ways, by how much of k and of its lines is there: up to and beyond
    where each begins, for lines without a gap, which the operand's last one ends."""
    found: list[tuple[GemmProblem, dict[str, Parameter]]] = []
    for k, lines in (
        (32, 65),
        (33, 64),
        (39, 63),
        (40, 33),
        (41, 63),
        (64, 17),
        (71, 129),
        (73, 127),
        (105, 47),
    ):
        problem = from_blas(lines, lines + k % 3, k, "bf16", trans_a=sides[0], trans_b=sides[1], alignment=2)
        for tile_k in (32, 64):
            found.append((problem, {**CHOSEN, "tile_k": tile_k, "splits": 1 + len(found) % 4 // 3}))
    assert _findings(found, tmp_path) == [""] * len(found)


@pytest.mark.parametrize(
    ("header", "text", "wrong"),
    [
        ("device/tile_product.h", "wait_copies<kAhead - 1>()", "wait_copies<kAhead>()"),
        (
            "device/tile_product.h",
            "            named_barrier_sync<kThreads>();  // idle warps",
            "            // idle warps",
        ),
        ("device/tile_product.h", "kAhead = STAGES - 1;", "kAhead = STAGES;"),
        ("device/operand_tile.h", "row % 2 ? 4 + even / 2 : row % 8 / 2", "row % 2 ? even / 2 : row % 8 / 2"),
        ("device/operand_tile.h", "left <= 0 ? 0 : least(left, kUnit)", "left <= 0 ? 0 : kUnit"),
        (
            "device/operand_tile.h",
            "copy_first(place(to, on, beside), source, size(on), end)",
            "copy_async16(place(to, on, beside), source, size(on))",
        ),
        ("device/operand_tile.h", "left_ >= BK + 8", "left_ >= 1"),
        ("device/operand_tile.h", "ALONG_K ? row < lines_ :", "ALONG_K ? row <= lines_ :"),
    ],
)
def test_a_mistake_shows(header: str, text: str, wrong: str, tmp_path: Path) -> None:
    copied_headers(tmp_path)
    good = (HEADERS / header).read_text()
    assert good.count(text) == 1
    (tmp_path / header).write_text(good.replace(text, wrong))
    try:
        found = _findings([(_problem("bf16", "TT", (1, 1)), CHOSEN)], tmp_path, tmp_path)[0]
    except LaunchError as error:  # what the launch itself finds
        found = str(error)
    assert found != ""


# ---- banks of shared memory --------------------------------------------------------------------

#: An operand's tile, copied and then read whole by two warps.
PROBE = """
#include "device/operand_tile.h"
namespace gemmtune {
template <typename T, bool OF_B, bool ALONG_K, int START, bool DEEP, int LINES, int BK>
struct Probe {
    using Tile = OperandTile<T, OF_B, ALONG_K, START, DEEP, LINES, BK, 64>;
    static void run(const GemmArgs& args, char* shared) {
        Tile tile(args.a, 0, args.lda, 0, args.m, 0, args.k);
        tile.copy_some(shared, static_cast<const char*>(args.a) + args.a_bytes);
        commit_copies();
        wait_copies<0>();
        block_barrier();
        unsigned out[1][4];
        for (int line = 0; line < LINES; line += 16)
            for (int step = 0; step < BK / Tile::kStep; ++step) tile.read(shared, line, step, out);
    }
};
}
extern "C" int ways() {
    const int found = gemmtune::host::machine.ways;
    gemmtune::host::machine.ways = 0;
    return found;
}
"""


#: Elements from row to row beyond a multiple of 8, and to the first row's start.
ROWS = (
    (0, 1), (1, 0), (1, 1), (2, 1), (3, 0), (3, 7), (4, 0), (5, 2), (5, 5), (6, 4), (7, 0), (7, 3),
)  # fmt: skip


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Over every tile of the choice space: lanes that read at once read from different banks. (What
    load_matrices() reads is held against them by every launch on the host.)"""
    lines = [int(size or 0) for size in FAMILY.choices["tile_m"]]
    assert lines == [int(size or 0) for size in FAMILY.choices["tile_n"]]
    kinds = [("gemmtune::Bf16", 2, AT_16, False), ("gemmtune::Bf16", 2, AT_16, True),
             ("gemmtune::Bf16", 2, ANYWHERE, True), ("float", 4, AT_16, False)]  # fmt: skip
    tiles = list(product(kinds, (False, True), lines, (64, 128)))
    text = [PROBE]
    for index, ((kind, size, start, deep), along_k, extent, depth) in enumerate(tiles):
        flags = ["true" if flag else "false" for flag in (index % 3 == 0, along_k, deep)]
        arguments = f"{kind}, {flags[0]}, {flags[1]}, {start}, {flags[2]}, {extent}, {depth // size}"
        text += [
            f"using P{index} = gemmtune::Probe<{arguments}>;",
            f"GEMMTUNE_KERNEL(probe_{index}, P{index})",
        ]
    library = compiled("\n".join(text), tmp_path / "probes.so")
    library.ways()  # libraries of one process may share their counters
    memory = ctypes.create_string_buffer(2**19)
    base = -(-ctypes.addressof(memory) // 256) * 256
    for index, ((_, size, start, deep), along_k, extent, depth) in enumerate(tiles):
        run = getattr(library, f"launch_probe_{index}")
        run.restype = ctypes.c_char_p
        k = depth // size
        for more, shift in ROWS if start == ANYWHERE else ((0, 0),):
            rows, row = (extent, k) if along_k else (k, extent)
            args = GemmArgs(
                a=base + shift * size, lda=row + more, a_bytes=rows * (row + more) * size, m=extent, k=k
            )
            sizes = (ctypes.c_uint * 3)(1, 1, 1)
            shared = 2 * (extent + 8) * (depth + 32) + 2 * k * 64
            fault = run(ctypes.byref(args), sizes, 64, ctypes.c_ulonglong(shared), 0)
            assert fault is None, fault
            # Rows whose starts differ by 8 or 4 elements come in fewer kinds; half a chunk is half the banks.
            most = 1
            if along_k and start == ANYWHERE:
                most = {0: 4, 4: 2}.get(more, 1)
            elif along_k and deep:
                most = 2
            assert library.ways() <= most, (tiles[index], more, shift)


# ---- what is listed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [from_linear(2049, 2049, 2049, "bf16"), from_mm(2049, 2049, 2049, "bf16"),
     from_linear(4096, 4096, 4096, "fp16"), from_linear(64, 8192, 8192, "bf16"),
     from_mm(2048, 2048, 2048, "tf32")],
    ids=lambda p: p.slug,
)  # fmt: skip
def test_the_likeliest_fill_the_device_and_are_few(problem: GemmProblem) -> None:
    found = list(FAMILY.solutions(problem, H200))
    assert 20 <= len(found) <= 64
    for one in found[:8]:
        first = FAMILY.config(problem, one.parameters, SM_90)
        assert first.blocks * first.splits >= 100
    assert len({one.parameters["tile_m"] for one in found}) > 1


def test_an_early_gpu_and_plain_fp32_are_refused() -> None:
    problem = from_linear(512, 512, 512, "bf16")
    assert not list(FAMILY.solutions(problem, replace(H200, arch="sm_75")))
    assert list(FAMILY.solutions(problem, replace(H200, arch="sm_86")))
    assert not FAMILY.supports(from_mm(512, 512, 512))
    assert FAMILY.supports(from_mm(512, 512, 512, "tf32"))
    assert isinstance(FAMILY, TileMma)
