"""skinny-ring on the host: rings that wrap around, unaligned lines, columns of every kind; its
shared memory, and lines that are longer than an int counts."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, built, compiled, source
from tests.backends.kernels.samples import SM_90, legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["skinny-ring"]
#: m, n, k of F.linear: whole loads first, then lines that start at odd places, or end there.
SHAPES: dict[str, GemmProblem] = {
    "one column": from_linear(1, 40, 1048, "bf16", bias="bf16"),
    "three": from_linear(3, 130, 712, "bf16", beta=1.0),
    "eight": from_linear(8, 64, 256, "fp16"),
    "ten": from_linear(10, 72, 1544, "bf16", bias="bf16", activation="silu"),
    "twenty-four": from_linear(24, 33, 648, "fp16", dtype_d="fp32"),
    "sixty": from_linear(60, 24, 320, "bf16"),
    "few of k": from_linear(5, 24, 56, "bf16"),
    "odd lines": from_linear(17, 41, 1037, "bf16", beta=1.0),
    "odd lines of one column": from_linear(1, 23, 515, "fp16"),
    "padded lines": from_linear(6, 50, 645, "bf16", ldb=656),
    "addresses of two bytes": from_linear(12, 40, 328, "bf16", alignment=2),
    "batch": from_bmm(3, 9, 36, 205, "bf16", trans_b="T"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    """Candidates of every kind, copies as late as may be and at once."""
    problem = SHAPES[name]
    sample = [
        {**values, "stream": stream}
        for stream in ("a", "b")
        for values in legal_values(FAMILY, problem, H200, 40, len(name))
        if values["stream"] == stream and problem.k > 2 * int(values["tile_k"] or 0) * (name == "three")
    ][:4]
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way)


#: Lines that start at 16 bytes, and that start at every element.
WHOLE, ODD = from_linear(8, 40, 1048, "bf16"), from_linear(8, 40, 1037, "bf16")
CHOSEN: dict[str, Parameter] = {
    "stream": "a", "rows": 24, "tile_k": 64, "slots": 3, "warps": 2, "splits": 1,
}  # fmt: skip


@pytest.mark.parametrize(("problem", "line"), [(WHOLE, 128), (ODD, 128 + 16)], ids=["whole", "odd"])
def test_the_compiler_knows_the_shared_memory_that_python_derives(
    problem: GemmProblem, line: int, tmp_path: Path
) -> None:
    """A ring a warp, of as many lines a slot as there are rows and columns."""
    found = FAMILY.config(problem, CHOSEN, SM_90)
    assert found.shared_bytes == 2 * 3 * (24 + 8) * line
    cache = BinaryCache(tmp_path)
    Nvrtc().compile(CompileUnit(found.unit, "sm_90"), cache)
    for wrong in (-16, 16):
        with pytest.raises(CompileError, match="as derived"):
            Nvrtc().compile(
                CompileUnit(replace(found, shared_bytes=found.shared_bytes + wrong).unit, "sm_90"), cache
            )


#: Rows of A first in the instruction, or columns of B; eights of either that no other goes with.
SIDES = [(8, 4, 2), (8, 16, 2), (24, 3, 4), (24, 17, 2), (32, 17, 12), (40, 20, 2), (32, 33, 2), (16, 8, 4)]


@pytest.mark.parametrize("k", [520, 523, 522], ids=["whole", "odd", "even"])
def test_either_operand_is_the_rows_of_the_instruction(k: int, tmp_path: Path) -> None:
    """Lines that are not there leave the others' sums alone: theirs are of what nobody copied."""
    problems = [from_linear(columns, 2 * rows + 5, k, "bf16") for rows, columns, _ in SIDES]
    found = [
        FAMILY.config(problem, {**CHOSEN, "rows": rows, "warps": warps}, SM_90)
        for problem, (rows, _, warps) in zip(problems, SIDES, strict=True)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), problems, strict=True):
        for other_way in (False, True):
            case = Case(problem, 3, "normal", "exact")
            assert verifier.check(HostKernel(one, other_way), case, runs=1).wrong == "", (
                one.found.instantiation
            )


WAYS = """
extern "C" int ways() {
    const int found = gemmtune::host::machine.ways;
    gemmtune::host::machine.ways = 0;
    return found;
}
"""


@pytest.mark.parametrize("tile_k", [64, 128, 256])
def test_banks_of_shared_memory(tile_k: int, tmp_path: Path) -> None:
    """Lanes that read at once read from different banks, of lines that are whole and of lines of odd lengths;
    of those that are four elements more than eights apart, from two of one, as of four columns of odd
    lengths."""
    problems = [
        (from_linear(columns, 24, k, "bf16"), 2 if (columns, k) == (4, 523) else most)
        for columns in (1, 2, 4, 8, 16)
        for k, most in ((520, 1), (523, 1), (525, 1), (522, 1), (524, 2))
    ]
    found = [FAMILY.config(problem, {**CHOSEN, "tile_k": tile_k}, SM_90) for problem, _ in problems]
    library = compiled(source(found) + WAYS, tmp_path / "kernels.so")
    library.ways()  # libraries of one process may share their counters
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, (problem, most) in zip(built(library, found), problems, strict=True):
        assert verifier.check(HostKernel(one, False), Case(problem, 3, "normal", "exact"), runs=1).wrong == ""
        assert library.ways() == most, problem.slug


