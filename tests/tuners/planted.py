"""A CPU backend with planted candidates: a right kernel, and kernels that lie, hang, crash or trespass.

Each is the packed kernel with one sabotage around it, so that it would win if it were not caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backends.cpu.backend import CpuBackend
from backends.cpu.families import PackedFamily
from backends.environment import Environment
from backends.family_space import FamilySpace, ListedSpace
from backends.problem import GemmProblem
from backends.protocol import Family
from backends.solution import Parameter, Solution

#: kind -> C++ statements before and after the real run; `d` is the fp16 output as bits (D is uint16_t).
SABOTAGE: Mapping[str, tuple[str, str]] = {
    "right": ("", ""),
    "one_element": ("", "d[args->m / 2 + args->n / 2 * args->ldd] ^= 0x2000;"),
    "last_row": ("", "for (int64_t j = 0; j < args->n; ++j) d[args->m - 1 + j * args->ldd] = 0;"),
    "ignores_beta": ("GemmArgs copy = *args; copy.beta = 0; args = &copy;", ""),
    "hangs": ("for (;;) sleep(1);", ""),
    "crashes": ("*(volatile int *)8 = 1;", ""),
    "aborts": ('fputs("planted: heap is corrupt\\n", stderr); abort();', ""),
    "writes_before": ("", "d[-1] = 0x3c00;"),
    "writes_after": ("", "d[(args->n - 1) * args->ldd + args->m] = 0x3c00;"),
    "reads_workspace": (
        "D stale; memcpy(&stale, (char *)args->workspace + args->workspace_bytes - 2, 2);",
        "d[0] ^= stale;",
    ),
    "reads_output": ("D stale = d[0];", "d[0] ^= stale & 0x4000;"),
    "changes_input": ("", "memset((void *)args->a, 1, 2);"),
    "refuses": ("return 5;", ""),
    "right_once": ("static int calls = 0;", "if (++calls % 2 == 0) d[0] ^= 0x4000;"),
}


class PlantedFamily(PackedFamily):
    """Parameter `kind` picks the sabotage."""

    name = "planted"
    texts = ("dot", "kind")

    def _ordered(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        first = next(iter(super()._ordered(problem, environment)))
        for kind in SABOTAGE:
            yield {**first, "kind": kind}

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """The listed ones alone: a search does not look for more."""
        return ListedSpace(self.name, self.solutions(problem, environment))

    def unit(self, problem: GemmProblem, solution: Solution) -> str:
        before, after = SABOTAGE[str(solution.parameters["kind"])]
        real = super().unit(problem, solution).replace("planted", "packed").replace("PLANTED", "PACKED")
        return f"""#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#define gemmtune_run real_run
{real}
#undef gemmtune_run
extern "C" int32_t gemmtune_run(const GemmArgs *args) {{
  using D = uint16_t;
  D *d = static_cast<D *>(args->d);
  {before}
  int32_t status = real_run(args);
  {after}
  return (void)d, status;
}}
"""


class PlantedBackend(CpuBackend):
    """The CPU with the planted family first."""

    def families(self) -> Mapping[str, Family]:
        planted = PlantedFamily()
        return {planted.name: planted, **super().families()}
