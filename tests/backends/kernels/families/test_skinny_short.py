"""skinny-short on the host: lines and columns that start and end anywhere, NaNs beside them, reads that stay
within operands, banks of shared memory, mistakes that must show; what is derived, and what is listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.kernels.few_columns import streamed
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.checked import WAYS, findings, with_a_mistake
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, built, compiled, source
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["skinny-short"]


def chosen(unroll: int, warps: int) -> dict[str, Parameter]:
    return {"stream": "a", "unroll": unroll, "warps": warps}


#: m, n, k of F.linear; batches; lines that start at 16 bytes, too.
SHAPES: dict[str, GemmProblem] = {
    "one column": from_linear(1, 140, 515, "bf16", bias="bf16"),
    "three": from_linear(3, 130, 777, "bf16", beta=1.0),
    "eight": from_linear(8, 64, 255, "fp16", dtype_d="fp32"),
    "aligned": from_linear(4, 72, 512, "bf16", bias="bf16", activation="silu"),
    "few of k": from_linear(5, 24, 19, "bf16"),
    "one of k": from_linear(2, 9, 1, "bf16"),
    "a line": from_linear(2, 1, 75, "bf16", alignment=2),
    "padded lines": from_linear(6, 50, 645, "bf16", ldb=656),
    "addresses of two bytes": from_linear(7, 40, 328, "bf16", alignment=2),
    "batch": from_bmm(3, 5, 36, 205, "bf16", trans_b="T"),
    "a batch of one operand": from_bmm(3, 7, 20, 75, "bf16", trans_b="T", stride_b=0, alignment=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Any that are legal, and those that are listed; either operand the large one where it may be."""
    problem, found = SHAPES[name], [one.parameters for one in FAMILY.solutions(SHAPES[name], H200)][:2]
    for stream in ("a", "b"):
        some = [{**one, "stream": stream} for one in legal_values(FAMILY, problem, H200, 40, len(name))]
        found += [one for one in some if FAMILY.rule(problem, one, H200) is None][:3]
    assert found
    assert findings(FAMILY, [(problem, one) for one in found], tmp_path) == []


@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_lines_and_columns_start_at_every_element(alignment: int, tmp_path: Path) -> None:
    """Of every leading dimension modulo 16 bytes each, with gaps and without; addresses of so many bytes."""
    found = [
        (from_blas(75, 7, k, "bf16", trans_a="T", lda=k + more, ldb=k + (3 * more + k) % 8,
                   alignment=alignment), chosen(2, 3))
        for k in (128, 131) for more in range(8)
    ]  # fmt: skip
    assert findings(FAMILY, found, tmp_path) == []


def test_every_end_of_lines(tmp_path: Path) -> None:
    """Of k, and of lines: the last words of the last line, of operands without a gap."""
    found = [
        (from_blas(lines, columns, k, "bf16", trans_a="T", alignment=2), chosen(3, 2))
        for k, lines, columns in (
            (1, 1, 1), (7, 2, 3), (8, 65, 2), (9, 9, 8), (25, 8, 1), (26, 17, 5), (31, 63, 3), (32, 64, 3),
            (33, 71, 4), (63, 5, 8), (95, 66, 7), (122, 129, 6), (128, 127, 1), (159, 15, 2), (185, 70, 3),
        )
    ]  # fmt: skip
    assert findings(FAMILY, found, tmp_path) == []


def test_banks_of_shared_memory(tmp_path: Path) -> None:
    """Lanes that read at once read from different banks, of columns an odd number of elements apart."""
    problems = [from_blas(70, n, k, "bf16", trans_a="T") for n in (1, 3, 8) for k in (131, 129, 155)]
    found = [FAMILY.config(problem, chosen(2, 3), SM_90) for problem in problems]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(built(library, found), problems, strict=True):
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() <= 1, problem.slug


