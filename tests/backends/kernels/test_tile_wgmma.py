"""tile-wgmma: how lines start and sizes end, clusters, mistakes that must show, what is refused."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from backends.errors import LaunchError
from backends.kernels.families import FAMILIES, HEADERS
from backends.kernels.hopper import TileWgmma
from backends.kernels.legality import arch_of
from backends.kernels.product import Product
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter, Solution
from tests.backends.kernels.host import H200, Built, HostDevice, HostKernel, build
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["tile-wgmma"]
assert isinstance(FAMILY, TileWgmma)
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 24, "stages": 2, "share": 1, "splits": 1, "loaders": 4, "piece": 2, "pieces": 2,
    "group": 8,
}  # fmt: skip
#: Parameters unlike one another.
VARIED: tuple[dict[str, Parameter], ...] = (
    CHOSEN,
    {**CHOSEN, "tile_m": 128, "tile_n": 40, "stages": 3, "share": 2, "loaders": 8},
    {**CHOSEN, "tile_n": 8, "stages": 4, "splits": 3, "loaders": 12, "group": 1},
    {**CHOSEN, "tile_m": 192, "tile_n": 16, "splits": 2},
    {**CHOSEN, "tile_m": 128, "tile_n": 72, "share": 2, "splits": 2, "loaders": 8},
    {**CHOSEN, "tile_m": 256, "tile_n": 24, "share": 4, "splits": 2, "stages": 3},
)
Found = list[tuple[GemmProblem, dict[str, Parameter]]]


def refusal(problem: GemmProblem, values: dict[str, Parameter], arch: str = "sm_90") -> str | None:
    solution = Solution(FAMILY.name, FAMILY.version, values)
    return FAMILY.illegal(problem, solution, replace(H200, arch=arch))


def fitting(problem: GemmProblem, values: dict[str, Parameter]) -> tuple[GemmProblem, dict[str, Parameter]]:
    """With those parameters, but only what the copy engine brings is shared, and fewer rows are a tile where
    warps that realign need registers."""
    product = Product(problem)
    share = values["share"] if product.aligned("a") else 1
    whole = product.aligned("a") and product.aligned("b")
    tile_m = values["tile_m"] if whole else min(192, int(values["tile_m"] or 0))
    return problem, {**values, "share": share, "tile_m": tile_m}


#: Of the host's header: a load that is told apart from one within the operands.
PLAIN = "inline Words read16(const void* p) { return aligned_load<Words>(p, 16); }\n"
CHECKED = """inline Words read16(const void* p) {
    const char* const at = static_cast<const char*>(p);
    bool within = false;
    for (const auto& one : host::machine.operands) within |= one.begin <= at && at + 16 <= one.end;
    if (!within) host::fail("a wide load from beyond the operands");
    return aligned_load<Words>(p, 16);
}
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the kernels, with the host's CHECKED load."""
    folder = tmp_path_factory.mktemp("headers")
    for path in HEADERS.glob("*.h"):
        shutil.copy(path, folder)
    text = (HEADERS / "host.h").read_text()
    assert text.count(PLAIN) == 1
    (folder / "host.h").write_text(text.replace(PLAIN, CHECKED))
    return folder


def wrong_of(built: Built, problem: GemmProblem, verifier: Verifier) -> str:
    """What the verifier says on the host, either way around, or the launch itself."""
    case, said = Case(problem, 3, "normal", "exact"), []
    for other_way in (False, True):
        try:
            said.append(verifier.check(HostKernel(built, other_way), case, runs=1).wrong)
        except LaunchError as error:
            said.append(str(error))
    return "; ".join(filter(None, said))


def findings(found: Found, folder: Path, headers: Path) -> list[str]:
    """What is wrong with configurations that are legal."""
    for problem, values in found:
        assert refusal(problem, values) is None, (problem.slug, values)
    kernels = build([FAMILY.configuration(*one) for one in found], folder, headers=headers)
    said = []
    for (problem, values), built in zip(found, kernels, strict=True):
        wrong = wrong_of(built, problem, Verifier(HostDevice()))  # type: ignore[arg-type]
        if wrong:
            said.append(f"{problem.slug} by {values}: {wrong}")
    return said


