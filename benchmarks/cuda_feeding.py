"""What feeding Hopper's tensor cores takes: tile-wgmma taken apart.

For every product of a list that the family takes, and every candidate that it lists: the kernel as it is, and with
lines of its header changed, timed as candidates are, in graphs over cold operands. What changed kernels store is
wrong, and nobody looks at it. Without multiplications tiles arrive in shared memory as in the whole kernel, in the
same registers and stages, each asked for as soon as the one before it in its buffer has come, and D is stored: what a
product whose tiles come so would take if multiplying took nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_unit
from backends.environment import Environment
from backends.errors import ContextLost, IllegalSolution, LaunchError
from backends.kernels.families import FAMILIES, HEADERS
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from benchmarks.cuda_floor import seconds
from benchmarks.cuda_reading import AGAIN, FIRST, LAST
from benchmarks.cuda_tuned import kernel_cache, say
from tuners.ceilings import Ceilings
from tuners.measure import OperandSets
from tuners.policy import MeasurementPolicy

FAMILY = "tile-wgmma"
#: At most so many of what the family lists are tried.
MOST = 96


@dataclass(frozen=True)
class Change:
    """A text that the family's header has once, and what stands there instead."""

    text: str
    instead: str


# What is never taken stays in the program: the sums keep their registers, and a multiprocessor has as many blocks
# as of the whole kernel. (No compiler knows that k is not as long.) Without products there is nothing to end or
# to wait for: an end of none is a small product of its own.
_NO_PRODUCTS = (
    Change(
        "            begin_products();\n",
        "            if (tiles == 1 << 20) {\n            begin_products();\n",
    ),
    Change("            wait_products<1>();", "            wait_products<1>(); }"),
    # Nor has a buffer to be kept until the next tile has come.
    Change(
        "if (tile > 0 && tile + STAGES <= tiles) release(&empty[last]);",
        "if (tile + STAGES < tiles) release(&empty[ring.stage]);",
    ),
)
_OWN_SUMS = (
    Change("        if (SPLITS == 1) return *at;\n", "        return *at;\n"),
    Change(
        "        if (SPLITS == 1) {\n            const Words words",
        "        if (true) {\n            const Words words",
    ),
    # Nobody reads another's, and so nobody waits for another.
    Change(
        "        if (SPLITS > 1) cluster_barrier<true>();\n        else block_barrier();\n",
        "        block_barrier();\n",
    ),
    Change(
        "        if (SPLITS > 1) cluster_barrier<false>();", "        if (false) cluster_barrier<false>();"
    ),
)
# (Nor does it know that there are rows.)
_NO_TILES = Change(
    "tiles = static_cast<int>(least(from + each, steps) - from);",
    "tiles = args.m < 0 ? static_cast<int>(least(from + each, steps) - from) : 0;",
)
#: Variant -> what is changed for it.
VARIANTS: Mapping[str, tuple[Change, ...]] = {
    "whole": (),
    "feeding and sums": _NO_PRODUCTS,
    "feeding": (*_NO_PRODUCTS, *_OWN_SUMS),
    "sums and storing": (_NO_TILES,),
}


def changed(text: str, changes: Iterable[Change]) -> str:
    """The header's text with the changes. Raises ValueError for one whose text it does not have once."""
    for one in changes:
        if (count := text.count(one.text)) != 1:
            raise ValueError(f"the header has {count} times, not once: {one.text.strip()}")
        text = text.replace(one.text, one.instead)
    return text


def headers(folder: Path) -> dict[str, Path]:
    """Variant -> its folder of headers, made within `folder`. Raises ValueError as changed()."""
    own, found = FAMILIES[FAMILY].header, {}
    for number, (what, changes) in enumerate(VARIANTS.items()):
        found[what] = folder / str(number)
        found[what].mkdir(parents=True)
        for path in sorted(HEADERS.glob("*.h")):
            text = path.read_text()
            (found[what] / path.name).write_text(changed(text, changes) if path.name == own else text)
    return found


@dataclass(frozen=True)
class Compiled:
    """(Variant, solution's id) -> its binary, of one product's candidates."""

    solutions: Sequence[Solution]
    binaries: Mapping[tuple[str, str], Path]


def compiled(
    problem: GemmProblem, environment: Environment, folders: Mapping[str, Path], cache: BinaryCache
) -> Compiled:
    """The likeliest candidates in every variant, on as many threads as this process has processors. Raises
    CompileError, CompilerMissing."""
    family = FAMILIES[FAMILY]
    solutions = list(islice(family.solutions(problem, environment), MOST))

    def one(asked: tuple[str, Solution]) -> tuple[tuple[str, str], Path]:
        what, solution = asked
        found = family.configuration(problem, solution.parameters)
        path = compile_unit(found.unit, folders[what], found.target(environment.arch), cache)
        return (what, solution.id), path

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return Compiled(solutions, dict(pool.map(one, product(folders, solutions))))


def feeding(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """The family's variants over named products (those that it does not take are left out)."""
    environment = found.environment
    with tempfile.TemporaryDirectory() as folder:
        folders = headers(Path(folder, "headers"))
        # A cache of its own: what is changed is never found as a candidate.
        own = BinaryCache(Path(folder, "binaries"))
        made = [(name, p, compiled(p, environment, folders, own)) for name, p in shapes]
        device = backend(found.backend).open(found.index, kernel_cache())
        rows = [_one(name, p, each, device, found) for name, p, each in made if each.solutions]
    return {
        "what": f"the least time of {FAMILY}'s candidates, whole and without some of what they do, beside the default's",
        "rows": rows,
    }  # fmt: skip


def _one(name: str, problem: GemmProblem, made: Compiled, device: Any, found: FoundDevice) -> dict[str, Any]:
    sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor), 0)

    def timed(solution: Solution, binary: Path | None, samples: int) -> float:
        kernel = device.load(problem, solution, binary)
        space = device.allocate(max(kernel.workspace_bytes, 1))
        try:
            launches: list[Launch | None] = [kernel.bind(operands, space.address) for operands in sets.sets]
            return seconds(device, launches, samples)
        finally:
            space.free()

    baseline = backend(found.backend).baselines(problem, found.environment)[0]
    theirs = timed(baseline.solution, None, LAST)
    variants = []
    for what in VARIANTS:

        def of_variant(solution: Solution, samples: int, what: str = what) -> float:
            return timed(solution, made.binaries[what, solution.id], samples)

        least, solution = fastest(of_variant, made.solutions)
        variants.append({"what": what, "us": least * 1e6, "parameters": dict(solution.parameters)})
        say(f"{name}, {what}: {least * 1e6:.2f} us, the default {theirs * 1e6:.2f}, by {solution.parameters}")
    sets.free()
    return {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": baseline.name,
        "default_us": theirs * 1e6, "variants": variants, "tried": len(made.solutions),
    }  # fmt: skip


def fastest(timed: Callable[[Solution, int], float], solutions: Iterable[Solution]) -> tuple[float, Solution]:
    """Seconds and the solution, of the fastest by few samples the one that is by more. What a launch refuses is none
    of them. Raises LaunchError where that is all, and ContextLost."""
    first = []
    for solution in solutions:
        try:
            first.append((timed(solution, FIRST), solution))
        except ContextLost:
            raise
        except (IllegalSolution, LaunchError) as error:  # as in a search
            say(f"{solution.id} is left out: {error}")
    if not first:
        raise LaunchError("no candidate could be launched")
    first.sort(key=lambda one: one[0])
    return min(((timed(solution, LAST), solution) for _, solution in first[:AGAIN]), key=lambda one: one[0])
