"""stream-k: how tiles are dealt to blocks, products on the host, mistakes that must show, what is listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from backends.errors import LaunchError
from backends.kernels.families import FAMILIES
from backends.kernels.families.stream_k import StreamK, StreamKConfig
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.legality import arch_of
from backends.operands import Operands
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_tile_mma import STARTS
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["stream-k"]
assert isinstance(FAMILY, StreamK)
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 32, "warp_n": 32, "stages": 3, "group": 8,
    "blocks_per_unit": 1,
}  # fmt: skip
NOWHERE = Operands(0, 0, 0, 0, 0, 1.0, 0.0)


def configuration(problem: GemmProblem, values: dict[str, Parameter], units: int) -> StreamKConfig:
    found = FAMILY.config(problem, values, SM_90).on(units)
    assert isinstance(found, StreamKConfig)
    return found


# ---- how tiles are dealt -------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 64])
def test_every_block_has_as_much_work_as_another(steps: int) -> None:
    problem = from_linear(64, 64, 32 * steps, "bf16")
    for tiles, blocks in product((1, 2, 3, 5, 8, 30, 131, 132, 133, 300), (1, 2, 3, 7, 132)):
        one = replace(configuration(problem, CHOSEN, blocks), tiles=tiles)
        args = one.arguments(NOWHERE, 0)
        assert (one.steps, args.blocks, one.grid) == (steps, blocks, (blocks, 1, 1))
        # Whole waves but the last one; the rest by units, which differ by one at most.
        assert args.whole % blocks == 0 or not one.reduces
        assert one.streamed < 2 * blocks
        assert args.whole + one.streamed == tiles
        assert args.share * blocks + args.extra == one.streamed * steps
        assert 0 <= args.extra < blocks
        assert one.reduces == (tiles % blocks > 0 and steps > 1)
        if one.reduces:
            starts = [block * args.share + min(block, args.extra) for block in range(blocks + 1)]
            assert any(start % steps for start in starts), "some tile is split"
            assert one.reduce_grid == (one.streamed, 2, 1), "16 columns of every warp's 32"
            assert one.workspace_bytes <= 2 * blocks * 64 * 32 * 4
            assert one.workspace_bytes == 2 * min(blocks, one.units) * 64 * 32 * 4
        else:
            assert one.workspace_bytes == 0


def test_blocks_are_those_of_the_device() -> None:
    problem = from_linear(4096, 4096, 4096, "bf16")
    for blocks, units in ((1, 132), (2, 108)):
        values = {**CHOSEN, "blocks_per_unit": blocks}
        one = configuration(problem, values, units)
        assert one.grid == (blocks * units, 1, 1)
        assert one.unit == FAMILY.config(problem, values, SM_90).unit, "no compiler is told"
    assert FAMILY.config(problem, values, SM_90).grid == (2, 1, 1)


# ---- on the host ---------------------------------------------------------------------------------


def findings(
    found: list[tuple[GemmProblem, dict[str, Parameter]]],
    folder: Path,
    units: Iterable[int],
    headers: Path = HEADERS,
) -> list[str]:
    """What the verifier says of each configuration on the host, on so many multiprocessors, either way
    around. (The workspace is full of what is no number.)"""
    kernels = build([FAMILY.config(*one, SM_90) for one in found], folder, headers=headers)
    said = []
    for (problem, _), built in zip(found, kernels, strict=True):
        verifier, case = Verifier(HostDevice()), Case(problem, 3, "normal", "exact")  # type: ignore[arg-type]
        for number, other_way in product(units, (False, True)):
            wrong = verifier.check(HostKernel(built, other_way, number), case, runs=1).wrong
            if wrong:
                said.append(f"{built.found.instantiation} of {problem.slug} on {number}: {wrong}")
    return said


def sized(kind: str, sides: str, extra: tuple[int, int]) -> GemmProblem:
    """Ragged, or (no `extra` elements between the lines of A and of B) whole in every direction; of some
    tiles a side."""
    m, n, k = (136, 144, 176) if extra == (0, 0) else (131, 139, 149)
    lines = [size + -size % 8 + more for size, more in zip((m if sides[0] == "N" else k,
             k if sides[1] == "N" else n), extra, strict=True)]  # fmt: skip
    return from_blas(m, n, k, kind, trans_a=sides[0], trans_b=sides[1], lda=lines[0], ldb=lines[1], beta=1.0)


@pytest.mark.parametrize("sides", ["NN", "NT", "TN", "TT"])
def test_operands_in_every_layout_and_alignment(sides: str, tmp_path: Path) -> None:
    found = []
    for number, (kind, extra, _) in enumerate(STARTS):
        problem = sized(kind, sides, extra)
        found.append((problem, legal_values(FAMILY, problem, H200, 1, seed=number + ord(sides[1]))[0]))
    assert findings(found, tmp_path, (1, 5)) == []


#: What a launch is of: tiles and units (steps along k) of each, with CHOSEN's tiles of 64 x 32 x 32.
LAUNCHES = {
    "one tile, less than a unit": from_mm(6, 6, 5, "bf16"),
    "one tile of many units": from_linear(30, 60, 320, "bf16", bias="bf16", activation="gelu"),
    "tiles of one unit": from_mm(150, 130, 32, "fp16", beta=1.0),
    "a single column": from_blas(133, 1, 160, "fp16", trans_a="T", trans_b="T", ldb=3),
    "fifteen tiles": from_linear(150, 190, 200, "fp16", dtype_d="fp32", bias="fp32", activation="silu"),
    "a batch": from_bmm(3, 66, 70, 71, "bf16", stride_b=0, beta=1.0),
    "a batch with an epilogue": from_bmm(5, 33, 65, 96, "bf16", bias="bf16", activation="relu"),
    "fp32's upper bits": from_linear(40, 130, 301, "tf32", bias="fp32", alignment=4, beta=2.0),
    "misaligned": from_linear(70, 90, 200, "bf16", alignment=2, alpha=0.5, ldd=131),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_any_number_of_blocks_may_share_a_product(name: str, tmp_path: Path) -> None:
    """One, some that divide nothing, as many as there are tiles, many more than there are units."""
    problem = LAUNCHES[name]
    values = {**CHOSEN, "tile_k": 16} if problem.compute == "tf32" else CHOSEN
    tiles = configuration(problem, values, 1).tiles
    assert findings([(problem, values)], tmp_path, {1, 2, 3, 7, tiles, 13, 200}) == []


def test_blocks_without_work_and_tiles_of_several_blocks(tmp_path: Path) -> None:
    """What the sizes above are meant to bring about."""
    one = configuration(LAUNCHES["one tile of many units"], CHOSEN, 200)
    args = one.arguments(NOWHERE, 0)
    assert (one.tiles, one.units, args.share, args.extra) == (1, 10, 0, 10)
    few = configuration(LAUNCHES["fifteen tiles"], CHOSEN, 7)
    args = few.arguments(NOWHERE, 0)
    assert (few.tiles, few.steps, args.whole, few.streamed) == (15, 7, 7, 8)
    assert (args.share, args.extra) == (8, 0), "a unit more than a tile each"
    assert not configuration(LAUNCHES["fifteen tiles"], CHOSEN, 5).reduces


@pytest.mark.parametrize(
    ("header", "text", "wrong"),
    [
        (
            "families/stream_k.h",
            "        block_barrier();  // the patches are read",
            "        // the patches are read",
        ),
        ("families/stream_k.h", "stream.begin(block) <= first;", "stream.begin(block) < first;"),
        ("families/stream_k.h", "piece.begin == 0, c, sum[c])", "true, c, sum[c])"),
        ("families/stream_k.h", "block < extra ? block : extra", "extra"),
        ("families/stream_k.h", "piece.begin == 0 && piece.end == tiles.steps", "piece.begin == 0"),
        (
            "families/stream_k.h",
            "stream.begin(block) < last; ++block",
            "stream.begin(block) + 1 < last; ++block",
        ),
        ("families/stream_k.h", "order.place(tile % each, i, j);", "order.place(tile, i, j);"),
    ],
)
def test_a_mistake_shows(header: str, text: str, wrong: str, tmp_path: Path) -> None:
    copied_headers(tmp_path)
    good = (HEADERS / header).read_text()
    assert good.count(text) == 1
    (tmp_path / header).write_text(good.replace(text, wrong))
    problem = from_bmm(3, 70, 70, 200, "bf16")
    try:
        said = findings([(problem, CHOSEN)], tmp_path, (4, 50), tmp_path)
    except LaunchError as error:  # what the launch itself finds
        said = [str(error)]
    assert said != []


# ---- what is listed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [from_linear(2049, 2049, 2049, "bf16"), from_mm(4864, 4096, 4096, "fp16"),
     from_mm(3000, 3000, 3000, "tf32"), from_bmm(5, 1024, 1024, 1024, "bf16")],
    ids=lambda p: p.slug,
)  # fmt: skip
def test_few_are_listed_where_whole_waves_would_leave_multiprocessors_idle(problem: GemmProblem) -> None:
    found = list(FAMILY.solutions(problem, H200))
    assert 4 <= len(found) <= 24
    assert len({one.parameters["tile_m"] for one in found}) > 1
    for solution in found:
        one = configuration(problem, dict(solution.parameters), H200.units)
        waves = one.tiles / one.blocks
        assert waves >= 0.5
        assert -(-one.tiles // one.blocks) / waves >= 1.05
        assert solution.workspace_bytes == one.workspace_bytes > 0
        assert one.workspace_bytes <= 2 * one.blocks * one.sum_bytes
        assert one.blocks_per_unit * (one.shared_bytes + 1024) <= arch_of(H200).unit_shared_bytes


def test_whole_waves_short_products_and_few_tiles_are_left_to_others() -> None:
    whole = from_linear(128 * 12, 128 * 11, 4096, "bf16")
    for solution in FAMILY.solutions(whole, H200):
        one = configuration(whole, dict(solution.parameters), H200.units)
        assert one.tiles % one.blocks, "tiles of another size"
    assert not list(FAMILY.solutions(from_linear(2049, 2049, 64, "bf16"), H200))
    assert not list(FAMILY.solutions(from_linear(64, 64, 8192, "bf16"), H200))
    assert not list(FAMILY.solutions(from_linear(16, 8192, 8192, "bf16"), H200))


def test_an_early_gpu_and_plain_fp32_are_refused() -> None:
    problem = from_linear(2049, 2049, 2049, "bf16")
    assert not list(FAMILY.solutions(problem, replace(H200, arch="sm_75")))
    assert list(FAMILY.solutions(problem, replace(H200, arch="sm_86", units=84)))
    assert not FAMILY.supports(from_mm(512, 512, 512))
