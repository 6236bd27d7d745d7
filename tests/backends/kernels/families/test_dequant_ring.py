"""dequant-ring on the host: every storage type, group and zero point; rings that wrap around; rows, columns
and k that are no whole tile; planted mistakes; banks of shared memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
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
from tests.backends.kernels.families.test_skinny_ring import WAYS
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-ring"]
CHOSEN: dict[str, Parameter] = {
    "rows": 16, "tile_k": 256, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1
}  # fmt: skip


def ident(p: GemmProblem) -> str:
    """What tells problems of quantised weights apart."""
    return f"{p.dtype_b} {p.dtype_a} {p.zero_a} {p.scale_a}"


#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(3, 40, 1024, dtype_a=kind, scale_dtype=kind)
    if FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Every kind, but stored zero points of a whole row."""
    left = [ident(p) for p in every_kind(3, 40, 1024) if not FAMILY.supports(p)]
    assert left == [f"bf16 uint4 {zero} outer" for zero in ("uint4", "float", "shift")]
    assert "scales of their type here, not of fp32" in (
        FAMILY.unsupported(weights(3, 40, 1024, scale_b="block_1x32", scale_dtype="fp32")) or ""
    )
    assert FAMILY.supports(weights(3, 40, 1024, scale_dtype="fp32"))


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings."""
    found = [FAMILY.config(p, {**CHOSEN, "splits": 2 if p.m % 3 else 1}, SM_90) for p in KINDS]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), KINDS, strict=True):
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk.
SHAPES: dict[str, GemmProblem] = {
    "one column": weights(1, 40, 1280, zero_b="uint4", bias="bf16"),
    "two columns": weights(2, 130, 768, zero_b="eight", beta=1.0),
    "five": weights(5, 64, 512, "int4", scale_b="block_1x64", bias="bf16", activation="silu"),
    "eight": weights(8, 72, 1280, zero_b="shift", scale_b="block_1x32"),
    "ten": weights(10, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "twenty-four": weights(24, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "thirty-two": weights(32, 104, 1024, zero_b="uint4", scale_dtype="fp16"),
    "sixty": weights(60, 24, 512, zero_b="eight"),
    "ninety-six rows": weights(11, 200, 512, zero_b="uint4"),
    "a k of no whole chunk": weights(3, 48, 48, "int8", scale_b="tensor"),
    "one of k": weights(3, 48, 32, "int4", scale_b="outer"),
    "padded rows": weights(4, 40, 512, zero_b="eight", ldb=544, lda=520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once."""
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 4, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way)


