"""packed-mma on the host: every storage type, group and zero point, packed beforehand; rings that wrap;
rows, columns and k that are no whole tile or record; planted mistakes; banks of shared memory. (The layout is
test_packed_weights.py's.)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.backends.weight_samples import every_kind, fp8, mxfp4, weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["packed-mma"]
CHOSEN: dict[str, Parameter] = {"rows": 16, "slots": 2, "warps_m": 2, "warps_k": 2, "splits": 1}


def ident(p: GemmProblem) -> str:
    """What tells problems of quantised weights apart."""
    return f"{p.dtype_b} {p.dtype_a} {p.zero_a} {p.scale_a}"


#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(3, 40, 640, dtype_a=kind, scale_dtype=kind, prepacked=True)
    if FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Every kind, but stored zero points of a whole row; nothing that is not packed beforehand."""
    left = [ident(p) for p in every_kind(3, 40, 640, prepacked=True) if not FAMILY.supports(p)]
    assert left == [f"bf16 uint4 {zero} outer" for zero in ("uint4", "float", "shift")]
    stored = weights(3, 40, 640)
    assert FAMILY.unsupported(stored) == "the problem's weights are not packed beforehand"


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings."""
    found = [
        FAMILY.config(p, {**CHOSEN, "splits": 1 + number % 2, "rows": (16, 32)[number // 2 % 2]}, SM_90)
        for number, p in enumerate(KINDS)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path), KINDS, strict=True):
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


def packed(m: int, n: int, k: int, kind: str = "uint4", **options: Any) -> GemmProblem:
    """weights() that are packed beforehand."""
    return weights(m, n, k, kind, prepacked=True, **options)


#: n of the call is rows of weights; k that ends within a record.
SHAPES: dict[str, GemmProblem] = {
    "one column": packed(1, 40, 1280, zero_b="uint4", bias="bf16"),
    "two columns": packed(2, 130, 768, zero_b="eight", beta=1.0),
    "five": packed(5, 64, 512, "int4", scale_b="block_1x64", bias="bf16", activation="silu"),
    "eight": packed(8, 72, 1280, zero_b="shift", scale_b="block_1x32"),
    "ten": packed(10, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "twenty-four": packed(24, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "thirty-two": packed(32, 104, 1024, zero_b="uint4", scale_dtype="fp16"),
    "sixty": packed(60, 24, 512, zero_b="eight"),
    "a k of no whole record": packed(3, 48, 48, "int8", scale_b="tensor"),
    "groups of half a record": packed(3, 48, 192, "int4", scale_b="block_1x64"),
    "one of k": packed(3, 48, 32, "int4", scale_b="outer"),
    "padded rows": packed(4, 40, 512, zero_b="eight", ldb=544, lda=520),
    "four bits of a float": mxfp4(9, 33, 96, prepacked=True),
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


_RECORDS, _KERNEL = "device/packed_weights.h", "families/packed_mma.h"
#: What is mistaken -> the header, its text, what stands there instead, and a problem that shows it.
MISTAKES = {
    "the halves of a byte swapped": (
        _RECORDS, "(word >> 8 * i & 15u) << 4 * i | (word >> (8 * i + 4) & 15u) << (4 * i + 16)",
        "(word >> (8 * i + 4) & 15u) << 4 * i | (word >> 8 * i & 15u) << (4 * i + 16)",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "words in the order of memory": (
        _RECORDS, "if (QUANT::kBits != 4 || QUANT::kFloat) return word;", "if (QUANT::kBits) return word;",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "a float's word in the integers' order": (
        _RECORDS, "if (QUANT::kBits != 4 || QUANT::kFloat)", "if (QUANT::kBits != 4)",
        mxfp4(2, 40, 512, prepacked=True),
    ),
    "a sign that is not inverted": (
        _RECORDS, "QUANT::kSigned ? 0x88888888u : 0u", "0u", packed(2, 40, 512, "int4", scale_b="outer"),
    ),
    "the second word of eight bytes twice": (
        _RECORDS, ": i % 2 * 4;", ": 4;", packed(2, 40, 512, "int8", scale_b="outer"),
    ),
    "the scale of another group is packed": (
        _RECORDS, "of = first / kGroup;", "of = first / kGroup ^ 1;", packed(2, 40, 512, zero_b="eight"),
    ),
    "the scale of another block of rows is packed": (
        _RECORDS, "row / QUANT::kSide * all.scale_row", "row / 256 * all.scale_row",
        fp8(2, 136, 512, scale_b="block_128x128", scale_dtype="fp32", prepacked=True),
    ),
    "the scale of the record's first group": (
        _KERNEL, "[of * Record::kRows + upper * 8]", "[0 * of + upper * 8]",
        packed(2, 40, 512, zero_b="eight", scale_b="block_1x32"),
    ),
    "the scale of eight rows before": (
        _KERNEL, "reads.scale(slot, tile, upper, run)", "reads.scale(slot, tile, 0, run)",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "a record that ends early": (
        _KERNEL, "lane_index() < Record::kBeside;", "lane_index() < Record::kBeside - 1;",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "another row's zero point is packed": (
        _RECORDS, ">> row % 8 * 4 & 15u", ">> (row ^ 1) % 8 * 4 & 15u", packed(2, 40, 512, zero_b="uint4"),
    ),
    "the zero point beside its own": (
        _KERNEL, "lane_index() / 4 * kZero", "(lane_index() / 4 ^ 1) * kZero",
        packed(2, 40, 512, zero_b="uint4"),
    ),
    "another row's zero point of a float": (
        _KERNEL, "own -= point[tile][upper]", "own -= point[tile][0]", packed(2, 40, 512, zero_b="float"),
    ),
    "another row's zero point that is added": (
        _KERNEL, "+= point[tile][upper]", "+= point[tile][0]", packed(2, 40, 512, zero_b="shift"),
    ),
    "the tail's scale of another row": (
        _KERNEL, "(tail)[row]", "(tail)[row ^ 1]", packed(2, 40, 512, "int8", scale_b="outer"),
    ),
    "numbers that stay shrunk": (
        _KERNEL, "QUANT::kBits == 8 ? kShrunkOf<T, QUANT> : 1.0f", "1.0f",
        packed(2, 40, 512, "int8", scale_b="outer"),
    ),
    "activations of one pass alone": (
        _KERNEL, "own = first + pass * kSide;", "own = first;", packed(8, 40, 512, zero_b="eight"),
    ),
    "activations of columns that are none": (
        _KERNEL, "(pass + 1 < kPasses || COLUMNS % kSide == 0)", "(kPasses)",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "activations of the first eight columns": (
        _KERNEL, "half * 8 * kInputBytes", "0 * half * kInputBytes", packed(11, 40, 512, zero_b="eight"),
    ),
    "activations of k beyond the last": (
        _KERNEL, "bytes = inside ? 16 : 0;", "bytes = 16;", packed(2, 40, 416, "int4", scale_b="outer"),
    ),
    "a column beyond the last": (
        _KERNEL, "(own < last ? own : last)", "(own < last ? own : own)", packed(3, 40, 512, zero_b="eight"),
    ),
    "a tile beyond the last": (
        _KERNEL, "(tile < tiles ? tile : tiles - 1)", "(tile < tiles ? tile : tile)",
        packed(2, 48, 512, zero_b="eight"),
    ),
    "the record of another step": (
        _KERNEL, "from[t] + static_cast<i64>(record) *", "from[t] + static_cast<i64>(record / 2) *",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "weights of the team's first member": (
        _KERNEL, "weights(opaque(kInputs + member * TILES", "weights(opaque(kInputs + 0 * TILES",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "the sums of the first team alone": (
        _KERNEL, "parts[part * kPart + at]", "parts[at]", packed(2, 40, 512, zero_b="eight"),
    ),
    "a chunk that is none": (
        _KERNEL, "WARPS_K == 1 || next - SLOTS * WARPS_K < end", "true", packed(2, 40, 640, zero_b="eight"),
    ),
    "a wait that is too short": (
        _KERNEL, "wait_copies<SLOTS - 2>();", "wait_copies<SLOTS - 1>();", packed(2, 40, 512, zero_b="eight"),
    ),
    "a place that is taken before it is free": (
        _KERNEL, "team_barrier(team);  //", "warp_barrier();  //", packed(2, 40, 2048, zero_b="eight"),
    ),
    "sums in the rings before all have read them": (
        _KERNEL, "block_barrier();  // sums", "warp_barrier();  // sums",
        packed(2, 40, 1664, zero_b="eight"),
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
        packed(columns, 40, 1024, kind, zero_b=zero, scale_b=scale)
        for columns in (1, 2, 4, 8, 16, 32)
        for kind, zero, scale in (("uint4", "eight", "block_1x128"), ("int8", "none", "outer"))
    ]
    problems += [mxfp4(columns, 40, 1024, prepacked=True) for columns in (1, 8)]
    found = [FAMILY.config(one, {**CHOSEN, "rows": rows}, SM_90) for one in problems for rows in (16, 32)]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in built(library, found):
        problem = one.found.product.problem
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == 1, (problem.slug, one.found.instantiation)


def test_the_compiler_knows_the_shared_memory_and_threads_that_python_derives(tmp_path: Path) -> None:
    """A ring a team: activations, and a record of every tile."""
    found = FAMILY.config(packed(8, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    record = 1024 + 16 * 2 + 16
    assert found.shared_bytes == 2 * 2 * (8 * 128 * 2 + 2 * record)
    assert (found.threads, found.blocks, found.step) == (2 * 2 * 32, 2, 128)
    halves = FAMILY.config(packed(8, 64, 1024, "int8", scale_b="block_1x32"), {**CHOSEN, "rows": 64}, SM_90)
    assert halves.shared_bytes == 2 * 2 * (8 * 64 * 2 + 8 * (1024 + 2 * 16 * 2))
    sums = FAMILY.config(packed(64, 64, 1024), {**CHOSEN, "rows": 64, "warps_m": 8, "warps_k": 1}, SM_90)
    assert sums.shared_bytes == 64 * (64 * 8 + 8) * 4, "sums take more than the ring"
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    changes: list[tuple[str, dict[str, int]]] = [
        ("as derived", {"shared_bytes": found.shared_bytes - 16}),
        ("as derived", {"shared_bytes": found.shared_bytes + 16}),
        ("as derived in Python", {"threads": 2 * found.threads}),
    ]
    for words, change in changes:
        with pytest.raises(CompileError, match=words):
            Nvrtc().compile(CompileUnit(replace(found, **change).unit, "sm_90"), cache)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (packed(65, 64, 1024), {}, "1 to 64 columns beside the streamed operand, not 65"),
        (packed(1, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (packed(1, 64, 1024, alignment=8), {}, "rows of weights must start at multiples of 16 bytes"),
        (packed(1, 64, 72, "int8", scale_b="outer"), {}, "rows of weights must start at multiples of 16"),
        (packed(3, 64, 1024, lda=1028), {}, "columns must be contiguous along k, start at multiples"),
        (
            packed(64, 64, 1024, lda=1 << 25),
            {},
            "columns 33554432 elements apart end beyond 2^31 bytes",
        ),
        (packed(1, 1 << 24, 1 << 22), {}, "8589934592 blocks pack the weights"),
        (packed(64, 64, 1024), {"slots": 6, "warps_k": 8}, "bytes of shared memory"),
        (packed(1, 64, 1024), {"warps_m": 8, "warps_k": 8}, "a block has 32 to 1024 threads, not 2048"),
        (packed(64, 64, 1024), {"rows": 64}, "registers"),
    ],
)
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert FAMILY.rule(packed(1, 64, 1024), CHOSEN, H200) is None
    assert "needs sm_80" in (FAMILY.rule(packed(1, 64, 1024), CHOSEN, replace(H200, arch="sm_75")) or "")


def test_columns_may_be_as_far_apart_as_their_offsets_have_bits() -> None:
    farthest = packed(64, 64, 1024, lda=((2**31 - 1) // 63 // 2) // 8 * 8)
    assert FAMILY.rule(farthest, CHOSEN, H200) is None
    assert FAMILY.rule(packed(1, 64, 1024, lda=1 << 30), CHOSEN, H200) is None, "one column is at none"


def test_the_largest_weights_that_one_launch_packs() -> None:
    """A block packs four records of 16 rows by 128 elements of k."""
    rows = 16 * 4 * 1023
    most = packed(1, rows, 128 * ((2**31 - 1) // 1023))
    assert FAMILY.rule(most, CHOSEN, H200) is None
    found = FAMILY.config(most, CHOSEN, SM_90).prepacked
    assert found is not None
    assert found.launch.grid == ((2**31 - 1) // 1023 * 1023, 1, 1)
    more = packed(1, rows, most.k + 128)
    assert "blocks pack the weights" in (FAMILY.rule(more, CHOSEN, H200) or "")