def deep(m: int, n: int, k: int, kind: str, extra: tuple[int, int], **more: Any) -> GemmProblem:
    """Both operands along k, whose lines are so many elements longer than whole 16 bytes."""
    lda, ldb = (k + -k % 8 + beyond for beyond in extra)
    return from_blas(m, n, k, kind, trans_a="T", trans_b="N", lda=lda, ldb=ldb, beta=1.0, **more)


# ---- on the host ---------------------------------------------------------------------------------

#: Elements between the lines of A and of B beyond whole 16 bytes.
STARTS = ((0, 0), (4, 2), (2, 4), (1, 0), (0, 3), (5, 7), (6, 1), (7, 6), (4, 4), (0, 4), (3, 0), (2, 5))


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_lines_may_start_anywhere(kind: str, headers: Path, tmp_path: Path) -> None:
    found = [
        fitting(deep(133, 85, 197, kind, extra), VARIED[(number + (kind == "fp16")) % len(VARIED)])
        for number, extra in enumerate(STARTS)
    ]
    assert findings(found, tmp_path, headers) == []


def test_operands_may_start_anywhere(headers: Path, tmp_path: Path) -> None:
    """At a multiple of an element only."""
    problems = [
        deep(70, 45, 130, "bf16", extra, alignment=alignment)
        for extra, alignment in (((0, 0), 2), ((0, 1), 4), ((3, 0), 8), ((5, 5), 2), ((0, 4), 2))
    ]
    found = [fitting(problem, VARIED[index]) for index, problem in enumerate(problems)]
    assert findings(found, tmp_path, headers) == []


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_k_may_end_anywhere(splits: int, headers: Path, tmp_path: Path) -> None:
    """Slices of whole tiles, of none, and of a part of one."""
    found: Found = [
        (deep(70, 30, k, "bf16", extra), {**CHOSEN, "splits": splits, "stages": stages})
        for k in (1, 7, 63, 64, 65, 72, 127, 257, 64 * 9 + 3)
        for extra, stages in (((0, 0), 2), ((3, 4), 3))
    ]
    assert findings(found, tmp_path, headers) == []


def test_sides_may_be_short(headers: Path, tmp_path: Path) -> None:
    sizes = ((2, 40), (40, 2), (2, 2), (3, 70), (70, 5), (9, 66), (1, 40), (40, 1), (1, 1))
    found = [
        fitting(deep(m, n, 72, "bf16", extra), VARIED[(number + extra[0]) % len(VARIED)])
        for number, (m, n) in enumerate(sizes)
        for extra in ((0, 0), (1, 3), (4, 2))
    ]
    assert findings(found, tmp_path, headers) == []


#: Of a row or a column alone, whose length is no number of whole 16 bytes.
ALONE = (
    from_linear(1, 40, 67, "bf16"), from_blas(1, 70, 33, "fp16", trans_a="T", lda=37, ldb=40),
    from_linear(1, 1, 5, "bf16"),
)  # fmt: skip


def test_a_line_alone_may_have_any_length(headers: Path, tmp_path: Path) -> None:
    found = [fitting(problem, values) for problem in ALONE for values in (CHOSEN, VARIED[4])]
    assert findings(found, tmp_path, headers) == []


EPILOGUES = (
    from_linear(70, 90, 200, "bf16", bias="bf16", activation="gelu"),
    from_linear(35, 130, 201, "fp16", bias="fp32", activation="silu", beta=2.0, alpha=0.5),
    from_blas(66, 43, 130, "bf16", trans_a="T", bias="fp32", bias_axis="n", activation="relu"),
    from_linear(70, 90, 203, "bf16", dtype_d="fp32", bias="fp32", ldd=131, beta=1.0),
    from_mm(67, 36, 104, "fp16", trans_b="T", dtype_d="fp32"),
    from_linear(33, 128, 136, "bf16", bias="bf16", activation="silu", ldd=136),
)


def test_epilogues_and_types(headers: Path, tmp_path: Path) -> None:
    """D's rows stored by fours and one by one, of sums of one slice and of several."""
    found = [
        fitting(one, VARIED[(index + more) % 6]) for index, one in enumerate(EPILOGUES) for more in (0, 2)
    ]
    assert findings(found, tmp_path, headers) == []


