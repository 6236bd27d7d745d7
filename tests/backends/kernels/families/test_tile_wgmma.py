"""tile-wgmma: where sizes end, clusters, stores, mistakes that must show, what is refused and listed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from backends.errors import LaunchError
from backends.kernels.families import FAMILIES
from backends.kernels.family import number
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.legality import arch_of
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter, Solution
from backends.toolchains.nvrtc import Nvrtc
from tests.backends.kernels.emulator.host import H200, Built, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.samples import SM_90
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["tile-wgmma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 24, "stages": 2, "share": 1, "share_b": 1, "splits": 1, "group": 8,
}  # fmt: skip
#: Parameters unlike one another.
VARIED: tuple[dict[str, Parameter], ...] = (
    CHOSEN,
    {**CHOSEN, "tile_m": 128, "tile_n": 40, "stages": 3, "share": 2},
    {**CHOSEN, "tile_n": 8, "stages": 4, "splits": 3, "group": 1},
    {**CHOSEN, "share": 2, "splits": 2},
    {**CHOSEN, "tile_m": 192, "tile_n": 8, "share": 4, "splits": 2, "group": 1},
    {**CHOSEN, "tile_n": 32, "stages": 3, "share": 2, "share_b": 2},
    {**CHOSEN, "tile_n": 48, "share_b": 2, "splits": 3, "group": 1},
)
Found = list[tuple[GemmProblem, dict[str, Parameter]]]


def refusal(problem: GemmProblem, values: dict[str, Parameter], arch: str = "sm_90") -> str | None:
    solution = Solution(FAMILY.name, FAMILY.version, values)
    return FAMILY.illegal(problem, solution, replace(H200, arch=arch))


def wrong_of(built: Built, problem: GemmProblem) -> str:
    """What the verifier says on the host, either way around, or the launch itself."""
    verifier, case = Verifier(HostDevice()), Case(problem, 3, "normal", "exact")  # type: ignore[arg-type]
    said = []
    for other_way in (False, True):
        try:
            said.append(verifier.check(HostKernel(built, other_way), case, runs=1).wrong)
        except LaunchError as error:
            said.append(str(error))
    return "; ".join(filter(None, said))


def findings(found: Found, folder: Path) -> list[str]:
    """What is wrong with configurations that are legal."""
    for problem, values in found:
        assert refusal(problem, values) is None, (problem.slug, values)
    kernels = build([FAMILY.config(*one, SM_90) for one in found], folder)
    said = []
    for (problem, values), built in zip(found, kernels, strict=True):
        wrong = wrong_of(built, problem)
        if wrong:
            said.append(f"{problem.slug} by {values}: {wrong}")
    return said


def deep(m: int, n: int, k: int, kind: str = "bf16", **more: Any) -> GemmProblem:
    """Both operands along k, their lines longer than k: by less than 16 bytes, or by more."""
    lda = k + -k % 8
    more = {"beta": 1.0, **more}
    return from_blas(m, n, k, kind, trans_a="T", trans_b="N", lda=lda, ldb=lda + 24, **more)


# ---- on the host ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_sizes_may_end_anywhere(kind: str, tmp_path: Path) -> None:
    """Single rows, columns and elements; tiles of D that are whole, and that are not."""
    sizes = ((133, 85, 197), (128, 48, 128), (1, 40, 72), (40, 1, 72), (1, 1, 1), (2, 70, 65), (64, 9, 7))
    found: Found = [(deep(*size, kind), values) for size in sizes for values in VARIED[kind == "fp16" :: 2]]
    assert findings(found, tmp_path) == []


def test_k_may_end_anywhere(tmp_path: Path) -> None:
    """Slices of whole tiles, of none, and of a part of one; more tiles than stages and fewer."""
    found: Found = [
        (deep(68, 30, k), {**CHOSEN, "tile_n": 8, "splits": splits, "stages": stages})
        for splits, stages in ((1, 2), (1, 5), (2, 3), (8, 2))
        for k in (1, 63, 64, 65, 257, 64 * 9 + 3)
    ]
    assert findings(found, tmp_path) == []


def test_clusters_of_every_shape(tmp_path: Path) -> None:
    """Rows and columns of whole clusters and of a part; bands of one row of clusters, and of several."""
    shapes = [
        (share, share_b, splits)
        for share, share_b, splits in product((1, 2, 4), (1, 2, 4), range(1, 9))
        if share * share_b * splits <= 8
    ]
    assert len(shapes) == 24
    found: Found = [
        (
            deep(130 + index % 3, 35 * share_b, 450),
            {**CHOSEN, "tile_n": 8 * share_b, "stages": 2 + index % 3, "share": share, "share_b": share_b,
             "splits": splits, "group": 1 + index // 2 % 2 * 7},
        )
        for index, (share, share_b, splits) in enumerate(shapes)
    ]  # fmt: skip
    assert findings(found, tmp_path) == []


def test_tiles_of_every_height_and_many_widths(tmp_path: Path) -> None:
    shapes = ((64, 176, 2), (128, 96, 2), (192, 40, 3), (256, 24, 4), (64, 256, 2))
    found: Found = [
        (deep(260, 181, 150), {**CHOSEN, "tile_m": bm, "tile_n": bn, "stages": stages})
        for bm, bn, stages in shapes
    ]
    assert findings(found, tmp_path) == []


def test_bands_of_tiles(tmp_path: Path) -> None:
    """More rows of tiles than a band has, and of clusters."""
    found: Found = [
        (deep(64 * 9 + 5, 40, 64), {**CHOSEN, "tile_n": 16, "share_b": share_b, "group": group})
        for share_b, group in ((1, 1), (1, 8), (2, 1), (2, 8))
    ]
    assert findings(found, tmp_path) == []


EPILOGUES = (
    from_linear(70, 90, 200, "bf16", bias="bf16", activation="gelu"),
    from_linear(35, 132, 136, "fp16", bias="fp32", activation="silu", beta=2.0, alpha=0.5),
    from_blas(66, 43, 136, "bf16", trans_a="T", bias="fp32", bias_axis="n", activation="relu"),
    from_linear(70, 90, 64, "bf16", dtype_d="fp32", bias="fp32", ldd=131, beta=1.0),
    from_mm(67, 36, 104, "fp16", trans_b="T", dtype_d="fp32"),
    from_linear(33, 128, 136, "bf16", bias="bf16", activation="silu", ldd=137),
)


def test_epilogues_and_types(tmp_path: Path) -> None:
    """D's rows stored by fours and one by one, of sums of one slice and of several."""
    found: Found = [(one, VARIED[more]) for one in EPILOGUES for more in (0, 3, 5)]
    assert findings(found, tmp_path) == []