#: What is mistaken -> the header, its text, what stands there instead, and a problem that shows it.
MISTAKES = {
    "the high half first": (
        "device/dequantise.h", "out[i] = (raw[j] >> 4 * i &", "out[i] = (raw[j] >> 4 * (i ^ 1) &",
        weights(2, 40, 512, zero_b="eight"),
    ),
    "the bytes of a word swapped": (
        "device/dequantise.h", "fma_pair<Bf16>((byte[i] &", "fma_pair<Bf16>((byte[i ^ 1] &",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "one zero point for both halves": (
        "device/dequantise.h", "0xe400u + z) | (0xd400u + (z << 4))", "0xe400u + z) | (0xd400u + z)",
        weights(2, 40, 512, dtype_a="fp16", zero_b="eight"),
    ),
    "another row's zero point": (
        "device/dequant_tiles.h", "offset[t][i / 2] * inputs", "offset[t][0] * inputs",
        weights(2, 40, 512, zero_b="uint4"),
    ),
    "zero points of the next row": (
        "device/dequant_chunk.h", ">> 4 * group & 15u", ">> 4 * (group ^ 1) & 15u",
        weights(2, 40, 512, zero_b="uint4"),
    ),
    "scales of the chunk's first group": (
        "device/dequant_chunk.h", "(sizeof(Scale))) + of;", "(sizeof(Scale))) + of * 0;",
        weights(2, 40, 512, zero_b="eight"),
    ),
    "a scale that leaves numbers shrunk": (
        "device/dequant_chunk.h", "kFolded ? 1.0f : kShrunkOf<T, QUANT>", "1.0f",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "a sign that is not inverted": (
        "device/dequantise.h", "raw[2 * j + i / 2] ^ 0x80808080u", "raw[2 * j + i / 2]",
        weights(2, 40, 512, "int8", scale_b="outer"),
    ),
    "activations in the order of memory": (
        "device/dequantise.h", "permuted<0x5410>(x[i], x[i + 2])", "permuted<0x5410>(x[i], x[i + 1])",
        weights(2, 40, 512, zero_b="eight"),
    ),
    "activations of one member alone": (
        "device/dequant_chunk.h", "member * 32 + lane_index()", "lane_index()",
        weights(11, 40, 512, zero_b="eight"),
    ),
    "weights of the team's first member": (
        "device/dequant_chunk.h", "line_place<kWeightBytes>(row + group", "line_place<kWeightBytes>(group",
        weights(2, 40, 512, zero_b="eight"),
    ),
    "elements beyond the last": (
        "device/dequant_chunk.h", "slot + kX, b, left * 2);", "slot + kX, b, kInputBytes);",
        weights(2, 40, 384, "int4", scale_b="outer"),
    ),
    "a chunk that is none": (
        "families/dequant_ring.h", "WARPS_K == 1 || next - SLOTS * WARPS_K < end", "true",
        weights(2, 40, 1280, zero_b="eight"),
    ),
    "a wait that is too short": (
        "families/dequant_ring.h", "wait_copies<SLOTS - 2>();", "wait_copies<SLOTS - 1>();",
        weights(2, 40, 512, zero_b="eight"),
    ),
    "a place that is taken before it is free": (
        "families/dequant_ring.h", "team_barrier(team);  //", "warp_barrier();  //",
        weights(2, 40, 2048, zero_b="eight"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    config = FAMILY.config(problem, CHOSEN, SM_90)
    (one,) = build([config], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Lanes that read at once read from different banks."""
    problems = [
        weights(columns, 40, 1024, kind, zero_b=zero, scale_b=scale)
        for columns in (1, 2, 4, 8, 16)
        for kind, zero, scale in (("uint4", "eight", "block_1x128"), ("int8", "none", "outer"))
    ]
    problems += [mxfp4(columns, 40, k) for columns in (1, 8) for k in (1024, 2880)]
    found = [
        FAMILY.config(problem, {**CHOSEN, "tile_k": deep}, SM_90)
        for problem in problems
        for deep in (256, 512)
    ]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in built(library, found):
        problem = one.found.product.problem
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == 1, (problem.slug, one.found.instantiation)


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """A ring a team: weights, activations, scales and zero points."""
    found = FAMILY.config(weights(8, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    assert found.shared_bytes == 2 * 2 * (32 * 128 + 8 * 512 + 32 * 2 * 2 + 4 * 2 * 4)
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    for wrong in (-16, 16):
        changed = replace(found, shared_bytes=found.shared_bytes + wrong)
        with pytest.raises(CompileError, match="as derived"):
            Nvrtc().compile(CompileUnit(changed.unit, "sm_90"), cache)


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (weights(1, 64, 1024), {"tile_k": 128}, "1 scales of tile_k 128 are no whole 4-byte words"),
        (weights(1, 64, 1024), {"tile_k": 64}, "tile_k is a multiple of 128 for uint4, not 64"),
        (weights(1, 64, 384), {}, "a row's 3 scales must start at a multiple of 4 bytes"),
        (weights(65, 64, 1024), {}, "1 to 64 columns beside the streamed operand, not 65"),
        (weights(1, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(1, 64, 1024, alignment=8), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(3, 64, 1024, lda=1028), {}, "columns must be contiguous along k, start at multiples"),
        (weights(1, 64, 1024), {"rows": 64, "tile_k": 512, "warps_k": 8}, "bytes of shared memory"),
    ],
)
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert "needs sm_80" in (FAMILY.rule(weights(1, 64, 1024), CHOSEN, replace(H200, arch="sm_75")) or "")
