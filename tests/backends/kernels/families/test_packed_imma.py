"""packed-imma on the host: every kind of 4-bit integers, packed beforehand; rings that wrap; rows and k that
are no whole tile or record; activations of many sizes; planted mistakes; banks of shared memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.cache import BinaryCache
from backends.dtypes import DTYPES
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
from tests.backends.kernels.matrix_cores import product_of, wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["packed-imma"]
CHOSEN: dict[str, Parameter] = {
    "rows": 16, "slots": 2, "warps_m": 2, "warps_k": 4, "records": 1, "blocks_per_unit": 1,
}  # fmt: skip


def ident(p: GemmProblem) -> str:
    """What tells problems of quantised weights apart."""
    return f"{p.dtype_b} {p.dtype_a} {p.zero_a} {p.scale_a}"


#: Every kind of weight that the family runs.
KINDS = [
    p
    for kind in ("bf16", "fp16")
    for p in every_kind(2, 72, 640, dtype_a=kind, scale_dtype=kind, prepacked=True)
    if FAMILY.supports(p)
]


def test_what_the_family_runs() -> None:
    """Integers of 4 bits in groups of 64, of 128 and of a row, that are packed beforehand."""
    assert len({ident(p) for p in KINDS}) == 2 * (5 * 2 + 2 * 2 + 3 + 3 - 2)
    assert {p.dtype_a for p in KINDS} == {"int4", "uint4"}
    stored = weights(1, 40, 640)
    assert FAMILY.unsupported(stored) == "the problem's weights are not packed beforehand"
    reasons = {
        weights(1, 40, 640, "int8", scale_b="outer", prepacked=True): "not of int8",
        weights(1, 40, 640, scale_b="block_1x32", prepacked=True): "groups of 64 or 128 here, not of 32",
    }
    for problem, words in reasons.items():
        assert words in (FAMILY.unsupported(problem) or "")


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings."""
    found = [
        FAMILY.config(p, {**CHOSEN, "records": 1 + number % 2, "rows": (16, 32)[number // 2 % 2]}, SM_90)
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
    "two columns": packed(2, 136, 768, zero_b="eight", beta=1.0),
    "groups of half a record": packed(
        1, 48, 1344, "int4", scale_b="block_1x64", bias="bf16", activation="silu"
    ),
    "a zero point that is added": packed(2, 72, 1280, zero_b="shift", scale_b="block_1x64"),
    "of fp16": packed(2, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "scales of rows": packed(2, 33, 640, "int4", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "one scale": packed(1, 33, 640, "int4", scale_b="tensor"),
    "one of k": packed(1, 48, 32, "int4", scale_b="outer"),
    "many rows": packed(1, 900, 256, zero_b="eight"),
    "padded rows": packed(2, 40, 512, zero_b="eight", ldb=544, lda=520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once."""
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 3, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way)


def inputs_of(problem: GemmProblem, x: npt.NDArray[Any]) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
    """Operands with activations x [n, k], random weights and scales of powers of two; the weights [m, k]."""
    rng = np.random.default_rng(7)
    stored = rng.integers(0, 256, (problem.m, problem.k // 2), np.uint8)
    scales = 2.0 ** rng.integers(-3, 3, (problem.m, problem.k // 128))
    weights = np.stack([stored & 15, stored >> 4], axis=-1).reshape(problem.m, problem.k) - 8.0
    inputs = {"a": stored, "b": x, "scale_a": scales.astype(DTYPES["bf16"].storage)}
    return inputs, weights * np.repeat(scales, 128, axis=1)


def test_activations_of_many_sizes(tmp_path: Path) -> None:
    """A record's activations are rounded to a 2^21st of its largest, and no more than sums in fp32 are."""
    problem = packed(2, 48, 512, zero_b="eight", dtype_d="fp32")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 512)) * 2.0 ** rng.integers(-30, 30, (2, 512))
    x[1] = rng.standard_normal(512)
    x[1, 130], x[1, 384:] = 40000.0, 0.0
    x = x.astype(DTYPES["bf16"].storage)
    inputs, weights = inputs_of(problem, x)
    (one,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path, 32)
    found = product_of(one, problem, (1.0, 0.0), inputs).astype(np.float64)
    exact = x.astype(np.float64)
    largest = np.abs(exact).reshape(2, 4, 128).max(axis=2)
    rounded = 2.0**-21 * largest @ np.abs(weights).reshape(48, 4, 128).sum(axis=2).T
    summed = 2.0**-22 * np.abs(exact) @ np.abs(weights).T
    assert (np.abs(found - exact @ weights.T) <= rounded + summed).all()
    assert (np.abs(found[1] - exact[1] @ weights.T) < 2.0**-9 * np.abs(found[1])).mean() > 0.9


def test_what_is_no_number_makes_its_column_nan(tmp_path: Path) -> None:
    problem = packed(2, 48, 512, zero_b="eight", dtype_d="fp32")
    (one,) = build([FAMILY.config(problem, CHOSEN, SM_90)], tmp_path, 32)
    for bad in (np.inf, -np.inf, np.nan):
        x = np.ones((2, 512), DTYPES["bf16"].storage)
        x[0, 200], x[1, 3] = bad, 2.0**-126
        inputs, weights = inputs_of(problem, x)
        found = product_of(one, problem, (1.0, 0.0), inputs)
        assert np.isnan(found[0]).all()
        np.testing.assert_array_equal(found[1], weights.sum(axis=1) - weights[:, 3])
    x = np.full((2, 512), 2.0**-115, DTYPES["bf16"].storage)
    x[1] = 2.0**-117
    inputs, weights = inputs_of(problem, x)
    found = product_of(one, problem, (1.0, 0.0), inputs)
    np.testing.assert_array_equal(found[0], weights.sum(axis=1) * 2.0**-115)
    assert (found[1] == 0).all(), "a unit is 2^-115 at least"


_HEADERS = ("families/packed_imma.h", "device/digits.h")
#: What is mistaken -> its text in one of the headers, what stands there instead, and a problem that shows it.
MISTAKES = {
    "low and high halves exchanged": (
        "word & 0x0f0f0f0fu, of_high[i] = word & 0xf0f0f0f0u",
        "word >> 4 & 0x0f0f0f0fu, of_high[i] = word << 4 & 0xf0f0f0f0u",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "digits in the order of memory": (
        "w[half * 2 + 4]",
        "w[half * 2 + 1]",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "a digit of the neighbour": (
        "BYTE | (BYTE + 4) << 4",
        "BYTE | (BYTE + 3) << 4",
        packed(1, 40, 512),
    ),
    "the highest digit without its sign": (
        "seven | (seven << 1 & 0x80808080u)",
        "seven",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "the middle digits unsigned": (
        "out[1][half] ^= 0x80808080u, out[2]",
        "out[2]",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "a slice that counts too little": (
        "slice == 1 ? 16.0f",
        "slice == 1 ? 1.0f",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "the zero point of no group": (
        "16 * static_cast<int>(kConstantZero<QUANT>) * own",
        "0 * own",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "a group's total of half its lanes": (
        "mask < kOfGroup; mask *= 2)\n                total",
        "mask < kOfGroup / 2; mask *= 2)\n                total",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "the unit of the lane's own elements": (
        "mask < 16; mask *= 2) largest",
        "mask < 1; mask *= 2) largest",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "the unit of another column": (
        "work.units(record) + pair * 2",
        "work.units(record) + 0 * pair",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "the scale of another group": (
        "place = group * Record::kRows",
        "place = 0 * group * Record::kRows",
        packed(1, 40, 512, zero_b="eight", scale_b="block_1x64"),
    ),
    "the scale of eight rows before": (
        "Record::kRows + upper * 8 + row",
        "Record::kRows + 0 * upper + row",
        packed(1, 40, 512, zero_b="eight"),
    ),
    "a zero point times no total": (
        "found -= 16.0f * zero * total[i]",
        "found -= 16.0f * zero * total[0]",
        packed(1, 40, 512, zero_b="uint4"),
    ),
    "a zero point that is subtracted": (
        "sum[t][upper * 2 + i] += 16.0f * zero",
        "sum[t][upper * 2 + i] -= 16.0f * zero",
        packed(1, 40, 512, zero_b="shift"),
    ),
    "the tail's scale of another row": (
        "(tail)[row]",
        "(tail)[row ^ 1]",
        packed(1, 40, 512, "int4", scale_b="outer"),
    ),
    "the sums of the first warp alone": (
        "parts[part * kPart +",
        "parts[0 * part * kPart +",
        packed(1, 40, 1024, zero_b="eight"),
    ),
    "a tile beyond the last": (
        "own < tiles ? own : tiles - 1",
        "own < tiles ? own : own",
        packed(1, 48, 512),
    ),
    "activations of k beyond the last": (
        "&& k < args.k)",
        "&& k < args.k + 64)",
        packed(1, 40, 416, "int4", scale_b="outer"),
    ),
    "activations of a column that is none": (
        "s * COLUMNS + column;",
        "s * COLUMNS + 0 * column;",
        packed(2, 40, 512, zero_b="eight"),
    ),
    "records of the first turn alone": (
        "from + turn * WARPS_K * Record::kBytes",
        "from + 0 * turn * Record::kBytes",
        packed(1, 40, 1024, zero_b="eight"),
    ),
    "a slot that is freed before it is read": (
        "start_barrier(&free[slot], kWarps);",
        "start_barrier(&free[slot], 1);",
        packed(1, 400, 2048, zero_b="eight"),
    ),
    "sums that are added before all have met": (
        "start_barrier(&met[team], kLanes);",
        "start_barrier(&met[team], 32);",
        packed(1, 40, 2048, zero_b="eight"),
    ),
    "sums of the round before": (
        "work.part(round, team * WARPS_K);",
        "work.part(round + 1, team * WARPS_K);",
        packed(1, 400, 512, zero_b="eight"),
    ),
    "activations of another team that are not converted yet": (
        "wait_phase(work.converted, kEnded);",
        "warp_barrier();",
        packed(2, 40, 2048, zero_b="eight"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    text, mistake, problem = MISTAKES[name]
    copies = copied_headers(tmp_path / "headers")
    (path,) = (copies / name for name in _HEADERS if text in (copies / name).read_text())
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    config = FAMILY.config(problem, {**CHOSEN, "records": 2}, SM_90)
    (one,) = build([config], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Lanes that read at once read from different banks."""
    problems = [
        packed(columns, 40, 1024, zero_b=zero, scale_b=scale)
        for columns in (1, 2)
        for zero, scale in (("eight", "block_1x128"), ("uint4", "block_1x64"), ("none", "outer"))
    ]
    found = [FAMILY.config(one, {**CHOSEN, "rows": rows}, SM_90) for one in problems for rows in (16, 32)]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in built(library, found):
        problem = one.found.product.problem
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == 1, (problem.slug, one.found.instantiation)


def test_the_compiler_knows_the_shared_memory_and_threads_that_python_derives(tmp_path: Path) -> None:
    """The ring, slices with starts and units, totals where zero points are stored, sums and barriers."""
    found = FAMILY.config(packed(2, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    ring, inputs = 2 * 2 * 4 * (1024 + 16 * 2 + 16), 8 * (2 * 6 * 64 + 64 + 32 + 32)
    assert found.shared_bytes == ring + inputs + 2 * 8 * 6 * 20 * 4 + (2 * 2 + 1 + 2) * 8
    assert (found.threads, found.blocks, found.on(132).blocks) == (9 * 32, 1, 2)
    half = FAMILY.config(packed(1, 64, 1024, zero_b="eight", scale_b="block_1x64"), CHOSEN, SM_90)
    assert half.shared_bytes == 16 * (1024 + 64) + 8 * (2 * 3 * 64 + 128 + 32) + 2 * 8 * 3 * 20 * 4 + 56
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


def test_blocks_are_as_many_as_multiprocessors_hold() -> None:
    """And no more than groups of tiles."""
    problem = packed(1, 28672, 4096, zero_b="eight")
    one = FAMILY.config(problem, CHOSEN, SM_90)
    two = FAMILY.config(problem, {**CHOSEN, "blocks_per_unit": 2}, SM_90)
    assert (one.on(132).blocks, two.on(132).blocks, two.on(1000).blocks) == (132, 264, 896)


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (packed(3, 64, 1024), {}, "1 to 2 columns beside the streamed operand, not 3"),
        (packed(1, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (packed(2, 64, 1024, lda=1028), {}, "columns must be contiguous along k, start at multiples"),
        (packed(1, 1 << 24, 1 << 22), {}, "8589934592 blocks pack the weights"),
        (packed(1, 64, 1024), {"slots": 6, "warps_k": 8, "rows": 64}, "bytes of shared memory"),
        (packed(1, 64, 1 << 16), {}, "bytes of shared memory"),
        (
            packed(1, 64, 4096),
            {"slots": 8, "warps_m": 1, "warps_k": 8, "rows": 32, "blocks_per_unit": 2},
            "2 blocks take",
        ),
        (packed(1, 64, 1024), {"warps_m": 4, "warps_k": 8}, "a block has 32 to 1024 threads, not 1056"),
        (packed(1, 64, 1024), {"warps_m": 4, "warps_k": 7, "rows": 64}, "registers"),
        (packed(1, 64, 1024, scale_b="block_1x64"), {"warps_m": 4, "rows": 64}, "take 102 registers"),
    ],
)
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert FAMILY.rule(packed(1, 64, 1024), CHOSEN, H200) is None
    early = FAMILY.rule(packed(1, 64, 1024), CHOSEN, replace(H200, arch="sm_89"))
    assert early == "the copy engine copies runs of bytes from sm_90 on, not on sm_89"