def test_plain_sums(tmp_path: Path) -> None:
    """By fours, at the end of D by fewer, and one by one."""
    shapes = ((132, 60, 136), (131, 61, 132), (67, 50, 67), (128, 48, 129))
    plain = [deep(m, n, 260, beta=0.0, ldd=ldd) for m, n, ldd in shapes]
    plain += [deep(67, 50, 200, "fp16", dtype_d="fp32", beta=0.0, ldd=ldd) for ldd in (68, 67)]
    found: Found = [(one, values) for one in plain for values in VARIED]
    assert findings(found, tmp_path) == []


BATCHES = (
    from_bmm(3, 66, 35, 64, "bf16", trans_b="T", beta=1.0),
    from_bmm(4, 33, 70, 72, "bf16", trans_b="T", stride_a=33 * 72 + 8, stride_b=70 * 72 + 16),
    from_bmm(5, 8, 16, 40, "bf16", trans_b="T"),
    from_bmm(2, 40, 24, 136, "fp16", trans_b="T", bias="fp16", activation="gelu", dtype_d="fp32"),
)


def test_batches(tmp_path: Path) -> None:
    """The other way around more blocks than products, along the grid's y with the slices."""
    found: Found = [(one, VARIED[more]) for one in BATCHES for more in (0, 1, 3, 5, 6)]
    assert findings(found, tmp_path) == []


