"""skinny-shifted on the host: unaligned lines and columns, NaNs beside them, reads that stay within
operands, banks of shared memory, mistakes that must show; its shared memory, and what is listed."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.checked import WAYS, findings, with_a_mistake
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, built, compiled, source
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["skinny-shifted"]
CHOSEN: dict[str, Parameter] = {
    "stream": "a", "lines": 16, "classes": 8, "unroll": 2, "ahead": 1, "warps": 2, "splits": 1, "cluster": 0,
}  # fmt: skip
#: Lines that are the instruction's columns.
ACROSS: dict[str, Parameter] = {**CHOSEN, "lines": 8, "classes": 4, "unroll": 3, "ahead": 0}
#: The rows of two instructions; slices of k that a cluster's blocks add.
DOUBLE: dict[str, Parameter] = {**CHOSEN, "lines": 32, "classes": 2, "unroll": 1, "warps": 3}
CLUSTER: dict[str, Parameter] = {**CHOSEN, "classes": 4, "unroll": 1, "splits": 2, "cluster": 1}
KINDS = {"rows": CHOSEN, "columns": ACROSS, "double": DOUBLE, "cluster": CLUSTER}
#: The family's own headers.
OWN = ("families/skinny_shifted.h", "device/unaligned_words.h")


def sliced(kind: str, splits: int) -> dict[str, Parameter]:
    """With so many slices of k; a cluster has two at least."""
    return {**KINDS[kind], "splits": max(splits, 2) if kind == "cluster" else splits}


#: m, n, k of F.linear; batches; lines that start at 16 bytes, too, which is legal if not listed.
SHAPES: dict[str, GemmProblem] = {
    "one column": from_linear(1, 140, 515, "bf16", bias="bf16"),
    "three": from_linear(3, 130, 777, "bf16", beta=1.0),
    "eight": from_linear(8, 64, 255, "fp16"),
    "ten": from_linear(10, 72, 1037, "bf16", bias="bf16", activation="silu"),
    "seventeen": from_linear(17, 129, 651, "bf16", beta=1.0),
    "twenty-four": from_linear(24, 33, 333, "fp16", dtype_d="fp32"),
    "thirty-two": from_linear(32, 31, 190, "bf16"),
    "few of k": from_linear(5, 24, 19, "bf16"),
    "one of k": from_linear(2, 9, 1, "bf16"),
    "few lines": from_linear(9, 3, 101, "bf16"),
    "a line": from_linear(2, 1, 75, "bf16", alignment=2),
    "padded lines": from_linear(6, 50, 645, "bf16", ldb=656),
    "addresses of two bytes": from_linear(12, 40, 328, "bf16", alignment=2),
    "batch": from_bmm(3, 9, 36, 205, "bf16", trans_b="T"),
    "a batch of one operand": from_bmm(3, 7, 20, 75, "bf16", trans_b="T", stride_b=0, alignment=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, either operand the large one, copies as late as may be and at once."""
    problem, found = SHAPES[name], []
    for stream in ("a", "b"):
        some = [{**one, "stream": stream} for one in legal_values(FAMILY, problem, H200, 80, len(name))]
        legal = [one for one in some if FAMILY.rule(problem, one, H200) is None]
        found += [(problem, one) for one in legal][:4]
    assert found
    assert findings(FAMILY, found, tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_lines_and_columns_start_at_every_element(kind: str, alignment: int, tmp_path: Path) -> None:
    """Of every leading dimension modulo 16 bytes each, with gaps and without; addresses of so many bytes."""
    found = [
        (from_blas(75, 11, k, "bf16", trans_a="T", lda=k + more, ldb=k + (3 * more + k) % 8,
                   alignment=alignment), KINDS[kind])
        for k in (128, 131) for more in range(8)
    ]  # fmt: skip
    assert findings(FAMILY, found, tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_end_of_lines(kind: str, tmp_path: Path) -> None:
    """Of k, and of lines: the last words of the last line, of operands without a gap. Slices that have
    nothing, and the step that a shift adds to the last one."""
    found = [
        (from_blas(lines, 9, k, "bf16", trans_a="T", alignment=2), sliced(kind, splits))
        for k, lines, splits in (
            (1, 1, 1), (7, 2, 1), (8, 65, 1), (9, 9, 2), (25, 8, 1), (26, 17, 1), (31, 63, 2), (32, 64, 1),
            (33, 71, 1), (63, 5, 4), (95, 66, 1), (122, 129, 4), (128, 127, 4), (159, 15, 8), (160, 70, 1),
        )
    ]  # fmt: skip
    assert findings(FAMILY, found, tmp_path) == []


@pytest.mark.parametrize("columns", [*range(1, 9), 12, 16, 17, 25, 31])
def test_columns(columns: int, tmp_path: Path) -> None:
    problem = from_linear(columns, 70, 203, "bf16", beta=1.0, bias="fp32", activation="gelu")
    assert findings(FAMILY, [(problem, {**one, "splits": 2}) for one in KINDS.values()], tmp_path) == []


def test_the_last_slice_has_the_step_that_a_shift_adds() -> None:
    """Four of k = 128 have a step each, and of lines that start at the last element there are five."""
    found = FAMILY.config(from_linear(9, 70, 128, "bf16"), {**CHOSEN, "splits": 4}, SM_90)
    assert found.instantiation.endswith(", 2, 1>")
    found = FAMILY.config(from_linear(9, 70, 121, "bf16"), {**CHOSEN, "splits": 4}, SM_90)
    assert found.instantiation.endswith(", 1, 1>")


@pytest.mark.parametrize("kind", ["rows", "columns", "double", "cluster"])
def test_banks_of_shared_memory(kind: str, tmp_path: Path) -> None:
    """Lanes that read at once read from different banks, of columns that lie an odd number of elements apart,
    whatever the class's shift; of others from two or four of one."""
    problems = [
        (from_blas(70, n, k, "bf16", trans_a="T", lda=k + k % 2 + 1, ldb=k + apart), most)
        for n in (1, 8, 12, 24)
        for k, apart, most in ((131, 0, 1), (133, 0, 1), (130, 0, 1), (132, 0, 2), (128, 0, 4), (131, 2, 1))
    ]
    found = [FAMILY.config(problem, KINDS[kind], SM_90) for problem, _ in problems]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, (problem, most) in zip(built(library, found), problems, strict=True):
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() <= most, problem.slug


# ---- mistakes that must show ---------------------------------------------------------------------

#: Text of the header, what replaces it, and who shows it.
MISTAKES = (
    ("(i >= from) & (i < to)", "(i >= from)", "rows"),
    ("(i >= from) & (i < to)", "(i < to)", "columns"),
    ("lines[h].at[i] &= mask;", "lines[h].at[i] &= mask | ~0u;", "rows"),
    ("x[e][i] &= mask;", "x[e][i] &= mask | ~0u;", "rows"),
    ("inner = shift ? 1 : 0", "inner = 0", "rows"),
    ("(k + shift) / kDeep;", "(k + shift + kDeep - 1) / kDeep;", "columns"),
    ("(k + shift + kDeep - 1) / kDeep;", "(k + kDeep - 1) / kDeep;", "rows"),
    ("first >= args.m ? begin : ", "", "rows"),
    ("first + i < args.m ? i * args.lda : 0", "first + i <= args.m ? i * args.lda : 0", "rows"),
    ("step < end ? args.k : 0", "args.k", "rows"),
    ("(from - shift % 2) / 2", "from / 2 - shift % 2", "rows"),
    ("within(args, at + u).any() & a.holds(word)", "within(args, at + u).any()", "rows"),
    ("& b.holds(source + i * 16);", ";", "rows"),
    ("const int low = begin ? 0 : 1", "const int low = 0", "columns"),
    ("lane ? high - 1 : low", "low", "rows"),
    ("lane ? high - 1 : low", "high - 1", "rows"),
    ("lines[!kAcross * 2 * r]", "lines[0]", "double"),
    ("lines[!kAcross * (2 * r + 1)]", "lines[!kAcross]", "double"),
    ("r * 16 + down", "down", "double"),
    ("cluster_barrier<true>();", "block_barrier();", "cluster"),
    ("            wait_for_cluster();  // who is sent something is there\n", "", "cluster"),
    ("slice = 1; slice < SLICES", "slice = 1; slice < SLICES - 1", "cluster"),
    ("kLines, j % SLICES, whole", "kLines, mine, whole", "cluster"),
    ("mine * kShare + j / SLICES", "kShare + j / SLICES", "cluster"),
    ("on * SLICES + mine < columns", "on * SLICES + mine < columns - 1", "cluster"),
    ("0, on * SLICES + mine, all", "0, on * SLICES, all", "cluster"),
    ("kShare = 8 * EIGHTS / SLICES", "kShare = 4 * EIGHTS / SLICES", "cluster"),
    ("        wait_copies<0>();\n        block", "        block", "rows"),
    ("        wait_copies<0>();\n        block_barrier();\n", "        wait_copies<0>();\n", "rows"),
    ("block_barrier();  // sums", "// sums", "rows"),
    ("(STEPS + UNROLL - 1)", "(STEPS - 1)", "rows"),
    ("lane.load(args, at + kTurn, window[1]);  // lines come", "// lines come", "double"),
    ("lane.load(args, at + 2 * kTurn, window[0]);", "", "double"),
    (
        "lane.multiply(args, at + kTurn, window[1], sum);",
        "lane.multiply(args, at, window[1], sum);",
        "double",
    ),
    ("if (at + kTurn >= lane.end) break;", "if (at + 2 * kTurn >= lane.end) break;", "double"),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_shows(number: int, tmp_path: Path) -> None:
    text, wrong, kind = MISTAKES[number]
    found = [
        (from_blas(lines, 15, k, "bf16", trans_a="T", lda=k + more, ldb=k + more, alignment=alignment),
         sliced(kind, splits))
        for lines, k, more, splits, alignment in (
            (65, 135, 0, 1, 2), (3, 257, 2, 2, 16), (70, 256, 1, 4, 2), (66, 193, 0, 1, 8),
            (75, 128, 3, 4, 4), (200, 40, 1, 1, 4),
        )
    ]  # fmt: skip
    assert with_a_mistake(FAMILY, found, tmp_path, OWN, text, wrong) != []


# ---- what is derived, and what is listed -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_compiler_knows_the_shared_memory_that_python_derives(kind: str, tmp_path: Path) -> None:
    """A slice of every column, or the warps' sums."""
    found = FAMILY.config(from_linear(8, 400, 1037, "bf16"), KINDS[kind], SM_90)
    near, sent = 8 * 2320, 8 * 64 * 4
    expected = {"rows": near, "columns": near, "double": 8 * 2192, "cluster": 8 * 1168 + sent}
    assert found.shared_bytes == expected[kind]
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    for wrong in (-16, 16):
        with pytest.raises(CompileError, match="as derived"):
            Nvrtc().compile(
                CompileUnit(replace(found, shared_bytes=found.shared_bytes + wrong).unit, "sm_90"), cache
            )


@pytest.mark.parametrize(
    ("problem", "listed"),
    [
        (from_linear(17, 4097, 4095, "bf16"), True),
        (from_blas(32, 4097, 4095, "fp16", trans_a="T"), True),
        (from_linear(17, 4096, 4096, "bf16", alignment=8), True),
        (from_linear(17, 4096, 4095, "bf16", ldb=4096), False),  # aligned, if not whole
        (from_linear(17, 4096, 4096, "bf16", lda=4097), False),  # the large operand's are
        (from_linear(33, 4097, 4095, "bf16"), False),
        (from_linear(17, 4097, 31, "bf16"), False),
        (from_linear(17, 4097, 4095), False),
    ],
)
def test_it_is_listed_where_lines_start_anywhere(problem: GemmProblem, listed: bool) -> None:
    assert bool(list(FAMILY.solutions(problem, H200))) == listed


def test_the_likeliest_are_one_block_a_multiprocessor() -> None:
    problem = from_linear(17, 4097, 4095, "bf16")
    found = list(FAMILY.solutions(problem, H200))
    assert len(found) <= 24
    for solution in found[:4]:
        across, down, _ = FAMILY.config(problem, solution.parameters, SM_90).grid
        assert 128 <= across * down <= 2 * H200.units
    # What was fastest on an H200, with clusters and without.
    listed = [dict(one.parameters) for one in found]
    clustered = {**DOUBLE, "splits": 2, "cluster": 1}
    for wanted, within in (
        ({**clustered, "warps": 8}, 8), ({**clustered, "warps": 6}, 8),
        ({**CLUSTER, "unroll": 2, "warps": 4}, 12), ({**CHOSEN, "unroll": 1, "warps": 3, "splits": 4}, 24),
    ):  # fmt: skip
        assert wanted in listed[:within]


WITHIN = """
#include "device/epilogue.h"
#include "families/skinny_shifted.h"
extern "C" int own(long long e, long long k) {  // a bit of every element
    const gemmtune::Within mine(e, k);
    int found = 0;
    for (int i = 0; i < 8; ++i) found |= mine.has(i) << i;
    return mine.any() == (found != 0) ? found : -1;
}
"""


def test_which_elements_are_a_lines_own_however_long_it_is(tmp_path: Path) -> None:
    own = compiled(WITHIN, tmp_path / "within.so").own
    own.argtypes, own.restype = [ctypes.c_longlong] * 2, ctypes.c_int
    for k in (1, 7, 8, 2**31 - 1):
        for e in (*range(-9, 10), *range(k - 9, k + 10), 2**31, 2**31 + 1, 2**32 - 3, 2**32 + 3):
            assert own(e, k) == sum((0 <= e + i < k) << i for i in range(8)), (e, k)
        assert own(2**31 + 1, 0) == 0, "a step beyond the warp's last"
