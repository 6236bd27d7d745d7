"""Kernels on the host whose every load must lie in an operand: what is wrong of them, mistakes planted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from backends.errors import LaunchError
from backends.kernels.family import KernelFamily
from backends.kernels.headers import ROOT as HEADERS
from backends.problem import GemmProblem
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import (
    HostDevice,
    HostKernel,
    built,
    compiled,
    copied_headers,
    source,
)
from tests.backends.kernels.samples import SM_90
from tuners.inputs import Case
from tuners.verify import Verifier

Values = Mapping[str, Parameter]
Found = Sequence[tuple[GemmProblem, Values]]

#: What loads as it is on a GPU: every byte of it lies in an operand.
CHECKED = """
#include "device/mma.h"
#include "device/operand_tile.h"
namespace gemmtune {
template <typename READ>
Words checked(bool wanted, const void* p, READ read) {
    const char* const at = static_cast<const char*>(p);
    bool within = !wanted;
    for (const auto& one : host::machine.operands) within |= one.first <= at && at + 16 <= one.end;
    if (!within) host::fail("a load that leaves its operand");
    return read();
}
inline Words checked_stream(const void* p, bool there = true) {
    return checked(there, p, [=] { return stream16(p, there); });
}
inline Words checked_read(const void* p) { return checked(true, p, [=] { return read16(p); }); }
inline Words checked_read_if(bool wanted, const void* p) {
    return checked(wanted, p, [=] { return read16_if(wanted, p); });
}
inline void checked_copy(bool wanted, void* to, const void* p) {
    checked(wanted, p, [=] { return copy_async16_if(wanted, to, p), Words{}; });
}
}  // namespace gemmtune
#define stream16_part checked_stream
#define read16 checked_read
#define read16_if checked_read_if
#define copy_async16_if checked_copy
"""
#: How many ways in one bank lanes that read at once have met since this was last asked.
WAYS = """
extern "C" int ways() {
    const int found = gemmtune::host::machine.ways;
    gemmtune::host::machine.ways = 0;
    return found;
}
"""


def findings(family: KernelFamily, found: Found, folder: Path) -> list[str]:
    """What is wrong of each, its warps in order and in reverse. What lies between lines, before operands and
    behind them is NaN."""
    return list(_findings(family, found, folder, HEADERS))


def _findings(family: KernelFamily, found: Found, folder: Path, headers: Path) -> Iterator[str]:
    configurations = [family.config(problem, values, SM_90) for problem, values in found]
    # One copy of each text, whatever the number of problems.
    single = {one.unit: one for one in configurations}
    library = compiled(CHECKED + source(list(single.values())), folder / "kernels.so", 32, headers)
    kernels = dict(zip(single, built(library, list(single.values())), strict=True))
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for (problem, values), one in zip(found, configurations, strict=True):
        kernel = replace(kernels[one.unit], found=one)
        for other_way in (False, True):
            case = Case(problem, 3, "normal", "exact")
            wrong = verifier.check(HostKernel(kernel, other_way), case, runs=1).wrong
            if wrong:
                yield f"{problem.slug} {dict(values)} {other_way}: {wrong}"


def with_a_mistake(
    family: KernelFamily, found: Found, folder: Path, own: Sequence[str], text: str, wrong: str
) -> list[str]:
    """The first that is wrong where the one place of the family's own headers that has `text` has `wrong`; or
    what the launch itself finds."""
    copied_headers(folder)
    good = {name: (HEADERS / name).read_text() for name in own}
    assert sum(one.count(text) for one in good.values()) == 1
    for name, one in good.items():
        (folder / name).write_text(one.replace(text, wrong))
    try:
        return list(islice(_findings(family, found, folder, folder), 1))
    except LaunchError as error:
        return [str(error)]