# ---- mistakes that must show ---------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A text of the header or of tile_sums.h, what stands there instead, the case that shows it, and in which
    words."""

    text: str
    wrong: str
    case: str
    words: str = ""


#: One block a tile; blocks that share A's tile, B's, and either's; slices of k, stored one by one; slices of
#: tiles that are shared; a batch; plain sums, by fours and one by one.
CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "alone": (deep(132, 60, 400), {**CHOSEN, "tile_m": 128}),
    "shared": (deep(68, 84, 400), {**CHOSEN, "share": 2}),
    "below": (deep(150, 40, 400), {**CHOSEN, "tile_n": 16, "share_b": 2}),
    "square": (deep(150, 84, 400), {**CHOSEN, "tile_n": 32, "share": 2, "share_b": 2}),
    "split": (deep(70, 30, 700), {**CHOSEN, "splits": 3}),
    "both": (deep(72, 60, 700), {**CHOSEN, "share": 2, "splits": 2}),
    "all": (deep(132, 60, 700), {**CHOSEN, "tile_n": 16, "share": 2, "share_b": 2, "splits": 2}),
    "batch": (from_bmm(3, 24, 20, 72, "bf16", trans_b="T"), {**CHOSEN, "splits": 2}),
    "plain": (deep(130, 84, 200, beta=0.0, ldd=132), {**CHOSEN, "tile_n": 88}),
    "plain slices": (deep(132, 90, 400, beta=0.0), {**CHOSEN, "tile_n": 88, "splits": 2}),
    "plain lines": (deep(130, 90, 400, beta=0.0, ldd=131), {**CHOSEN, "tile_n": 88, "splits": 2}),
}
_RELEASE = "if (tile > 0 && tile + STAGES <= tiles) release(&empty[last]);"
_WAITED = "wait_products<1>();  // those of the tile before\n"
_LAID = "        if (!copies) Sums::lay_out(sum, warp, patch);\n"
_MET = f"        block_barrier();\n{_LAID}"
_ARRIVED = "        if (kTiles > 1) arrive_at_cluster();\n"
_BEGUN = """        if (warp == 0 && lane_index() == 0) {
            for (int stage = 0; stage < STAGES; ++stage)
                start_barrier(&full[stage], kFills), start_barrier(&empty[stage], kReleases);
            started_barriers();
        }