#: Linux's MAP_NORESERVE, which Python's module has no name for: nobody holds 4 GiB ready for so few pages.
NO_RESERVE = 0x4000
#: One line of k elements: the first of a slot's lines as lanes copy it.
COPY = """
#include "device/epilogue.h"
#include "device/operand_tile.h"
#define private public
#include "families/skinny_ring.h"
#undef private
template <bool WHOLE>
void copy(const void* operand, int k, int chunk, char* to) {
    using B = gemmtune::Bf16;
    using Ring = gemmtune::SkinnyRing<gemmtune::Types<B, B, B, B>, WHOLE, 1, 8, 64, 2, 2>;
    auto& machine = gemmtune::host::machine;
    machine.fibers.resize(32), machine.fault = nullptr, machine.reversed = true;  // copies are done at once
    const char* const end = static_cast<const char*>(operand) + 2LL * k;
    gemmtune::host::may_copy(0, operand, 2LL * k);
    for (machine.current = 0; machine.current < 32; ++machine.current)
        typename Ring::template Lines<8>(operand, 0, k, 0, 1, k).copy(to, chunk, end);
}
extern "C" void copy_three(const void* operand, int chunk, char* to) {  // lines of 515 elements, for eight
    auto& machine = gemmtune::host::machine;
    machine.fibers.resize(32), machine.fault = nullptr, machine.reversed = true;
    const char* const end = static_cast<const char*>(operand) + 2 * 3 * 515;
    gemmtune::host::may_copy(0, operand, 2 * 3 * 515);
    for (machine.current = 0; machine.current < 32; ++machine.current)
        gemmtune::RingLines<false, 8, 128>(operand, 0, 515, 0, 3, 515).copy(to, chunk, end);
}
extern "C" void copy_whole(const void* from, int k, int chunk, char* to) { copy<true>(from, k, chunk, to); }
extern "C" void copy_odd(const void* from, int k, int chunk, char* to) { copy<false>(from, k, chunk, to); }
"""


def test_lines_of_more_bytes_than_an_int_counts(tmp_path: Path) -> None:
    """Every chunk is copied from where it is, to the last, which ends within the line."""
    library = compiled(COPY, tmp_path / "copy.so")
    k = 2**31 - 24
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = np.frombuffer(mmap.mmap(-1, 2 * k + 4096, flags=flags), np.uint8)
    last, data = (k - 1) // 64, np.random.default_rng(3).integers(1, 256, 384, np.uint8)
    for chunk in (0, last // 2, last - 1, last):
        place = chunk * 128
        for name, shift in (("whole", 0), ("odd", 0), ("odd", 6)):
            memory[shift + place : shift + place + 384] = data[: memory.size - shift - place]
            slot = np.full(8 * (128 + 16), 0xAA, np.uint8)
            getattr(library, f"copy_{name}")(
                ctypes.c_void_p(int(memory.ctypes.data) + shift), k, chunk, ctypes.c_void_p(slot.ctypes.data)
            )
            there = min(128, 2 * k - place)
            assert there == (80 if chunk == last else 128)
            assert (slot[shift : shift + there] == data[:there]).all(), (chunk, name)
            assert not slot[shift + there : shift + 128].any(), (chunk, name)


def test_lines_that_are_not_there_are_not_copied(tmp_path: Path) -> None:
    """Not as zeros either, in whole chunks and in the last: what is asked of L2 is what there is."""
    library = compiled(COPY, tmp_path / "copy.so")
    memory = np.random.default_rng(3).integers(1, 256, 2 * 3 * 515 + 14, np.uint8)
    start = -int(memory.ctypes.data) % 16
    for chunk in (0, 3, 4):
        slot = np.full((8, 256 + 16), 0xAA, np.uint8)
        library.copy_three(
            ctypes.c_void_p(int(memory.ctypes.data) + start), chunk, ctypes.c_void_p(slot.ctypes.data)
        )
        there = min(256, 2 * 515 - 256 * chunk)
        for line in range(3):
            shift = 2 * 3 * line  # and so its place: even shifts' lines first, in elements 0, 3, 6
            place, at = (0, 5, 3)[line], start + line * 2 * 515 + 256 * chunk
            assert (slot[place, shift : shift + there] == memory[at : at + there]).all(), (chunk, line)
            assert not slot[place, shift + there : shift + 256].any(), (chunk, line)
        for place in (1, 2, 4, 6, 7):
            assert (slot[place] == 0xAA).all(), (chunk, place)
