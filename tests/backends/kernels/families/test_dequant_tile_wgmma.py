"""dequant-tile-wgmma on the host: every storage type, group and zero point; tiles, clusters and blocks that
take several tiles; rows, columns and k that are no whole tile; planted mistakes; what the compiler makes of
it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_dequant_ring import ident
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-tile-wgmma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "slots": 2, "stages": 3, "share": 1, "group": 1, "blocks_per_unit": 1,
    "persistent": 1,
}  # fmt: skip
#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(70, 72, 768, dtype_a=kind, scale_dtype=kind)
    if FAMILY.rule(p, CHOSEN, H200) is None and FAMILY.supports(p)
]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in range(1, 4))]
)
def test_every_kind_is_right(first: int, tmp_path: Path) -> None:
    """One candidate of every fourth kind, of two tiles across and two down; copies and products as late as
    may be, and at once."""
    kinds = KINDS[first::4]
    found = [FAMILY.config(p, CHOSEN, SM_90) for p in kinds]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), kinds, strict=True):
        for reversed_order in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, reversed_order), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk.
SHAPES: dict[str, GemmProblem] = {
    "sixty-five": weights(65, 40, 1280, zero_b="uint4", bias="bf16"),
    "a hundred and thirty-one": weights(131, 264, 768, zero_b="eight", beta=1.0),
    "of fp16": weights(160, 72, 512, dtype_a="fp16", scale_dtype="fp16", zero_b="float", activation="silu"),
    "three hundred": weights(300, 200, 1024, zero_b="eight"),
    "of int8": weights(133, 130, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "short groups": weights(129, 200, 1280, zero_b="shift", scale_b="block_1x32"),
    "mxfp4, padded": mxfp4(150, 132, 800, ldb=832, lda=808, ldd=141),
    "a k of no whole chunk": weights(70, 48, 48, "int8", scale_b="tensor"),
    "padded rows": weights(200, 400, 512, zero_b="eight", ldb=544, lda=520, ldd=408),
}


#: In every run; the others are in `make exhaustive`.
ALWAYS = ("a hundred and thirty-one", "of int8", "short groups", "mxfp4, padded")


@pytest.mark.parametrize(
    "name",
    [
        *ALWAYS,
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SHAPES if name not in ALWAYS),
    ],
)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 4, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, other_way, finding.wrong)


#: Two blocks that share columns, and bands of rows of tiles.
CLUSTER: dict[str, Parameter] = {**CHOSEN, "share": 2, "group": 8}
LONG = weights(131, 400, 1024, zero_b="uint4")
HEADER, RINGS = "families/dequant_tile_wgmma.h", "device/dequant_rings.h"
#: What is mistaken -> the header, its text, what stands there instead, a problem that shows it, parameters.
MISTAKES = {
    "words that are not swizzled": (
        HEADER, "kMapLine + reads.group * 16)) {}", "kMapLine)) {}", LONG, CHOSEN,
    ),
    "the other half's words": (
        HEADER, "(half * kWords + i) * 16", "((half ^ 1) * kWords + i) * 16", LONG, CHOSEN,
    ),
    "registers that are still read": (
        HEADER, "wait_products<1>();  // those before these", "wait_products<2>();  // those before these",
        LONG, CHOSEN,
    ),
    "a stage that is still read": (
        HEADER, "if (last >= 0) rings.free_stage(last);",
        "if (last < 0) last = 0;\nrings.free_stage(consumer.stages.place);", LONG, CHOSEN,
    ),
    "the first columns in every tile": (
        HEADER, "place(args, tile).column, 0, chunks", "0 * place(args, tile).column, 0, chunks",
        LONG, CHOSEN,
    ),
    "the first rows in every tile": (
        HEADER, "place(args, tile).row, 0, chunks", "0 * place(args, tile).row, 0, chunks", LONG, CHOSEN,
    ),
    "the cluster's first rows in every block": (
        HEADER, "static_cast<int>(block_x() % SHARE) * BM", "0 * static_cast<int>(block_x() % SHARE) * BM",
        LONG, CLUSTER,
    ),
    "every block's tiles in each": (
        HEADER, "static_cast<unsigned>(args.blocks) / SHARE;",
        "static_cast<unsigned>(args.blocks) / SHARE * 2;", LONG, CHOSEN,
    ),
    "the weights before in the next tile": (
        HEADER, "another || chunk + 1", "(another && chunk < 0) || chunk + 1", LONG, CHOSEN,
    ),
    "sums of the tile before": (HEADER, "for (float& one : sum) one = 0.0f;", "", LONG, CHOSEN),
    "the part of the columns that the first block has": (
        RINGS, "kPart, column + line, 0, done, sharers)", "kPart, column, 0, done, sharers)", LONG, CLUSTER,
    ),
    "the group before": (
        HEADER, "half * kHalf / Chunk::kGroup);", "0 * half / Chunk::kGroup);", LONG, CHOSEN,
    ),
    "no last column": (
        HEADER, "left = here.columns - lane / 2;", "left = here.columns - lane / 2 - 1;", LONG, CHOSEN,
    ),
    "columns that are stored too early": (
        HEADER, "store_columns(column, words);\n            warp_barrier();", "store_columns(column, words);",
        LONG, CHOSEN,
    ),
    "the patch's upper rows below": (
        HEADER, "* kPitch + i / 2 % 2 * 8] = sum", "* kPitch + (1 - i / 2 % 2) * 8] = sum",
        weights(131, 72, 512, zero_b="eight", dtype_d="fp32"), CHOSEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem, values = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    (one,) = build([FAMILY.config(problem, values, SM_90)], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


def test_nothing_is_wrong_without_a_mistake(tmp_path: Path) -> None:
    for one in build([FAMILY.config(LONG, values, SM_90) for values in (CHOSEN, CLUSTER)], tmp_path, 32):
        assert wrong_of(one, LONG) == ""


@pytest.mark.parametrize("kind", ["integers", "mxfp4"])
def test_a_scale_that_is_nan_reaches_its_own_row_alone(kind: str, tmp_path: Path) -> None:
    problem = mxfp4(80, 136, 800) if kind == "mxfp4" else weights(80, 136, 768, zero_b="eight")
    (one,) = build([FAMILY.config(problem, CLUSTER, SM_90)], tmp_path, 32)
    given = host_inputs(problem, 3, "normal")
    if kind == "mxfp4":
        given["scale_a"].view(np.uint8)[0, 70, 1] = 255
    else:
        given["scale_a"].view(np.uint16)[0, 70, 1] = 0x7FC0
    found = computed(one, problem, **given).astype(np.float32)
    assert np.isnan(found[:, 70]).all()
    assert np.isnan(found).sum() == 80


@pytest.mark.parametrize("units", [1, 2, 7])
def test_any_number_of_blocks_is_right(units: int, tmp_path: Path) -> None:
    """Of as many as run at once on so many multiprocessors, whole clusters, and of one for every tile."""
    once, all_blocks = ({**CLUSTER, "persistent": persistent} for persistent in (1, 0))
    found = [FAMILY.config(LONG, values, SM_90) for values in (once, all_blocks)]
    assert found[0].unit == found[1].unit
    assert found[1].on(units).grid == (4 * 2 * 3, 1, 1)
    assert found[0].on(units).grid == (max(2, units // 2 * 2), 1, 1)
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        kernel = HostKernel(one, False, units)
        assert verifier.check(kernel, Case(LONG, 3, "normal", "exact"), runs=1).wrong == ""


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """A slot of weights, scales and zero points begins at a multiple of 1024 bytes; a binary for sm_90a."""
    found = FAMILY.config(weights(320, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    slot = 64 * 128 + 64 * 2 * 2 + 8 * 2 * 4
    rings = 2 * -(-slot // 1024) * 1024 + 3 * 64 * 128
    assert found.shared_bytes == -(-(rings + 4 * 16 * 20 * 4 + 16 * 5) // 1024) * 1024
    assert found.arch_specific
    cache, target = BinaryCache(tmp_path), Nvrtc().target("sm_90", found.arch_specific)
    Nvrtc().compile(CompileUnit(found.unit, target), cache)
    changed = replace(found, shared_bytes=found.shared_bytes + 16)
    with pytest.raises(CompileError, match="as derived"):
        Nvrtc().compile(CompileUnit(changed.unit, target), cache)


FOUR, EIGHT = weights(4096, 4096, 4096, zero_b="eight"), weights(4096, 4096, 4096, "int8", scale_b="outer")
#: Of the fewest registers for their columns: what the rule permits must fit.
TIGHT: tuple[tuple[GemmProblem, dict[str, Parameter]], ...] = (
    (FOUR, {"tile_m": 128, "tile_n": 256}),
    (mxfp4(4096, 4096, 4096), {"tile_m": 128, "tile_n": 256}),
    (EIGHT, {"tile_m": 128, "tile_n": 256}),
    (FOUR, {"tile_m": 192, "tile_n": 192, "share": 2}),
    (EIGHT, {"tile_m": 192, "tile_n": 160}),
    (FOUR, {"tile_m": 64, "tile_n": 192, "blocks_per_unit": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("problem", "given"), TIGHT)
def test_consumers_have_registers_for_their_sums(
    problem: GemmProblem, given: dict[str, Parameter], tmp_path: Path
) -> None:
    values = {**CHOSEN, **given, "stages": 2}
    assert FAMILY.rule(problem, values, H200) is None
    unit = FAMILY.config(problem, values, SM_90).unit
    path = Nvrtc().compile(CompileUnit(unit, Nvrtc().target("sm_90", True)), BinaryCache(tmp_path))
    assert resources.read(path)["gemm"].spill_bytes == 0


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (weights(64, 64, 1024), {}, "65 and more columns beside the streamed operand, not 64"),
        (weights(100, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(100, 64, 1024, "int8"), {}, "1 scales of tile_k 128 are no whole 4-byte words"),
        (weights(999, 64, 1024), {"tile_n": 256, "stages": 8}, "bytes of shared memory"),
        (weights(999, 64, 1024), {"blocks_per_unit": 2, "stages": 8, "tile_n": 128}, "2 blocks take"),
        (EIGHT, {"tile_m": 192, "tile_n": 192}, "weights and sums take 130 registers; a consumer has 128"),
        (FOUR, {"tile_n": 224, "stages": 2, "blocks_per_unit": 2},
         "takes 142 registers; a thread is launched with 128"),
    ],
)  # fmt: skip
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert "wgmma needs sm_90a" in (FAMILY.rule(FOUR, CHOSEN, replace(H200, arch="sm_80")) or "")


@pytest.mark.parametrize("columns", [65, 128, 300, 4096])
def test_there_are_candidates(columns: int) -> None:
    """Of every number of rows, with and without clusters, the likeliest first."""
    problem = weights(columns, 4096, 4096, zero_b="eight")
    listed = list(FAMILY.candidates(problem, H200))
    assert 20 < len(listed) <= 72
    assert all(FAMILY.rule(problem, values, H200) is None for values in listed)
    assert {values["tile_m"] for values in listed} >= {128, 192, 256}
    assert {values["share"] for values in listed} >= {1, 2}
    assert {values["persistent"] for values in listed} == {0, 1}
    assert not list(FAMILY.candidates(replace(problem, m=4096, n=64), H200))


def test_large_tiles_come_first_for_many_columns_and_small_ones_for_few() -> None:
    """So that every multiprocessor has a tile."""
    first = [next(iter(FAMILY.candidates(weights(n, 4096, 4096), H200))) for n in (128, 4096)]
    areas = [int(one["tile_m"] or 0) * int(one["tile_n"] or 0) for one in first]
    assert areas[0] <= 4096 * 128 // 100
    assert areas[1] == 128 * 256