"""
_STARTED = "if (kTiles > 1) wait_for_cluster();  // what others send comes to barriers that are there\n"
_STARTED += "        else block_barrier();"
_SUMMED = "if (SPLITS > 1) cluster_barrier<true>();\n        else block_barrier();"
_ENDED = "        if (SPLITS > 1) cluster_barrier<false>();  // others"
_EMPTY, _FULL = (f"            wait_phase(&{one}[ring.stage], ring.parity);\n" for one in ("empty", "full"))
_ARRIVALS = "&empty[stage], kReleases)"
_SLICER = "return slice * TILES + static_cast<int>(block_x() % TILES);"
_SENT_A = "send<SHARE>(to + part_a * kMapLine, &all.maps[0], p, row, z, done, beside);"
_SENT_B = "send<SHARE_B>(to + kBytesA + part_b * kMapLine, &all.maps[1], p, column, z, done, below);"
MISTAKES = (
    # Phases.
    Mistake("Ring ring(kFree);", "Ring ring(kFilled);", "alone", "a phase that nothing ends"),
    Mistake("Ring ring(kFilled);", "Ring ring(kFree);", "alone"),
    Mistake("stage = 0, parity ^= 1;", "stage = 0;", "alone"),
    Mistake(_EMPTY, "            (void)empty;\n", "alone"),
    Mistake(_FULL, "            (void)full;\n", "alone"),
    Mistake(_FULL, f"            if (warp_index() == 0)\n    {_FULL}", "alone"),
    Mistake("start_barrier(&full[stage], kFills)", "start_barrier(&full[stage], kFills + 1)", "alone"),
    Mistake(_ARRIVALS, "&empty[stage], kWorkers * kReaders - 1)", "alone"),
    Mistake(
        _ARRIVALS,
        "&empty[stage], kWorkers * kReaders + 1)",
        "alone",
        "a phase that nothing ends",
    ),
    Mistake(_ARRIVALS, "&empty[stage], kWorkers)", "shared"),
    Mistake(_ARRIVALS, "&empty[stage], kWorkers * SHARE)", "square"),
    Mistake(_ARRIVALS, "&empty[stage], kWorkers * SHARE_B)", "square"),
    Mistake("kReaders = SHARE + SHARE_B - 1", "kReaders = SHARE * SHARE_B", "square"),
    Mistake("kReaders = SHARE + SHARE_B - 1", "kReaders = SHARE", "below"),
    Mistake("expect_bytes(done, kStage)", "expect_bytes(done, kStage - 16)", "alone"),
    Mistake("expect_bytes(done, kStage)", "expect_bytes(done, kStage + 16)", "alone"),
    Mistake("expect_bytes(done, kStage)", "expect_bytes(done, kBytesA / SHARE + kBytesB)", "shared"),
    Mistake("expect_bytes(done, kStage)", "expect_bytes(done, kBytesA + kBytesB / SHARE_B)", "below"),
    Mistake("if (kScaling || lane_index() == 0) copy(", "if (lane_index() < 2) copy(", "alone"),
    Mistake("if (lane_index() == 0) arrive(empty);", "arrive(empty);", "alone"),
    Mistake("empty = full + STAGES;", "empty = full + 1;", "alone"),
    Mistake("(shared + kBarriers);", "(shared + kPipeline - 16);", "alone"),
    # Products and the buffers that they read.
    Mistake("wait_products<1>();", "wait_products<2>();", "alone"),
    Mistake("        wait_products<0>();\n", "", "alone"),
    Mistake(_WAITED, f"{_RELEASE}\n", "alone"),
    Mistake(_RELEASE, _RELEASE.replace("last", "ring.stage"), "alone"),
    Mistake(_RELEASE, "if (tile + STAGES <= tiles) release(&empty[last]);", "alone"),
    Mistake(_RELEASE, "if (tile > 0) release(&empty[last]);", "shared", "of a block that has ended"),
    Mistake(_RELEASE, "if (tile > 0) release(&empty[last]);", "below", "of a block that has ended"),
    Mistake(_RELEASE, _RELEASE.replace("<=", "<"), "alone", "a phase that nothing ends"),
    Mistake("            last = ring.stage;\n", "", "alone"),
    Mistake("            begin_products();\n", "", "alone", "no group of products has begun"),
    Mistake("            end_products();\n", "", "alone"),
    Mistake("warp_index() / 4 * 64 * kMapLine", "warp_index() / 4 * 0 * kMapLine", "alone"),
    Mistake("ring.stage * (kStage / 16)", "ring.stage * (kBytesA / 16)", "alone"),
    Mistake("first_a + on + step * kMatrixStep", "first_a + on", "alone"),
    Mistake("first_b + on + step * kMatrixStep", "first_b + on", "alone"),
    # Where all meet.
    Mistake(_MET, f"{_LAID}        block_barrier();\n", "alone"),
    Mistake(_MET, _LAID, "alone"),
    Mistake(_LAID, _LAID.replace("if (!copies) ", ""), "alone"),
    Mistake(_STARTED, "", "alone", "nobody has started"),
    Mistake(_STARTED, "block_barrier();", "shared", "nobody has started"),
    Mistake(_STARTED, "block_barrier();", "below", "nobody has started"),
    Mistake(f"{_BEGUN}{_ARRIVED}", f"{_ARRIVED}{_BEGUN}", "shared", "nobody has started"),
    Mistake(_SUMMED, _SUMMED.split("\n", 1)[0], "alone"),
    Mistake(_SUMMED, "block_barrier();", "split", "is not seen yet"),
    Mistake(_SUMMED, _SUMMED.replace("<true>", "<false>"), "both", "is not seen yet"),
    Mistake(_ENDED, "        // others", "split", "of a block that has ended"),
    # Slices of k, and which block is whose.
    Mistake("begin = static_cast<int>(from)", "begin = static_cast<int>(from * 0)", "split"),
    Mistake("from = least(slice * each, steps)", "from = least(slice * (each - 1), steps)", "split"),
    Mistake("each = (steps - 1) / SPLITS + 1", "each = (steps - 1) / SPLITS", "split"),
    Mistake(
        "(static_cast<unsigned>(args.k) - 1) / kDeep + 1", "static_cast<unsigned>(args.k) / kDeep", "split"
    ),
    Mistake("p = (begin + tile) * kDeep", "p = tile * kDeep", "split"),
    Mistake(
        "p = (begin + tile) * kDeep", "p = (begin + tile) * kDeep + 1", "alone", "begins between 16 bytes"
    ),
    Mistake("slice = block_y() % SPLITS", "slice = block_y() % SPLITS * 0", "batch"),
    Mistake("        if (batch >= static_cast<unsigned>(args.batch)) return;", "        //", "batch"),
    Mistake("block_y() / SPLITS * static_cast", "block_y() * static_cast", "batch"),
    Mistake("z = static_cast<int>(batch);", "z = static_cast<int>(batch) * 0;", "batch"),
    Mistake("BN * SHARE, kBand>", "BN, kBand>", "shared"),
    Mistake("BM * SHARE_B, BN", "BM, BN", "below"),
    Mistake("place(block_x() / kTiles,", "place(block_x(),", "shared"),
    Mistake("place(block_x() / kTiles,", "place(block_x() / SHARE,", "square"),
    Mistake("found.i += row_of_cluster() * BM, ", "", "below"),
    Mistake(", found.j += column_of_cluster() * BN;", ";", "shared"),
    Mistake("block_x() % kTiles / SHARE);", "block_x() / SHARE);", "square"),
    Mistake("block_x() % SHARE);", "block_x() % kTiles);", "square"),
    Mistake("kTiles + row * SHARE + column;", "kTiles + row * SHARE_B + column;", "below"),
    Mistake("kTiles + row * SHARE + column;", "SHARE + row * SHARE + column;", "all"),
    Mistake("return static_cast<int>(block_y() % SPLITS) * kTiles + row", "return row", "both"),
    Mistake(_SLICER, "return slice;", "both"),
    Mistake(_SLICER, "return slice * TILES;", "both"),
    Mistake(_SLICER, _SLICER.replace("% TILES", "% (TILES / 2)"), "all"),
    Mistake("} else if (lane_index() < kReaders) {", "} else if (lane_index() < 1) {", "shared"),
    Mistake("} else if (lane_index() < kReaders) {", "} else if (lane_index() < SHARE) {", "square"),
    Mistake("reader(lane_index()));", "reader(0));", "shared"),
    Mistake("if (at < SHARE) return", "if (at <= SHARE) return", "square"),
    Mistake("other < row_of_cluster() ? other : other + 1", "other", "square"),
    Mistake("other < row_of_cluster() ? other : other + 1", "other + 1", "below"),
    Mistake("other + 1, column_of_cluster());", "other + 1, 0);", "square"),
    # Boxes.
    Mistake(_SENT_A, _SENT_A.replace("<SHARE>", "<1>"), "shared"),
    Mistake(_SENT_A, _SENT_A.replace("part_a", "0"), "shared"),
    Mistake(_SENT_A, _SENT_A.replace("beside", "below"), "square"),
    Mistake(_SENT_B, _SENT_B.replace("<SHARE_B>", "<1>"), "below"),
    Mistake(_SENT_B, _SENT_B.replace("part_b", "0"), "below"),
    Mistake(_SENT_B, _SENT_B.replace("below", "beside"), "square"),
    Mistake(_SENT_B, _SENT_B.replace("kBytesA", "kBytesB"), "alone"),
    Mistake(_SENT_B, _SENT_B.replace("maps[1]", "maps[0]"), "alone"),
    Mistake(_SENT_B, _SENT_B.replace("column", "row"), "alone"),
    Mistake("row = static_cast<int>(place.i) + part_a,", "row = static_cast<int>(place.i),", "shared"),
    Mistake("column = static_cast<int>(place.j) + part_b;", "column = static_cast<int>(place.j);", "below"),
    Mistake("part_a = column_of_cluster()", "part_a = row_of_cluster()", "square"),
    Mistake("part_b = row_of_cluster()", "part_b = column_of_cluster()", "square"),
    Mistake("at < SHARE; ++at) beside", "at < SHARE - 1; ++at) beside", "shared"),
    Mistake("at < SHARE_B; ++at) below", "at < SHARE_B - 1; ++at) below", "below"),
    Mistake("beside |= 1u << rank_of(row_of_cluster(), at)", "beside |= 1u << at", "both"),
    Mistake("beside |= 1u << rank_of(row_of_cluster(), at)", "beside |= 1u << rank_of(0, at)", "square"),
    Mistake("below |= 1u << rank_of(at, column_of_cluster())", "below |= 1u << rank_of(at, 0)", "square"),
    Mistake("below |= 1u << rank_of(at, column_of_cluster())", "below |= 1u << at * SHARE", "all"),
    # From sums to D.
    Mistake("at / 2 % 2 * 8]", "at % 2 * 8]", "alone"),
    Mistake("(at / 4 * 8 + at % 2) * kPitch", "(at / 4 * 8 + at % 2) * BM", "alone"),
    Mistake("member * 2 * kPitch", "member * kPitch", "alone"),
    Mistake("rows * 16 + group", "rows * 8 + group", "alone"),
    Mistake("patch + column * kPitch + row", "patch + column * BM + row", "alone"),
    Mistake("patch + column * kPitch + lane", "patch + column * BM + lane", "split"),
    Mistake("/ kFours * SPLITS + slice;", "/ kFours * SPLITS;", "both"),
    Mistake("&& row + 4 <= here.rows)", ")", "plain"),
    Mistake("else if (row < here.rows) store_fours<false>", "else if (false) store_fours<false>", "plain"),
    Mistake("n * kAcross >= columns) break;", "n * kAcross > columns) break;", "plain"),
    Mistake("from + n * kAcross * kPitch, four[n]", "from + n * kPitch, four[n]", "plain"),
    Mistake("from += kAtOnce * kAcross * kPitch;", "from += kAcross * kPitch;", "plain"),
    Mistake("                to += kAcross * here.args.d_column;\n", "", "plain slices"),
    Mistake("to = here.d + row + column * here.args.d_column", "to = here.d + row", "plain"),
    Mistake("to = here.d + lane + column * here.args.d_column", "to = here.d + lane", "plain lines"),
    Mistake("store4(row, column + n * kAcross, four[n])", "store4(row, slice, four[n])", "alone"),
    Mistake("            to += kAcross * here.args.d_column, from", "            from", "plain lines"),
    Mistake("if (at + n * 32 >= left) continue;", "", "plain lines"),
    Mistake("to[at + n * 32] =", "to[at + n * 16] =", "plain lines"),
    Mistake("warp_index() * SPLITS + slice;", "warp_index() * SPLITS;", "split"),
    Mistake("at + n * 32 + lane, column, value[n]", "at / 2 + n * 32 + lane, column, value[n]", "split"),
    Mistake("four[e] += all[slice][e];", "four[e] += all[0][e];", "both"),
    Mistake("slice < SPLITS; ++slice) all += read", "slice < SPLITS - 1; ++slice) all += read", "split"),
)


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """Every mistake in a header and a class of its own, all of one library."""
    folder = tmp_path_factory.mktemp("mistaken")
    copied_headers(folder)
    unused = ("variable", "parameter", "but-set-variable")
    allowed = "".join(f'#pragma GCC diagnostic ignored "-Wunused-{what}"\n' for what in unused)
    include, sums = '#include "device/tile_sums.h"\n', (HEADERS / "device/tile_sums.h").read_text()
    good = (
        (HEADERS / "families/tile_wgmma.h").read_text().replace(include, sums.replace("#pragma once\n", ""))
    )
    configurations = []
    for index, mistake in enumerate(MISTAKES):
        assert good.count(mistake.text) == 1, mistake.text
        text = good.replace(mistake.text, mistake.wrong).replace("TileWgmma", f"Mistaken{index}")
        text = text.replace("TileSums", f"Sums{index}")
        (folder / f"{index}.h").write_text(allowed + text)
        one = FAMILY.config(*CASES[mistake.case], SM_90)
        made = one.instantiation.replace("TileWgmma", f"Mistaken{index}")
        configurations.append(replace(one, header=f"{index}.h", instantiation=made))
    return build(configurations, folder, headers=folder)


def test_the_cases_of_mistakes_are_right_without(tmp_path: Path) -> None:
    assert findings(list(CASES.values()), tmp_path) == []


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_a_mistake_shows(index: int, mistaken: list[Built]) -> None:
    mistake = MISTAKES[index]
    found = wrong_of(mistaken[index], CASES[mistake.case][0])
    assert found != "", mistake
    assert mistake.words in found, mistake


# ---- what is refused and listed ------------------------------------------------------------------

SQUARE = from_linear(512, 512, 512, "bf16")
BATCH = from_bmm(3, 64, 64, 64, "bf16", trans_b="T")


def test_what_is_refused_below_is_legal_otherwise() -> None:
    assert [refusal(one, CHOSEN) for one in (SQUARE, BATCH, from_linear(1, 1, 5, "bf16", ldb=8))] == [
        None
    ] * 3


@pytest.mark.parametrize(
    ("problem", "values", "words"),
    [
        (from_mm(512, 512, 512, "bf16"), {}, "both operands must be contiguous along k"),
        (from_linear(64, 64, 64), {}, "our kernels multiply fp16 in fp32, bf16 in fp32, .*, not fp32 x fp32"),
        (from_linear(64, 64, 64, "tf32"), {}, "our kernels multiply .*, not fp32 x fp32 in tf32"),
        (from_linear(512, 512, 511, "bf16"), {}, "takes lines at multiples of 16 bytes; A's are not"),
        (from_linear(512, 512, 512, "bf16", lda=516), {}, "lines at multiples of 16 bytes; B's are not"),
        (replace(SQUARE, alignment=8), {}, "takes lines at multiples of 16 bytes; A's are not"),
        (replace(BATCH, stride_a=64 * 64 + 4), {}, "takes lines at multiples of 16 bytes; .'s are not"),
        (replace(BATCH, stride_a=0), {}, "A is the whole batch's"),
        (replace(BATCH, stride_b=0), {}, "B is the whole batch's"),
        (replace(BATCH, stride_b=2**39), {}, r"takes steps below 2\^40 bytes; B has a longer one"),
        (SQUARE, {"share": 4, "splits": 3}, "a cluster has 8 blocks, not share 4 by share_b 1 by splits 3"),
        (SQUARE, {"share": 4, "share_b": 4}, "a cluster has 8 blocks, not share 4 by share_b 4 by splits 1"),
        (SQUARE, {"share_b": 2}, "tile_n 24 is no multiple of share_b parts of eight lines, 16"),
        (SQUARE, {"tile_m": 256, "tile_n": 256, "stages": 4}, "bytes of shared memory; sm_90 has 232448"),
        (SQUARE, {"tile_m": 256, "tile_n": 200}, "operands and sums take 100 registers; 640 threads have 70"),
        (SQUARE, {"tile_n": 12}, "tile_n must be one of 8, 16, .*, not 12"),
        (SQUARE, {"stages": 1}, "stages must be one of 2, 3, .*, not 1"),
        (SQUARE, {"splits": 9}, "splits must be one of 1, 2, .*, not 9"),
        (SQUARE, {"share": 3}, "share must be one of 1, 2, 4, not 3"),
        (SQUARE, {"share_b": 8}, "share_b must be one of 1, 2, 4, not 8"),
    ],
)  # fmt: skip
def test_what_a_rule_forbids(problem: GemmProblem, values: dict[str, Parameter], words: str) -> None:
    found = refusal(problem, {**CHOSEN, **values})
    assert found is not None
    assert re.search(words, found), found


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
def test_only_hopper_has_wgmma(arch: str) -> None:
    assert refusal(SQUARE, CHOSEN, arch) == f"wgmma needs sm_90a, not {arch}"
    assert not list(FAMILY.solutions(SQUARE, replace(H200, arch=arch)))


@pytest.mark.parametrize(
    "problem",
    [SQUARE, from_linear(4096, 4096, 4096, "bf16"), from_linear(4096, 64, 8192, "fp16"),
     from_bmm(3, 100, 70, 512, "bf16", trans_b="T")],
    ids=lambda p: p.slug,
)  # fmt: skip
def test_what_is_listed_is_legal_and_few(problem: GemmProblem) -> None:
    found = list(FAMILY.solutions(problem, H200))
    assert 4 <= len(found) <= 48
    assert len({(one.parameters["tile_m"], one.parameters["tile_n"]) for one in found}) > 1
    for one in found:
        assert refusal(problem, dict(one.parameters)) is None
        made = FAMILY.config(problem, one.parameters, SM_90)
        assert Nvrtc().target("sm_90", made.arch_specific) == "sm_90a"
        assert made.shared_bytes <= arch_of(H200).block_shared_bytes
        wide, high, _ = made.cluster or (1, 1, 1)
        assert wide == number(one.parameters, "share") * number(one.parameters, "share_b")
        assert high == number(one.parameters, "splits")
        assert made.grid[0] % wide == made.grid[1] % high == 0


@pytest.mark.parametrize(("m", "n", "k"), [(1000, 1000, 1000), (333, 1000, 6216), (2056, 2056, 2056)])
def test_rectangles_are_listed_where_l2_binds(m: int, n: int, k: int) -> None:
    """Of every shape, with tiles that are not small."""
    found = [one.parameters for one in FAMILY.solutions(from_linear(m, n, k, "bf16"), H200)]
    large = [one for one in found if number(one, "tile_m") * number(one, "tile_n") >= 64 * 96]
    assert {(one["share"], one["share_b"]) for one in large} >= {(2, 2), (2, 4), (4, 2)}


def test_of_a_tile_and_a_cluster_no_pipeline_is_only_shallower() -> None:
    """Where every block has a multiprocessor for itself."""
    found = [one.parameters for one in FAMILY.solutions(from_linear(1000, 1000, 1000, "bf16"), H200)]
    large = [one for one in found if number(one, "tile_m") * number(one, "tile_n") >= 128 * 128]
    names = ("tile_m", "tile_n", "share", "share_b", "splits")
    assert len({tuple(one[name] for name in names) for one in large}) == len(large) > 4
