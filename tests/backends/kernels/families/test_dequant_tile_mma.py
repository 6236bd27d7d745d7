"""dequant-tile-mma on the host: every storage type, group and zero point; tiles, pipelines, pages of scales
and slices of k; rows, columns and k that are no whole tile; planted mistakes; banks of shared memory; what
the compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import (
    H200,
    HostDevice,
    HostKernel,
    build,
    built,
    compiled,
    copied_headers,
    source,
)
from tests.backends.kernels.families.test_dequant_ring import ident
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.families.test_skinny_ring import WAYS
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-tile-mma"]
A100 = replace(H200, arch="sm_80", product="NVIDIA A100-SXM4-80GB", units=108)
L40S = replace(H200, arch="sm_89", product="NVIDIA L40S", units=142)
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "warp_m": 32, "warp_n": 32, "stages": 3, "group": 1,
    "splits": 1,
}  # fmt: skip
#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(36, 40, 512, dtype_a=kind, scale_dtype=kind)
    if FAMILY.supports(p)
]


def test_what_the_family_runs_is_what_dequant_tma_wgmma_does() -> None:
    narrow = FAMILIES["dequant-tma-wgmma"]
    for scale in ("bf16", "fp16", "fp32"):
        for p in every_kind(70, 72, 1024, scale_dtype=scale):
            assert FAMILY.unsupported(p) == narrow.unsupported(p)
    assert not FAMILY.supports(mxfp4(70, 72, 1024, dtype_a="fp16"))
    assert len(KINDS) > 50


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, some of them of two slices of k; copies as late as may be or at once."""
    found = [FAMILY.config(p, {**CHOSEN, "splits": 1 + place % 2}, SM_90) for place, p in enumerate(KINDS)]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for place, (one, problem) in enumerate(zip(build(found, tmp_path, 32), KINDS, strict=True)):
        case = Case(problem, 3, "normal", "exact")
        finding = verifier.check(HostKernel(one, place // 2 % 2 == 1), case, runs=1)
        assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a stage, and inside a page of scales.
SHAPES: dict[str, GemmProblem] = {
    "thirty-three": weights(33, 40, 1280, zero_b="uint4", bias="bf16"),
    "a hundred and thirty-one": weights(131, 136, 256, zero_b="eight", beta=1.0),
    "of fp16": weights(100, 72, 512, dtype_a="fp16", scale_dtype="fp16", zero_b="float", activation="silu"),
    "three hundred": weights(300, 40, 256, zero_b="eight"),
    "of int8": weights(257, 66, 208, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "short groups": weights(65, 72, 640, zero_b="shift", scale_b="block_1x32"),
    "mxfp4, padded": mxfp4(70, 131, 544, ldb=576, lda=552, ldd=141),
    "a k of no whole stage": weights(70, 48, 48, "int8", scale_b="tensor"),
    "padded rows": weights(70, 200, 512, zero_b="eight", ldb=544, lda=520, ldd=208),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, A100, 4, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for place, one in enumerate(build(found, tmp_path, 32)):
        finding = verifier.check(HostKernel(one, place % 2 == 1), Case(problem, 3, "normal", "exact"), runs=1)
        assert finding.wrong == "", (one.found.instantiation, one.found.splits, place, finding.wrong)


LONG = weights(36, 72, 640, zero_b="uint4", scale_b="block_1x64")
HEADER, STAGES = "families/dequant_tile_mma.h", "device/dequant_stages.h"
#: What is mistaken -> the header, its text, what stands there instead, a problem that shows it, parameters.
MISTAKES: dict[str, tuple[str, str, str, GemmProblem, dict[str, Parameter]]] = {
    "words of a line where they are read by no one": (
        STAGES, "(word ^ BANKED::order(line))", "word", LONG, CHOSEN,
    ),
    "elements beyond the last": (
        HEADER, "inputs.template run<false>(shared + to + Stages::kX, left * 2);",
        "inputs.template run<true>(shared + to + Stages::kX, 0);",
        weights(36, 40, 48, "int8", scale_b="outer"), CHOSEN,
    ),
    "a wait that is too short": (
        HEADER, "wait_copies<kAhead - 1>();", "wait_copies<kAhead>();", LONG, CHOSEN,
    ),
    "a place that is taken before it is free": (
        HEADER, "from == 0 ? kPipeline - kStage : from - kStage", "from", LONG, CHOSEN,
    ),
    "no barrier": (HEADER, "named_barrier_sync<kThreads>();  //", "warp_barrier();  //", LONG, CHOSEN),
    "the page before": (
        HEADER, "stage / kOfPage % kPages", "stage / kOfPage % 1", LONG, CHOSEN,
    ),
    "the page's first group": (HEADER, "const int of = (", "const int of = 0 * (", LONG, CHOSEN),
    "the first slice's pages": (
        HEADER, "page(mine.begin / kOfPage)", "page(0 * mine.begin / kOfPage)", LONG, {**CHOSEN, "splits": 2},
    ),
    "another row's zero point": (
        STAGES, ">> 4 * reads.group & 15u", ">> 4 * (reads.group ^ 1) & 15u", LONG, CHOSEN,
    ),
    "the zero point of eight rows below": (STAGES, "whole >> 4 * r & 15u", "whole & 15u", LONG, CHOSEN),
    "a step before its activations": (
        HEADER, "if (last) read_inputs(half, (step + 1) % kSteps);", "if (last) read_inputs(half, step);",
        LONG, CHOSEN,
    ),
    "weights of the tile before": (HEADER, "convert((tile + 1) % kTiles);", "convert(tile);", LONG, CHOSEN),
    "columns of the first warp": (
        HEADER, "Reads reads(part.row, part.column, all)", "Reads reads(part.row, 0, all)", LONG, CHOSEN,
    ),
    "a row's scale below": (
        HEADER, "part.i + 8 * r + lane_index() / 4", "part.i + 8 * (r ^ 1) + lane_index() / 4",
        weights(36, 40, 128, "int8", scale_b="outer"), CHOSEN,
    ),
    "scales of bytes within a word": (
        STAGES, "static_cast<int>(group * all.scale_row & 3)", "0", mxfp4(36, 40, 288), CHOSEN,
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
    for one in build(
        [FAMILY.config(LONG, {**CHOSEN, "splits": splits}, SM_90) for splits in (1, 2)], tmp_path, 32
    ):
        assert wrong_of(one, LONG) == ""


@pytest.mark.parametrize("kind", ["integers", "mxfp4"])
def test_a_scale_that_is_nan_reaches_its_own_row_alone(kind: str, tmp_path: Path) -> None:
    problem = mxfp4(40, 72, 288) if kind == "mxfp4" else weights(40, 72, 256, zero_b="eight")
    (one,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path, 32)
    given = host_inputs(problem, 3, "normal")
    if kind == "mxfp4":
        given["scale_a"].view(np.uint8)[0, 70, 1] = 255
    else:
        given["scale_a"].view(np.uint16)[0, 70, 1] = 0x7FC0
    found = computed(one, problem, **given).astype(np.float32)
    assert np.isnan(found[:, 70]).all()
    assert np.isnan(found).sum() == 40


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Lanes that read at once read from different banks."""
    problems = (
        weights(36, 40, 256, zero_b="uint4"), weights(36, 40, 256, zero_b="shift"),
        weights(36, 40, 256, "int8", scale_b="outer"), mxfp4(36, 40, 256), mxfp4(36, 40, 320),
    )  # fmt: skip
    found = [
        FAMILY.config(problem, {**CHOSEN, "tile_k": deep}, SM_90)
        for problem in problems
        for deep in (32, 64, 128)
    ]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in built(library, found):
        problem = one.found.product.problem
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == 1, (problem.slug, one.found.instantiation)


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """Stages of activations and weights, two pages of scales and zero points."""
    found = FAMILY.config(weights(320, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    assert found.shared_bytes == 3 * (64 * 128 + 64 * 32) + 2 * (64 * 16 + 8 * 32)
    assert found.step == 8 * 128
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_80"), cache)
    changed = replace(found, shared_bytes=found.shared_bytes + 16)
    with pytest.raises(CompileError, match="as derived"):
        Nvrtc().compile(CompileUnit(changed.unit, "sm_80"), cache)


FOUR, EIGHT = weights(4096, 4096, 4096, zero_b="uint4"), weights(4096, 4096, 4096, "int8")
#: Of the fewest registers for their sums: what the rule permits must fit.
TIGHT: tuple[tuple[str, GemmProblem, dict[str, Parameter]], ...] = (
    ("sm_80", FOUR, {"tile_m": 128, "tile_n": 256, "warp_m": 64, "warp_n": 64}),
    ("sm_89", FOUR, {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 64}),
    ("sm_80", EIGHT, {"tile_m": 128, "tile_n": 256, "warp_m": 32, "warp_n": 128}),
    ("sm_89", mxfp4(4096, 4096, 4096), {"tile_m": 256, "tile_n": 128, "warp_m": 64, "warp_n": 64}),
    ("sm_90", mxfp4(4096, 4096, 4096), {"tile_m": 128, "tile_n": 128, "warp_m": 64, "warp_n": 64}),
    ("sm_89", FOUR, {"tile_m": 128, "tile_n": 128}),
)  # fmt: skip


@pytest.mark.parametrize(("arch", "problem", "given"), TIGHT)
def test_warps_have_registers_for_their_sums(
    arch: str, problem: GemmProblem, given: dict[str, Parameter], tmp_path: Path
) -> None:
    values = {**CHOSEN, **given}
    assert FAMILY.rule(problem, values, replace(H200, arch=arch)) is None
    unit = FAMILY.config(problem, values, GPU_ARCHS[arch]).unit
    path = Nvrtc().compile(CompileUnit(unit, arch), BinaryCache(tmp_path))
    assert resources.read(path)["gemm"].spill_bytes == 0


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (weights(32, 64, 1024), {}, "33 and more columns beside the streamed operand, not 32"),
        (weights(100, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(100, 64, 1024, lda=1028), {}, "columns must be contiguous along k, start at multiples"),
        (weights(100, 64, 384), {}, "a row's 3 scales must start at a multiple of 4 bytes"),
        (weights(100, 64, 1024), {"tile_m": 32, "warp_m": 64}, "tile_m 32 is no multiple of warp_m 64"),
        (weights(100, 64, 1024), {"tile_m": 32, "tile_n": 32}, "threads are 64 or more, not 32"),
        (weights(100, 64, 1024), {"tile_m": 32, "tile_k": 128}, "64 threads do not copy eight lines"),
        (weights(100, 64, 1024, scale_b="block_1x32"), {"tile_k": 128, "stages": 4},
         "stages in flight are at most a page of 8 groups, not 3 of 128"),
        (weights(999, 64, 1024), {"tile_n": 256, "tile_k": 128, "warp_n": 64}, "bytes of shared memory"),
        (weights(999, 64, 1024), {"tile_m": 128, "tile_n": 256, "warp_n": 128, "warp_m": 64, "tile_k": 32},
         "operands and sums take 352 registers; 128 threads have 223 each for them"),
    ],
)  # fmt: skip
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, L40S) or "")
    assert "needs sm_80" in (FAMILY.rule(FOUR, CHOSEN, replace(H200, arch="sm_75")) or "")


@pytest.mark.parametrize("environment", [A100, L40S, H200], ids=lambda one: one.arch)
@pytest.mark.parametrize("columns", [65, 128, 300, 4096])
def test_there_are_candidates(columns: int, environment: Environment) -> None:
    """Of several shapes of tiles and warps, with and without slices of k."""
    problem = weights(columns, 4096, 4096, zero_b="eight")
    listed = list(FAMILY.candidates(problem, environment))
    assert 30 < len(listed) <= 72
    assert len({tuple(values.items()) for values in listed}) == len(listed)
    assert all(FAMILY.rule(problem, values, environment) is None for values in listed)
    assert len({(values["tile_m"], values["tile_n"]) for values in listed}) >= 6
    assert {values["group"] for values in listed} == {1, 8}
    assert not list(FAMILY.candidates(weights(32, 4096, 4096), environment))


def test_large_tiles_come_first_for_many_columns_and_small_ones_or_slices_for_few() -> None:
    """So that every multiprocessor has a tile."""
    first = [next(iter(FAMILY.candidates(weights(n, 4096, 4096), A100))) for n in (80, 4096)]
    areas = [int(one["tile_m"] or 0) * int(one["tile_n"] or 0) for one in first]
    assert areas[0] / int(first[0]["splits"] or 1) <= 4096 * 128 // 64
    assert areas[1] >= 128 * 128
    assert first[1]["splits"] == 1