#: Text of the header, and what replaces it.
MISTAKES = (
    ("first + on < static_cast<unsigned>(args.m) ? on * lda * 2 : 0", "on * lda * 2"),
    ("(own + u * kDeep < args.k) & of_a.has(u * kStep)", "own + u * kDeep < args.k"),
    ("wanted(x) & of_b.has(x * kBringers * 16), from", "wanted(x), from"),
    ("& ((on > 0) | !early)", ""),
    ("(left - on >= 16) &", ""),
    ("GEMMTUNE_RARELY(wanted(x) && !of_b.has(bytes))", "false"),
    ("i = e < 0 ? -e : 0; i < 8 && e + i < k; ++i)\n", "i = 0; i < 8 && e + i < k; ++i)\n"),
    ("if (step + u == 0 || (step + u + 1) * kDeep > args.k)", "if ((step + u + 1) * kDeep > args.k)"),
    ("if (step + u == 0 || (step + u + 1) * kDeep > args.k)", "if (step + u == 0)"),
    ("GEMMTUNE_RARELY(!within && e < k)", "within && e > k"),
    ("line.at[i] &= mask, row[i] &= mask", "line.at[i] &= mask | ~0u, row[i] &= mask"),
    ("line.at[i] &= mask, row[i] &= mask", "line.at[i] &= mask, row[i] &= mask | ~0u"),
    ("at + 1 < end", "at < end"),
    ("static_cast<unsigned>(place - 2 * near_word) * 16", "static_cast<unsigned>(place % 2) * 16"),
    ("        block_barrier();\n        float sum", "        float sum"),
    ("        block_barrier();\n        if (t >=", "        if (t >="),
    ("static_cast<u64>(first) * lda", "static_cast<u64>(block_x()) * lda"),
    ("task.batch * args.stride_a +", "0 * args.stride_a +"),
    ("task.batch * args.stride_b + j", "0 * task.batch + j"),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_shows(number: int, tmp_path: Path) -> None:
    text, wrong = MISTAKES[number]
    found = [
        (from_blas(lines, 7, k, "bf16", trans_a="T", lda=k + more, ldb=k + more, alignment=alignment),
         chosen(2, 4))
        for lines, k, more, alignment in (
            (65, 135, 0, 2), (3, 249, 2, 16), (70, 247, 1, 4), (66, 193, 0, 8), (75, 128, 3, 4),
        )
    ]  # fmt: skip
    found.append((from_bmm(2, 7, 20, 75, "bf16", trans_b="T", alignment=2), chosen(2, 4)))
    assert with_a_mistake(FAMILY, found, tmp_path, ["families/skinny_short.h"], text, wrong) != []


# ---- what is derived, and what is listed -----------------------------------------------------------


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """Words of every column and one more, and the warps' sums."""
    found = FAMILY.config(from_linear(3, 1000, 777, "bf16"), chosen(2, 13), SM_90)
    assert found.shared_bytes == 3 * 1728 + 13 * 256
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    for wrong in (-16, 16):
        with pytest.raises(CompileError, match="as derived"):
            Nvrtc().compile(
                CompileUnit(replace(found, shared_bytes=found.shared_bytes + wrong).unit, "sm_90"), cache
            )


@pytest.mark.parametrize(("lines", "blocks"), [(1, 1), (7, 7), (8, 8), (64, 8), (65, 9), (71, 15), (128, 16)])
def test_blocks_have_lines(lines: int, blocks: int) -> None:
    problem = from_blas(lines, 3, 100, "bf16", trans_a="T")
    assert FAMILY.config(problem, chosen(1, 4), SM_90).blocks == blocks


@pytest.mark.parametrize(
    ("problem", "listed"),
    [
        (from_linear(3, 1000, 777, "bf16"), True),
        (from_linear(8, 1000, 776, "fp16"), True),
        (from_blas(1000, 3, 777, "fp16", trans_a="T"), True),
        (from_linear(9, 1000, 777, "bf16"), False),
        (from_linear(3, 1000, 31, "bf16"), False),
        (from_linear(3, 1000, 777), False),
        (from_linear(3, 100_000, 777, "bf16"), False),  # more waves than it pays for
        (from_linear(3, 1000, 16_384, "bf16"), False),  # more than registers hold
    ],
)
def test_it_is_listed_where_all_of_k_is_there_at_once(problem: GemmProblem, listed: bool) -> None:
    found = list(FAMILY.solutions(problem, H200))
    assert bool(found) == listed
    for solution in found:
        product = streamed(problem, solution.parameters)
        unroll, warps = (int(solution.parameters[name] or 0) for name in ("unroll", "warps"))
        assert unroll * warps * 32 >= product.k
