"""dequant-tma-wgmma on the host: every storage type, group and zero point; columns to 256; clusters; rows,
columns and k that are no whole tile; planted mistakes; what the compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.dtypes import E2M1
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.quantisation import packed
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_dequant_ring import ident
from tests.backends.kernels.families.test_grouped import computed
from tests.backends.kernels.families.test_mxfp4 import PLACES, SCALES, product
from tests.backends.kernels.families.test_mxfp4 import SHAPES as MX_SHAPES
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case, host_inputs
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-tma-wgmma"]
CHOSEN: dict[str, Parameter] = {
    "tile_m": 64, "teams": 1, "slots": 2, "stages": 4, "share": 1, "splits": 1, "blocks_per_unit": 1
}  # fmt: skip
#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(3, 40, 1024, dtype_a=kind, scale_dtype=kind)
    if FAMILY.rule(p, CHOSEN, H200) is None and FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Every kind, but stored zero points of a row, 8 bits in groups of a chunk, and MXFP4 times fp16."""
    left = [ident(p) for p in every_kind(3, 40, 1024) if not FAMILY.supports(p)]
    assert left == [f"bf16 uint4 {zero} outer" for zero in ("uint4", "float", "shift")]
    assert {ident(p) for p in every_kind(3, 40, 1024) if FAMILY.supports(p) and p not in KINDS} == {
        f"bf16 {kind} none {scale}"
        for kind, scale in (
            ("int8", "block_1x128"), ("fp8_e4m3", "block_1x128"), ("fp8_e4m3", "block_128x128"),
        )
    }  # fmt: skip
    assert "whose range bf16 alone has, not fp16" in (
        FAMILY.unsupported(mxfp4(3, 40, 1024, dtype_a="fp16")) or ""
    )
    assert "scales of their type here, not of fp32" in (
        FAMILY.unsupported(weights(3, 40, 1024, scale_dtype="fp32")) or ""
    )


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings; copies and products as late as may be, and at
    once."""
    found = [FAMILY.config(p, CHOSEN, SM_90) for p in KINDS]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), KINDS, strict=True):
        for reversed_order in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, reversed_order), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk.
SHAPES: dict[str, GemmProblem] = {
    "one column": weights(1, 40, 1280, zero_b="uint4", bias="bf16"),
    "nine": weights(9, 130, 768, zero_b="eight", beta=1.0),
    "thirty-two": weights(32, 600, 2048, zero_b="uint4"),
    "forty, silu": weights(40, 264, 1024, "int4", scale_b="block_1x64", bias="bf16", activation="silu"),
    "sixty of fp16": weights(60, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "ninety": weights(90, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "a hundred and twenty-eight": weights(128, 200, 1280, zero_b="shift", scale_b="block_1x32"),
    "two hundred": weights(200, 72, 512, zero_b="eight"),
    "mxfp4, padded": mxfp4(50, 132, 800, ldb=832, lda=808, ldd=141),
    "a k of no whole chunk": weights(17, 48, 48, "int8", scale_b="tensor"),
    "padded rows": weights(24, 40, 512, zero_b="eight", ldb=544, lda=520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 3, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, other_way, finding.wrong)


#: Two blocks that share columns, two slices of k, and two teams.
CLUSTER: dict[str, Parameter] = {**CHOSEN, "teams": 2, "share": 2, "splits": 2}
LONG = weights(17, 200, 2048, zero_b="uint4")
#: What is mistaken -> the header, its text, what stands there instead, a problem that shows it, parameters.
MISTAKES = {
    "words that are not swizzled": (
        "families/dequant_tma_wgmma.h", "^ team * (2 * kWords) ^ reads.group;", "^ team * (2 * kWords);",
        LONG, CHOSEN,
    ),
    "the other team's words": (
        "families/dequant_tma_wgmma.h", "number ^ team * (2", "number ^ (1 - team) * (2", LONG, CLUSTER,
    ),
    "the other team's stages": (
        "families/dequant_tma_wgmma.h", "of_inputs(kFilled, team)", "of_inputs(kFilled, 1 - team)",
        LONG, CLUSTER,
    ),
    "the first team's sums alone": (
        "families/dequant_tma_wgmma.h", "if (own == team) Tile::template lay_out<true>",
        "if (own < 0) Tile::template lay_out<true>", LONG, CLUSTER,
    ),
    "parts at one place": (
        "device/dequant_rings.h", "ring.place * kStage + line * kMapLine;", "ring.place * kStage;",
        LONG, CLUSTER,
    ),
    "the part of the columns that the first block has": (
        "device/dequant_rings.h", "kPart, column + line, 0, done, sharers)",
        "kPart, column, 0, done, sharers)",
        LONG, CLUSTER,
    ),
    "the first slice of k in every block": (
        "families/dequant_tma_wgmma.h", "copy_weights(all, row, begin,", "copy_weights(all, row, 0,",
        LONG, CLUSTER,
    ),
    "every slice's columns from its first block": (
        "device/tile_sums.h", "return slice * TILES +", "return 0 * slice * TILES +", LONG, CLUSTER,
    ),
    "registers that are still read": (
        "families/dequant_tma_wgmma.h", "wait_products<1>();  // those of the stage before",
        "wait_products<2>();  // those of the stage before", LONG, CHOSEN,
    ),
    "the group before": (
        "families/dequant_tma_wgmma.h", "on * kPart % Chunk::kGroup == 0 :", "on % 4 == 0 :", LONG, CHOSEN,
    ),
    "the scale of the upper rows": (
        "device/dequant_rings.h", "sum[at] *= factor[at / 2 % 2];", "sum[at] *= factor[0];",
        weights(17, 40, 512, "int8", scale_b="outer"), CHOSEN,
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
def test_a_scale_that_is_nan_or_zero_reaches_its_own_row_alone(kind: str, tmp_path: Path) -> None:
    """A scale of zero is one of integers: MXFP4 has none."""
    problem = mxfp4(40, 72, 800) if kind == "mxfp4" else weights(40, 72, 768, zero_b="eight")
    (one,) = build([FAMILY.config(problem, {**CHOSEN, "share": 2}, SM_90)], tmp_path, 32)
    given = host_inputs(problem, 3, "normal")
    if kind == "mxfp4":
        given["scale_a"].view(np.uint8)[0, 70, 1] = 255
    else:
        given["scale_a"].view(np.uint16)[0, 70, 1] = 0x7FC0
        given["scale_a"].view(np.uint16)[0, 11, :] = 0
    found = computed(one, problem, **given).astype(np.float32)
    assert np.isnan(found[:, 70]).all()
    assert np.isnan(found).sum() == 40
    if kind == "integers":
        assert (found[:, 11] == 0).all()
        assert (found[:, 12] != 0).any()


def test_every_code_of_mxfp4_times_every_scale_is_exact(tmp_path: Path) -> None:
    """As dequantised to bf16, whose range 6 and 4 times the largest scales exceed."""
    rows = 2 * SCALES
    codes = np.random.default_rng(5).integers(0, 16, (rows, 32))
    for column, place in enumerate(PLACES):
        codes[:, place] = column + 8 * (np.arange(rows) // SCALES)
    scales = (np.arange(rows) % SCALES).astype(np.uint8)
    number = np.array(E2M1)[codes[:, PLACES]] * 2.0 ** (scales.astype(np.float64) - 127)[:, None]
    problem = mxfp4(len(PLACES), rows, 32, dtype_d="fp32")
    (one,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path, 32)
    for x in (1.0, 2.0**-8, 3 * 2.0**6):
        inputs = np.zeros((len(PLACES), 32), ml_dtypes.bfloat16)
        inputs[np.arange(len(PLACES)), PLACES] = x
        d = product(one, {"a": packed(np.array(E2M1)[codes], "fp4_e2m1"), "scale_a": scales, "b": inputs})
        with np.errstate(over="ignore"):
            want = (number * x).astype(np.float32).T
        within = scales < 253
        assert np.array_equal(d[:, within], want[:, within]), x


def test_rows_of_scales_start_anywhere(tmp_path: Path) -> None:
    """Nothing is read beyond the last scale, and nothing is written beside D."""
    problems = [p for p in MX_SHAPES if FAMILY.supports(p)]
    assert len(problems) > 4
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    found = [FAMILY.config(problem, CHOSEN, SM_90) for problem in problems]
    for one, problem in zip(build(found, tmp_path, 32), problems, strict=True):
        for other_way in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, other_way), case, runs=1)
            assert finding.wrong == "", (problem.slug, finding.wrong)


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """A slot of weights, scales and zero points begins at a multiple of 1024 bytes; a binary for sm_90a."""
    found = FAMILY.config(weights(32, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    slot = 64 * 128 + 64 * 2 * 2 + 8 * 2 * 4
    rings = 2 * -(-slot // 1024) * 1024 + 4 * 32 * 128
    assert found.shared_bytes == -(-(rings + 16 * 6) // 1024) * 1024
    assert found.arch_specific
    cache, target = BinaryCache(tmp_path), Nvrtc().target("sm_90", found.arch_specific)
    Nvrtc().compile(CompileUnit(found.unit, target), cache)
    changed = replace(found, shared_bytes=found.shared_bytes + 16)
    with pytest.raises(CompileError, match="as derived"):
        Nvrtc().compile(CompileUnit(changed.unit, target), cache)


#: Of the fewest registers for their columns: what the rule permits must fit.
TIGHT: tuple[tuple[GemmProblem, dict[str, Parameter]], ...] = (
    (weights(64, 4096, 4096, zero_b="eight"), {"tile_m": 128, "blocks_per_unit": 2}),
    (weights(64, 4096, 4096, zero_b="eight"), {"tile_m": 256}),
    (weights(128, 4096, 4096, zero_b="eight"), {"tile_m": 192}),
    (weights(256, 4096, 4096, zero_b="eight"), {"tile_m": 128}),
)  # fmt: skip


@pytest.mark.parametrize(("problem", "given"), TIGHT)
def test_consumers_have_registers_for_their_sums(
    problem: GemmProblem, given: dict[str, Parameter], tmp_path: Path
) -> None:
    values = {**CHOSEN, **given}
    assert FAMILY.rule(problem, values, H200) is None
    unit = FAMILY.config(problem, values, SM_90).unit
    path = Nvrtc().compile(CompileUnit(unit, Nvrtc().target("sm_90", True)), BinaryCache(tmp_path))
    assert resources.read(path)["gemm"].spill_bytes == 0


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (weights(257, 64, 1024), {}, "1 to 256 columns beside the streamed operand, not 257"),
        (weights(1, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(1, 64, 1024, "int8"), {}, "1 scales of tile_k 128 are no whole 4-byte words"),
        (weights(1, 64, 1024), {"share": 4, "splits": 3}, "a cluster has 8 blocks, not share 4 by splits 3"),
        (weights(255, 64, 1024), {"stages": 16}, "bytes of shared memory"),
        (weights(100, 64, 1024), {"tile_m": 256}, "weights and sums take 100 registers; a consumer has 80"),
        (weights(64, 64, 1024), {"blocks_per_unit": 3, "stages": 8}, "3 blocks take"),
        (weights(8, 64, 1024, "int8", scale_b="outer"), {"teams": 2}, "two stages of a chunk or more"),
    ],
)
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert "wgmma needs sm_90a" in (
        FAMILY.rule(weights(1, 64, 1024), CHOSEN, replace(H200, arch="sm_80")) or ""
    )


@pytest.mark.parametrize("columns", [16, 64, 128, 256])
def test_there_are_candidates(columns: int) -> None:
    """Of every number of rows, with and without clusters, the likeliest first."""
    problem = weights(columns, 4096, 4096, zero_b="eight")
    listed = list(FAMILY.candidates(problem, H200))
    assert len(listed) > 20
    assert all(FAMILY.rule(problem, values, H200) is None for values in listed)
    assert {values["tile_m"] for values in listed} >= {64, 128}
    assert {values["splits"] for values in listed} >= {1, 2}
