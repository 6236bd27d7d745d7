"""Families for grouped products on the host: groups without rows, all rows in one, k and rows that are no
whole tile, blocks with several tiles; planted mistakes; what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.dtypes import DTYPES
from backends.grouping import ends_of, spans_of
from backends.kernels.families import FAMILIES
from backends.kernels.grouped import capacity, most_tiles, tiles
from backends.kernels.oriented_gemm import OrientedGemm
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_linear
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, Built, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.emulator.memory import HostBuffer
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tuners import inputs
from tuners.inputs import Case
from tuners.verify import Verifier

NAMES = ("grouped-ring", "grouped-tile", "grouped-wgmma")
#: Those that multiply 8-bit floats with scales.
SCALED = ("grouped-ring", "grouped-wgmma")
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}


def fp8(m: int, n: int, k: int, scales: dict[str, Any] = BLOCKS, **more: Any) -> GemmProblem:
    """A grouped product of 8-bit floats in bf16 unless `dtype_d` says otherwise."""
    return from_linear(m, n, k, "fp8_e4m3", **scales, **more)


#: Rows of the call, n, k of every group's weights.
SHAPES: dict[str, GemmProblem] = {
    "one row": from_linear(1, 40, 264, "bf16", groups=3),
    "two of eight": from_linear(2, 130, 512, "bf16", groups=8, routing="skewed"),
    "the last group": from_linear(5, 64, 320, "fp16", groups=4, routing=[0, 0, 0, 5]),
    "some without rows": from_linear(83, 72, 136, "bf16", groups=6, routing=[0, 70, 0, 1, 12, 0]),
    "one group": from_linear(33, 96, 192, "bf16", groups=1),
    "many groups": from_linear(90, 33, 72, "fp16", groups=40, dtype_d="fp32"),
    "few of k": from_linear(20, 48, 8, "bf16", groups=5),
    "padded rows": from_linear(31, 50, 200, "bf16", groups=4, ldb=216, lda=208, ldd=61),
    **{
        f"blocks, {name}": p
        for name, p in {
            "one row": fp8(1, 160, 528, groups=3),
            "two of eight": fp8(2, 130, 1024, groups=8, routing="skewed"),
            "the last group": fp8(5, 64, 320, groups=4, routing=[0, 0, 0, 5], dtype_d="fp32"),
            "some without rows": fp8(83, 300, 272, groups=6, routing=[0, 70, 0, 1, 12, 0]),
            "few of k": fp8(20, 48, 16, groups=5),
            "padded rows": fp8(31, 50, 400, groups=4, ldb=432, lda=416, ldd=61),
        }.items()
    },
    "rows, two of eight": fp8(2, 130, 1024, ROWS, groups=8, routing="skewed"),
    "rows, some without rows": fp8(83, 72, 272, ROWS, groups=6, routing=[0, 70, 0, 1, 12, 0], dtype_d="fp16"),
    "rows, many groups": fp8(90, 33, 144, ROWS, groups=40, dtype_d="fp32"),
}


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, family: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once, with few blocks and with one for each
    tile."""
    problem = SHAPES[name]
    if not FAMILIES[family].supports(problem):
        assert (family, problem.dtype_a) == ("grouped-tile", "fp8_e4m3")
        return
    sample = legal_values(FAMILIES[family], problem, H200, 3, len(name))
    assert sample
    found = [FAMILIES[family].config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way, units in ((False, 1), (True, 100)):
            kernel = HostKernel(one, other_way, units)
            finding = verifier.check(kernel, Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, units, finding.wrong)


SKEWED = from_linear(60, 72, 264, "bf16", groups=6, routing=[0, 41, 0, 1, 18, 0])
RING = {
    "columns": 16, "rows": 16, "tile_k": 128, "slots": 3, "warps_m": 2, "warps_k": 2, "blocks_per_unit": 2,
}  # fmt: skip
TILE = {
    "tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 32, "warp_n": 32, "stages": 3, "blocks_per_unit": 2,
}  # fmt: skip
WIDE = fp8(150, 300, 272, groups=3, routing=[20, 0, 130])
WGMMA = {"tile_m": 64, "tile_n": 16, "stages": 3, "cluster": 1, "blocks_per_unit": 2}


def test_wide_tiles_read_scales_late(tmp_path: Path) -> None:
    """Where sums leave no registers for them."""
    found = [
        FAMILIES["grouped-wgmma"].config(
            WIDE, {**WGMMA, "tile_m": 128, "tile_n": columns, "stages": 2}, SM_90
        )
        for columns in (80, 128)
    ]
    for one in build(found, tmp_path, 32):
        assert wrong_of(one, WIDE) == ""


@pytest.mark.parametrize("kind", ["bf16", "blocks"])
@pytest.mark.parametrize("rows", [72, 130, 200])
def test_clusters_share_columns(rows: int, kind: str, tmp_path: Path) -> None:
    """Also where the last block of a cluster has no rows, and with fewer blocks than tiles."""
    routing = [0, 41, 0, 1, 18, 0]
    plain = from_linear(60, rows, 264, "bf16", groups=6, routing=routing)
    problem = plain if kind == "bf16" else fp8(60, rows, 528, groups=6, routing=routing)
    found = [
        FAMILIES["grouped-wgmma"].config(
            problem, {**WGMMA, "tile_n": columns, "stages": stages, "cluster": 2}, SM_90
        )
        for columns, stages in ((16, 2), (48, 4))
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way, units in ((False, 1), (True, 100)):
            kernel = HostKernel(one, other_way, units)
            finding = verifier.check(kernel, Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, units, finding.wrong)


CHOSEN = {"grouped-ring": RING, "grouped-tile": TILE, "grouped-wgmma": {**WGMMA, "cluster": 2}}
#: Of 8-bit floats with scales of blocks, and of rows. (Three warpgroups have rows of two blocks of weights.)
SKEWED_BLOCKS = fp8(60, 300, 528, groups=6, routing=[0, 41, 0, 1, 18, 0])
SKEWED_ROWS = fp8(60, 300, 528, ROWS, groups=6, routing=[0, 41, 0, 1, 18, 0])
CHOSEN_BYTES: dict[str, dict[str, Any]] = {
    "grouped-ring": {
        "columns": 16,
        "rows": 48,
        "tile_k": 256,
        "slots": 2,
        "warps_m": 4,
        "warps_k": 1,
        "blocks_per_unit": 1,
    },
    "grouped-wgmma": {**WGMMA, "tile_m": 192},
}


@pytest.mark.parametrize("family", SCALED)
def test_scales_reach_their_own_rows_and_columns_alone(family: str, tmp_path: Path) -> None:
    """Zeros, infinities, NaN, and scales whose products no 16-bit float holds."""
    problem = fp8(24, 136, 256, groups=4, routing=[7, 0, 16, 1], dtype_d="fp32")
    (one,) = build([FAMILIES[family].config(problem, CHOSEN_BYTES[family], SM_90)], tmp_path, 32)
    one_byte = DTYPES["fp8_e4m3"].storage
    weights, rows = np.ones((4, 2, 2), np.float32), np.ones((24, 2), np.float32)
    weights[0, 0, 0], weights[0, 1, 0], weights[2, 1] = 2.0**100, 0.0, np.nan
    rows[0, 0], rows[1, 1], rows[2], rows[9], rows[23] = 2.0**-100, 2.0**-100, np.inf, np.nan, 2.0**-120
    d = computed(
        one, problem,
        a=np.ones((4, 136, 256)).astype(one_byte), b=np.full((1, 24, 256), 2.0).astype(one_byte),
        scale_a=weights, scale_b=rows[None], offsets=ends_of(problem).reshape(1, 1, -1),
    )  # fmt: skip
    with np.errstate(invalid="ignore", over="ignore"):
        for group, start, end in spans_of(problem):
            of_blocks = (rows[start:end, None, :] * weights[group][None]) * np.float32(256)
            want = (of_blocks[..., 0] + of_blocks[..., 1]).repeat(128, axis=1)[:, :136]
            np.testing.assert_array_equal(d[start:end], want)
    assert np.isfinite(d[3:7]).all()


def computed(one: Built, problem: GemmProblem, **operands: Any) -> Any:
    """D [n, m] of a kernel for operands given as [copies, columns, rows]."""
    shapes = layouts(problem)
    buffers = {name: HostBuffer(layout.bytes) for name, layout in shapes.items()}
    for name, array in operands.items():
        shapes[name].view(buffers[name].bytes.view(shapes[name].dtype.storage))[...] = array
    at = {name: buffer.address for name, buffer in buffers.items()}
    HostKernel(one, other_way=False).bind(Operands.at(at, problem.scalars), 0)()
    return shapes["d"].view(buffers["d"].bytes.view(shapes["d"].dtype.storage))[0].copy()


@pytest.mark.parametrize("family", NAMES)
def test_ends_that_lead_out_of_the_operands_are_clamped(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the device knows the ends: those below 0 and beyond the rows count as 0 and as the last row."""
    problem = from_linear(60, 72, 264, "bf16", groups=4, routing=[0, 41, 19, 0])
    wrong = np.array([-7, 41, 2**31 - 1, 61], np.int32)
    monkeypatch.setattr(inputs, "ends_of", lambda _: wrong)
    (one,) = build([FAMILIES[family].config(problem, CHOSEN[family], SM_90)], tmp_path, 32)
    assert wrong_of(one, problem) == ""


#: Rows of each group, and ends that go back and are to mean the same.
BACK = {
    "once": ([20, 0, 21, 19], [20, 5, 41, 60]),
    "twice, the second time farther": ([0, 41, 0, 0, 19, 0], [0, 41, 30, 7, 60, -1]),
    "across lanes": (
        [3, 0, 0, 50] + [0] * 28 + [7] + [0] * 40,
        [3, 1, 2, 53] + [9] * 28 + [60] + [53] * 40,
    ),
}


@pytest.mark.parametrize("name", BACK)
@pytest.mark.parametrize("family", NAMES)
def test_a_group_begins_not_before_the_last_end_so_far(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts, wrong = BACK[name]
    problem = from_linear(60, 72, 264, "bf16", groups=len(counts), routing=counts)
    monkeypatch.setattr(inputs, "ends_of", lambda _: np.array(wrong, np.int32))
    (one,) = build([FAMILIES[family].config(problem, CHOSEN[family], SM_90)], tmp_path, 32)
    assert wrong_of(one, problem) == ""


#: What is mistaken -> the family, the header, its text, and what stands there instead.
MISTAKES = {
    "columns of the first group": (
        "grouped-ring", "device/grouped.h",
        "const int start = group > 0 ? ends[group - 1] : 0, first",
        "const int start = 0, first",
    ),
    "another group's weights": (
        "grouped-tile", "families/grouped_tile.h",
        "at.group * args.stride_a",
        "0 * args.stride_a",
    ),
    "columns of the next group": (
        "grouped-ring", "device/grouped.h",
        "ends[group] - start - column",
        "COLUMNS",
    ),
    "sums of the previous tile": (
        "grouped-ring", "families/grouped_ring.h",
        "one = 0.0f;",
        "one += 0.0f;",
    ),
    "a slot that is still read": (
        "grouped-ring", "families/grouped_ring.h",
        "wait_copies<SLOTS - 2>",
        "wait_copies<SLOTS - 1>",
    ),
    "the last of k from before": (
        "grouped-ring", "families/grouped_ring.h",
        "Words{{0, 0, 0, 0}}",
        "Words{{0x3f803f80, 0, 0, 0}}",
    ),
    "patches that are overwritten": (
        "grouped-tile", "families/grouped_tile.h",
        "own.n = columns;",
        "own.n = columns - 1;",
    ),
    "a stage that is still read": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "wait_products<1>();",
        "wait_products<1>(), last = ring.stage;",
    ),
    "columns of the first group's place": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "at.start + at.column + rank()",
        "at.column + rank()",
    ),
    "the other block's part of the columns": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "kBytesA + rank() * kPart * kMapLine",
        "kBytesA + (1 - rank()) * kPart * kMapLine",
    ),
    "the first block's scale for all rows": (
        "grouped-ring", "families/grouped_ring.h",
        "(offset + row) / kScaleBlock * blocks + block",
        "block",
    ),
    "scales of the first group's weights": (
        "grouped-ring", "families/grouped_ring.h",
        "(at.group * down + at.row / kScaleBlock)",
        "(0 * down + at.row / kScaleBlock)",
    ),
    "scales of the first columns": (
        "grouped-ring", "families/grouped_ring.h",
        "all.scale_b + (static_cast<i64>(at.start) + at.column) * blocks",
        "all.scale_b + static_cast<i64>(at.column) * blocks",
    ),
    "rows' scales of the first group": (
        "grouped-ring", "families/grouped_ring.h",
        "static_cast<i64>(at.group) * all.gemm.m + at.row + row",
        "at.row + row",
    ),
    "scales that have not arrived": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "arrive_after_copies(done);",
        "arrive(done);",
    ),
    "the first step's scales": (
        "grouped-wgmma", "device/block_scales.h",
        "const float* const from = of_columns + step;",
        "const float* const from = of_columns;",
    ),
    "scales of the first warpgroup's rows": (
        "grouped-wgmma", "device/block_scales.h",
        "stage[BN + warp_index() / 4]",
        "stage[BN]",
    ),
    "another group's scales": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "(at.group * down + row / kScaleBlock)",
        "(0 * down + row / kScaleBlock)",
    ),
    "steps' sums that are added twice": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "at * kMatrixStep, at > 0)",
        "at * kMatrixStep, true)",
    ),
    "rows' scales of a lane's first row": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "load_global(of_rows + row + 8)",
        "load_global(of_rows + row)",
    ),
    "a patch that is still read": (
        "grouped-wgmma", "families/grouped_wgmma.h",
        "warp_barrier();\n            const D*",
        "const D*",
    ),
}  # fmt: skip


#: Mistakes that concern 8-bit floats with scales of blocks.
OF_BYTES = (
    "the first block's scale for all rows", "scales of the first group's weights",
    "scales of the first columns", "scales that have not arrived", "the first step's scales",
    "scales of the first warpgroup's rows", "another group's scales", "steps' sums that are added twice",
)  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    family, header, right, wrong = MISTAKES[name]
    folder = copied_headers(tmp_path)
    text = (folder / header).read_text()
    assert right in text
    (folder / header).write_text(text.replace(right, wrong))
    problem = SKEWED_ROWS if name.startswith("rows'") else SKEWED_BLOCKS if name in OF_BYTES else SKEWED
    values = CHOSEN[family] if problem == SKEWED else CHOSEN_BYTES[family]
    (one,) = build([FAMILIES[family].config(problem, values, SM_90)], tmp_path, 32, folder)
    assert wrong_of(one, problem) != ""


@pytest.mark.parametrize("family", NAMES)
def test_it_compiles_for_a_device(family: str, tmp_path: Path) -> None:
    """One unit for every product of as many groups, whatever its sizes and counts."""
    values = CHOSEN[family]
    units = {FAMILIES[family].config(one, values, SM_90).unit for one in (SKEWED, SHAPES["two of eight"])}
    assert len(units) == 1
    if Nvrtc().missing("sm_90") is not None:
        pytest.skip("NVRTC is not installed")
    nvrtc = Nvrtc()
    unit = CompileUnit(units.pop(), nvrtc.target("sm_90", family == "grouped-wgmma"))
    assert nvrtc.compile(unit, BinaryCache(tmp_path)).stat().st_size > 0


@pytest.mark.parametrize(
    ("family", "arch"), [("grouped-ring", "sm_89"), ("grouped-ring", "sm_90"), ("grouped-wgmma", "sm_90")]
)
def test_bytes_compile_for_a_device(family: str, arch: str, tmp_path: Path) -> None:
    nvrtc = Nvrtc()
    if nvrtc.missing(arch) is not None:
        pytest.skip("NVRTC is not installed")
    for problem in (SKEWED_BLOCKS, SKEWED_ROWS):
        found = FAMILIES[family].config(problem, CHOSEN_BYTES[family], SM_90)
        unit = CompileUnit(found.unit, nvrtc.target(arch, family == "grouped-wgmma"))
        assert nvrtc.compile(unit, BinaryCache(tmp_path)).stat().st_size > 0


@pytest.mark.parametrize("family", SCALED)
def test_what_it_refuses_of_bytes(family: str) -> None:
    one, values = FAMILIES[family], CHOSEN_BYTES[family]
    assert one.rule(SKEWED_BLOCKS, values, H200) is None
    odd = fp8(60, 72, 520, groups=6)
    assert "16 bytes" in (one.rule(odd, values, H200) or "")
    assert "sm_80" in (one.rule(SKEWED_BLOCKS, values, replace(H200, arch="sm_80")) or "")
    if family == "grouped-ring":
        for problem, deep, line in ((SKEWED_BLOCKS, 64, 64), (SKEWED, 512, 1024)):
            said = one.rule(problem, {**values, "tile_k": deep}, H200)
            assert said == f"lines of a chunk have 128 to 512 bytes, not {line}"


@pytest.mark.parametrize("family", NAMES)
def test_what_it_refuses(family: str) -> None:
    one = FAMILIES[family]
    values = CHOSEN[family]
    assert "one matrix" in (one.unsupported(from_linear(60, 72, 264, "bf16")) or "")
    odd = from_linear(60, 72, 263, "bf16", groups=6)
    assert "16 bytes" in (one.rule(odd, values, H200) or "")
    assert one.rule(SKEWED, values, H200) is None
    assert "sm_70" in (one.rule(SKEWED, values, replace(H200, arch="sm_70")) or "")


@pytest.mark.parametrize("family", NAMES)
def test_there_are_candidates(family: str) -> None:
    for rows, kind in ((8, "bf16"), (4096, "bf16"), (8, "fp8"), (4096, "fp8")):
        plain = from_linear(rows, 1536, 2048, "bf16", groups=128)
        problem = plain if kind == "bf16" else fp8(rows, 1536, 2048, groups=128)
        if not FAMILIES[family].supports(problem):
            continue
        listed = list(FAMILIES[family].candidates(problem, H200))
        assert listed or family == "grouped-tile"
        assert all(FAMILIES[family].rule(problem, values, H200) is None for values in listed)


def test_a_launch_has_blocks_for_any_counts() -> None:
    """The most tiles that counts can make."""
    base = from_linear(60, 72, 264, "bf16", groups=6)
    for routing in ([60, 0, 0, 0, 0, 0], [10] * 6, [1, 1, 1, 1, 1, 55], [17, 17, 17, 1, 1, 7]):
        problem = from_linear(60, 72, 264, "bf16", groups=6, routing=routing)
        assert tiles(OrientedGemm(problem), 32, 16) <= most_tiles(OrientedGemm(base), 32, 16)
    assert [capacity(replace(base, groups=groups)) for groups in (1, 33, 256)] == [32, 64, 256]