def test_batches(headers: Path, tmp_path: Path) -> None:
    problems = (
        from_bmm(3, 66, 35, 64, "bf16", trans_b="T", beta=1.0),
        from_bmm(4, 33, 70, 67, "fp16", trans_b="T", stride_a=33 * 67 + 5, stride_b=70 * 67 + 6),
        from_bmm(2, 40, 24, 130, "bf16", trans_b="T", bias="bf16", activation="gelu", dtype_d="fp32"),
        from_bmm(5, 8, 16, 36, "bf16", trans_b="T"),
        from_bmm(3, 20, 72, 67, "bf16", trans_b="T", stride_a=0),
        from_bmm(3, 20, 72, 64, "bf16", trans_b="T", stride_a=20 * 64 + 3),
    )
    found = [fitting(one, VARIED[number]) for one in problems for number in (1, 4)]
    assert findings(found, tmp_path, headers) == []


def test_tiles_of_every_height_and_many_widths(headers: Path, tmp_path: Path) -> None:
    shapes = ((64, 8, 8), (128, 96, 2), (192, 40, 3), (256, 24, 4), (64, 256, 2), (256, 104, 2))
    extras = ((1, 1), (4, 2), (0, 3), (0, 0), (1, 0), (0, 0))
    found: Found = [
        (deep(259, 181, 150, "bf16", extra), {**CHOSEN, "tile_m": bm, "tile_n": bn, "stages": stages})
        for (bm, bn, stages), extra in zip(shapes, extras, strict=True)
    ]
    assert findings(found, tmp_path, headers) == []


def test_clusters_of_every_shape(headers: Path, tmp_path: Path) -> None:
    """Columns of whole clusters and of a part."""
    shapes = [(share, splits) for share in (1, 2, 4) for splits in range(1, 9) if share * splits <= 8]
    assert len(shapes) == 14
    found: Found = [
        (
            deep(130, 70, 450, "bf16", ((0, 1), (0, 0))[index % 2]),
            {**CHOSEN, "tile_m": 128, "stages": 2 + index % 3, "share": share, "splits": splits,
             "group": 1 + index // 2 % 2 * 7},
        )
        for index, (share, splits) in enumerate(shapes)
    ]  # fmt: skip
    assert findings(found, tmp_path, headers) == []


# ---- mistakes that must show ---------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A text of a header, what stands there instead, and the case that shows it."""

    text: str
    wrong: str
    case: str
    header: str = "tile_wgmma.h"


#: What the copy engine brings; to clusters, too; what warps realign; slices of k; batches.
CASES: dict[str, tuple[GemmProblem, dict[str, Parameter]]] = {
    "boxes": (deep(130, 60, 400, "bf16", (0, 0)), {**CHOSEN, "tile_m": 128}),
    "shared": (deep(70, 60, 400, "bf16", (0, 3)), {**CHOSEN, "share": 2}),
    "split": (deep(70, 30, 700, "bf16", (3, 0)), {**CHOSEN, "splits": 3}),
    "both": (deep(72, 60, 700, "bf16", (0, 0)), {**CHOSEN, "share": 2, "splits": 2}),
    "loaded": (deep(131, 45, 405, "bf16", (5, 3)), {**CHOSEN, "tile_m": 128, "tile_n": 40}),
    "short": (deep(9, 20, 5, "bf16", (1, 2)), CHOSEN),
    "ends": (deep(40, 20, 193, "bf16", (1, 2)), CHOSEN),
    "batch": (from_bmm(3, 24, 20, 72, "bf16", trans_b="T"), {**CHOSEN, "splits": 2}),
    "batches": (from_bmm(3, 24, 20, 67, "bf16", trans_b="T"), CHOSEN),
}
MISTAKES = (
    Mistake("Ring ring(0);", "Ring ring(1);", "boxes"),
    Mistake("kFree = 1;", "kFree = 0;", "boxes"),
    Mistake("if (++stage == STAGES) stage = 0, parity ^= 1;", "if (++stage == STAGES) stage = 0;", "loaded"),
    Mistake("wait_products<1>();", "wait_products<2>();", "boxes"),
    Mistake(
        (
            "            wait_products<1>();  // those of the tile before\n"
            "            if (tile > 0) release(&empty[last]);"
        ),
        "            if (tile > 0) release(&empty[last]);\n            wait_products<1>();",
        "loaded",
    ),
    Mistake("if (tile > 0) release(&empty[last]);", "release(&empty[ring.stage]);", "boxes"),
    Mistake("if (tile > 0) release(&empty[last]);", "release(&empty[last]);", "shared"),
    Mistake("        wait_products<0>();\n", "", "loaded"),
    Mistake(
        "if (SPLITS > 1) cluster_barrier<true>();\n        else block_barrier();", "block_barrier();", "split"
    ),
    Mistake(
        "if (SPLITS > 1) cluster_barrier<true>();\n        else block_barrier();",
        "if (SPLITS > 1) cluster_barrier<true>();",
        "boxes",
    ),
    Mistake("if (SPLITS > 1) cluster_barrier<true>();", "if (SPLITS > 1) cluster_barrier<false>();", "both"),
    Mistake("        if (kBlocks > 1) cluster_barrier<false>();  // others", "        // others", "split"),
    Mistake(
        "if (kBlocks > 1) cluster_barrier<false>();\n        else block_barrier();",
        "block_barrier();",
        "shared",
    ),
    Mistake(
        "        if (kBlocks > 1) cluster_barrier<false>();\n        else block_barrier();\n", "", "loaded"
    ),
    Mistake("expect_bytes(done, kBoxBytes)", "expect_bytes(done, kBytesA / SHARE)", "boxes"),
    Mistake("expect_bytes(done, kBoxBytes)", "expect_bytes(done, kBoxBytes + 16)", "boxes"),
    Mistake("expect_bytes(done, kBoxBytes)", "expect_bytes(done, kStage)", "shared"),
    Mistake(
        "start_barrier(&full[stage], (kMaps > 0) + LOADERS)",
        "start_barrier(&full[stage], LOADERS > 1 ? LOADERS : 1)",
        "shared",
    ),
    Mistake(
        "start_barrier(&empty[stage], kWorkers * SHARE)",
        "start_barrier(&empty[stage], kWorkers * SHARE - 1)",
        "boxes",
    ),
    Mistake(
        "start_barrier(&empty[stage], kWorkers * SHARE)", "start_barrier(&empty[stage], kWorkers)", "shared"
    ),
    Mistake(
        "start_barrier(&empty[stage], kWorkers * SHARE)",
        "start_barrier(&empty[stage], kWorkers * SHARE + 1)",
        "loaded",
    ),
    Mistake(
        "const int begin = static_cast<int>(from)", "const int begin = static_cast<int>(from * 0)", "split"
    ),
    Mistake("from = least(slice * each, steps)", "from = least(slice * (each - 1), steps)", "batch"),
    Mistake("each = (steps - 1) / SPLITS + 1", "each = (steps - 1) / SPLITS", "split"),
    Mistake(
        "steps = (static_cast<unsigned>(args.k) - 1) / kDeep + 1",
        "steps = static_cast<unsigned>(args.k) / kDeep",
        "loaded",
    ),
    Mistake("} else if (lane_index() < SHARE) {", "} else if (lane_index() < 1) {", "shared"),
    Mistake(
        "arrive_at(empty, sharer(lane_index()));",
        "arrive_at(empty, sharer(static_cast<int>(block_x()) % SHARE));",
        "shared",
    ),
    Mistake("everyone |= 1u << sharer(at)", "everyone |= 1u << at", "both"),
    Mistake("return static_cast<int>(block_y() % SPLITS) * SHARE + at;", "return at;", "both"),
    Mistake("return slice * SHARE + static_cast<int>(block_x() % SHARE);", "return slice;", "both"),
    Mistake("return slice * SHARE + static_cast<int>(block_x() % SHARE);", "return slice * SHARE;", "both"),
    Mistake("        if (batch >= static_cast<unsigned>(args.batch)) return;", "        //", "batch"),
    Mistake(
        "block_y() / SPLITS * static_cast<unsigned>(args.batch_blocks)",
        "block_y() * static_cast<unsigned>(args.batch_blocks)",
        "batch",
    ),
    Mistake(
        "            wait_phase(&empty[ring.stage], ring.parity);\n            expect",
        "            (void)empty;\n            expect",
        "boxes",
    ),
    Mistake(
        "                wait_phase(&empty[ring.stage], ring.parity);\n                return",
        "                return",
        "loaded",
    ),
    Mistake(
        "            wait_phase(&full[ring.stage], ring.parity);\n", "            (void)full;\n", "split"
    ),
    Mistake(
        "            wait_phase(&full[ring.stage], ring.parity);\n",
        "            if (warp_index() == 0) wait_phase(&full[ring.stage], ring.parity);\n",
        "boxes",
    ),
    Mistake("            begin_products();\n", "", "boxes"),
    Mistake("            end_products();\n", "", "boxes"),
    Mistake(
        (
            "const int column = unit / kFours * SPLITS + slice, row = unit % kFours * 4;\n"
            "                    if (column < BN) added4"
        ),
        (
            "const int column = unit / kFours * SPLITS, row = unit % kFours * 4;\n"
            "                    if (column < BN) added4"
        ),
        "both",
    ),
    Mistake("warp_index() * SPLITS + slice;", "warp_index() * SPLITS;", "split"),
    Mistake("four[e] += all[slice][e];", "four[e] += all[0][e];", "both"),
    Mistake("int other = 1; other < SPLITS", "int other = 2; other < SPLITS", "split"),
    Mistake("y = static_cast<int>(i) + part;", "y = static_cast<int>(i);", "shared"),
    Mistake("copy_box(to + part * kMapLine,", "copy_box(to,", "shared"),
    Mistake("        j += block_x() % SHARE * BN;\n", "", "shared"),
    Mistake("warp_index() / 4 * 64 * kMapLine", "warp_index() / 4 * 0 * kMapLine", "loaded"),
    Mistake("ring.stage * (kStage / 16)", "ring.stage * (kBytesA / 16)", "boxes"),
    Mistake("first_b + on + step * kMatrixStep", "first_b + on", "boxes"),
    Mistake("at / 2 % 2 * 8]", "at % 2 * 8]", "boxes"),
    Mistake("&all.maps[kMaps - 1]", "&all.maps[0]", "boxes"),
    Mistake("copy_box(to + kBytesA,", "copy_box(to + kBytesB,", "split"),
    Mistake("                written_for_products();\n", "", "loaded"),
    Mistake("                warp_barrier();\n", "", "loaded"),
    Mistake("if (lane_index() == 0) arrive(&full[ring.stage]);", "arrive(&full[ring.stage]);", "loaded"),
    Mistake("+ (REALIGN_A ? 0 : kBytesA);", "+ (REALIGN_A ? 0 : kBytesB);", "shared"),
    Mistake("n * 32 + lane, column, value[n]", "n * 16 + lane, column, value[n]", "boxes"),
    Mistake(
        "shift = static_cast<int>(reinterpret_cast<u64>(start) % 16);",
        "shift = 0 * static_cast<int>(reinterpret_cast<u64>(start) % 16);",
        "loaded",
        "realigned_lines.h",
    ),
    Mistake(
        "static_cast<unsigned>(shift & 2) * 8",
        "static_cast<unsigned>(shift & 2) * 0",
        "loaded",
        "realigned_lines.h",
    ),
    Mistake("shift & 4 ? by8[w + 1] : by8[w]", "by8[w]", "loaded", "realigned_lines.h"),
    Mistake("shift & 8 ? words[w + 2] : words[w]", "words[w]", "loaded", "realigned_lines.h"),
    Mistake("batch * args.stride_b", "0 * batch * args.stride_b", "batches", "realigned_lines.h"),
    Mistake("warp_index() - kLoaders, [&]", "warp_index() - kPiecer, [&]", "loaded"),
    Mistake("            meet<kThreads>();\n            lay_out", "            lay_out", "loaded"),
    Mistake(
        (
            "            multiply_tiles(shared, tiles, full, empty, sum);\n"
            "            meet<kThreads>();\n"
            "            lay_out(sum, patch);"
        ),
        (
            "            multiply_tiles(shared, tiles, full, empty, sum);\n"
            "            lay_out(sum, patch);\n"
            "            meet<kThreads>();"
        ),
        "boxes",
    ),
    Mistake("unsigned parity = 1;", "unsigned parity = 0;", "loaded", "realigned_lines.h"),
    Mistake("unsigned parity = 0;", "unsigned parity = 1;", "loaded", "realigned_lines.h"),
    Mistake("            wait_phase(&empty[slot], parity);\n", "", "loaded", "realigned_lines.h"),
    Mistake("            wait_phase(&full[slot], parity);\n", "", "loaded", "realigned_lines.h"),
    Mistake("expect_bytes(&full[slot], bytes);", "arrive(&full[slot]);", "loaded", "realigned_lines.h"),
    Mistake("if (some > whole) some = whole;", "", "short", "realigned_lines.h"),
    Mistake("if (lane_index() == 0) arrive(&empty[slot]);", "", "loaded", "realigned_lines.h"),
    Mistake(
        "start_barrier(&barriers[PIECES + piece], LOADERS)",
        "start_barrier(&barriers[PIECES + piece], LOADERS + 1)",
        "loaded",
        "realigned_lines.h",
    ),
    Mistake(
        "start_barrier(&barriers[piece], kWarp)",
        "start_barrier(&barriers[piece], 1)",
        "loaded",
        "realigned_lines.h",
    ),
    Mistake(
        "(line_left + 15) & ~static_cast<i64>(15)",
        "line_left & ~static_cast<i64>(15)",
        "loaded",
        "realigned_lines.h",
    ),
    Mistake("if (e >= there) out.at", "if (e > there) out.at", "loaded", "realigned_lines.h"),
    Mistake("from + 2 * e >= whole", "from + 2 * e > whole", "short", "realigned_lines.h"),
    Mistake("if (there < 16) end_line", "if (there < 0) end_line", "loaded", "realigned_lines.h"),
    Mistake("(chunk ^ line % 8)", "chunk", "loaded", "realigned_lines.h"),
    Mistake("of_a ? shift_a : shift_b", "shift_a", "loaded", "realigned_lines.h"),
    Mistake("(from + line * kRawLine + 16)", "(from + line * kRawLine)", "loaded", "realigned_lines.h"),
    Mistake("* kDeep - chunk * 8;", "* kDeep;", "loaded", "realigned_lines.h"),
    Mistake("++tile, from += kLine", "++tile", "loaded", "realigned_lines.h"),
    Mistake(
        "args.lda, i, args.m, static_cast<i64>(begin) * kDeep)",
        "args.lda, i, args.m, 0 * begin)",
        "split",
        "realigned_lines.h",
    ),
)


@pytest.fixture(scope="module")
def mistaken(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Built]:
    """Every mistake in headers and classes of its own, all of one library."""
    folder = tmp_path_factory.mktemp("mistaken")
    for path in headers.glob("*.h"):
        shutil.copy(path, folder)
    unused = ("variable", "parameter", "but-set-variable")
    allowed = "".join(f'#pragma GCC diagnostic ignored "-Wunused-{what}"\n' for what in unused)
    configurations = []
    there = [one for one in MISTAKES if (HEADERS / one.header).read_text().count(one.text) == 1]
    for number, mistake in enumerate(there):
        for header in ("tile_wgmma.h", "realigned_lines.h"):
            text = (HEADERS / header).read_text()
            if header == mistake.header:
                text = text.replace(mistake.text, mistake.wrong)
            text = text.replace("TileWgmma", f"Mistaken{number}").replace("RealignedLines", f"Lines{number}")
            text = text.replace('"realigned_lines.h"', f'"{number}_realigned_lines.h"')
            (folder / f"{number}_{header}").write_text(allowed + text)
        one = FAMILY.configuration(*CASES[mistake.case])
        made = one.instantiation.replace("TileWgmma", f"Mistaken{number}")
        configurations.append(replace(one, header=f"{number}_tile_wgmma.h", instantiation=made))
    kernels = build(configurations, folder, headers=folder)
    return dict(zip(there, kernels, strict=True))


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier(HostDevice())  # type: ignore[arg-type]


def test_the_cases_of_mistakes_are_right_without(headers: Path, tmp_path: Path) -> None:
    assert findings(list(CASES.values()), tmp_path, headers) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: f"{one.case}: {one.wrong.strip()[:40]}")
def test_a_mistake_shows(mistake: Mistake, mistaken: dict[Mistake, Built], verifier: Verifier) -> None:
    assert mistake in mistaken, "its text stands in the header once"
    assert wrong_of(mistaken[mistake], CASES[mistake.case][0], verifier) != ""


# ---- what is refused and listed ------------------------------------------------------------------

SQUARE = from_linear(512, 512, 512, "bf16")
ODD = from_linear(512, 512, 511, "bf16")


@pytest.mark.parametrize("problem", [SQUARE, ODD, replace(SQUARE, alignment=2)])
def test_what_is_refused_below_is_legal_otherwise(problem: GemmProblem) -> None:
    assert refusal(problem, CHOSEN) is None
    assert list(FAMILY.solutions(problem, H200))


@pytest.mark.parametrize(
    ("problem", "values", "words"),
    [
        (from_mm(512, 512, 512, "bf16"), {}, "both operands must be contiguous along k"),
        (from_linear(64, 64, 64), {}, "our kernels multiply fp16 in fp32, bf16 in fp32, not fp32 x fp32"),
        (from_linear(64, 64, 64, "tf32"), {}, "our kernels multiply .*, not fp32 x fp32 in tf32"),
        (SQUARE, {"share": 4, "splits": 3}, "a cluster has 8 blocks, not share 4 by splits 3"),
        (SQUARE, {"share": 2, "splits": 8}, "a cluster has 8 blocks, not share 2 by splits 8"),
        (ODD, {"share": 2}, "the copy engine alone sends a tile to several blocks, and A's lines start any"),
        (replace(SQUARE, alignment=8), {"share": 2}, "the copy engine alone sends a tile to several blocks"),
        (from_bmm(3, 64, 64, 64, "bf16", trans_b="T", stride_a=0), {}, "the copy engine knows no batch that"),
        (from_bmm(3, 64, 64, 64, "bf16", trans_b="T", stride_b=0), {}, "the copy engine knows no batch that"),
        (SQUARE, {"tile_m": 256, "tile_n": 256, "stages": 4}, "bytes of shared memory; sm_90 has 232448"),
        (SQUARE, {"tile_m": 256, "tile_n": 200}, "operands and sums take 100 registers; 640 threads have 70"),
        (ODD, {"tile_m": 256, "loaders": 12}, "operands and sums take .* registers; 1024 threads have"),
        (SQUARE, {"tile_n": 12}, "tile_n must be one of 8, 16, .*, not 12"),
        (SQUARE, {"stages": 1}, "stages must be one of 2, 3, .*, not 1"),
        (SQUARE, {"splits": 9}, "splits must be one of 1, 2, .*, not 9"),
    ],
)  # fmt: skip
def test_what_a_rule_forbids(problem: GemmProblem, values: dict[str, Parameter], words: str) -> None:
    found = refusal(problem, {**CHOSEN, **values})
    assert found is not None
    assert re.search(words, found), found


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_only_hopper_has_wgmma(arch: str) -> None:
    assert refusal(SQUARE, CHOSEN, arch) == f"wgmma needs sm_90a, not {arch}"
    assert not list(FAMILY.solutions(SQUARE, replace(H200, arch=arch)))


@pytest.mark.parametrize("problem", [SQUARE, ODD, from_linear(4096, 4096, 4096, "bf16"),
                                     from_linear(2049, 2049, 2049, "bf16"),
                                     from_linear(4096, 64, 8192, "fp16"),
                                     from_bmm(3, 100, 70, 513, "bf16", trans_b="T")],
                         ids=lambda p: p.slug)  # fmt: skip
def test_what_is_listed_is_legal_and_few(problem: GemmProblem) -> None:
    found = list(FAMILY.solutions(problem, H200))
    assert 4 <= len(found) <= 48
    assert len({(one.parameters["tile_m"], one.parameters["tile_n"]) for one in found}) > 1
    for one in found:
        assert refusal(problem, dict(one.parameters)) is None
        made = FAMILY.configuration(problem, one.parameters)
        assert made.target("sm_90") == "sm_90a"
        assert made.shared_bytes <= arch_of(H200).block_shared_bytes
        across, down, _ = made.grid
        assert across % int(one.parameters["share"] or 0) == down % int(one.parameters["splits"] or 0) == 0
