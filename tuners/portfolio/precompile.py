"""Fills the compile cache with a portfolio's members, without a device.

A member is compiled for one problem of each layout that it serves, and for the twins on which a tuning
verifies it: the text of a kernel has its types, layout and epilogue and no sizes, so that these binaries
serve every problem of the kind. Families for few columns have the number of columns in the text: a member is
compiled for each that it serves. A member for experts is compiled with swiglu, too, which is another kernel
with the same parameters: the first product of experts has it, and searches of it begin with these members.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from backends.cache import BinaryCache, CompiledOnly
from backends.environment import Environment
from backends.errors import CompileError, CompilerMissing, NotCompiled
from backends.grouping import with_swiglu
from backends.problem import GemmProblem
from backends.protocol import Backend, Family
from backends.solution import Solution
from tuners.inputs import Case, applicable, screening_cases
from tuners.niceness import be_nice
from tuners.portfolio.values import Group, Portfolio, target_of

#: The most columns that are in the text of a kernel.
FEW_COLUMNS = 64


@dataclass(frozen=True)
class Item:
    """A member to be compiled for a problem and its twins."""

    environment: Environment
    family: Family
    problem: GemmProblem
    solution: Solution


@dataclass(frozen=True)
class Compiled:
    """What became of an item: compiled now, there already (`cached`), or failed with this `error`."""

    item: Item
    cached: bool = False
    error: str | None = None


def groups_for(portfolio: Portfolio, environment: Environment) -> list[Group]:
    """The groups whose kernels run on a device."""
    key = (environment.vendor, target_of(environment))
    return [group for group in portfolio.groups if (group.vendor, group.target) == key]


def plan(groups: Sequence[Group], backend: Backend, environment: Environment) -> tuple[list[Item], list[str]]:
    """The members of compiled families, the most useful of each group first and the groups in turns, and
    notes on what is left out: families that cannot be compiled here, and members that are illegal."""
    families = backend.families()
    items: list[tuple[int, Item]] = []
    notes: dict[str, None] = {}
    for group in groups:
        for place, member in enumerate(group.members):
            family = families[member.solution.family]
            if not family.compiles:
                continue
            if (why := family.unavailable(environment)) is not None:
                notes[f"{family.name}: {why}"] = None
                continue
            gated = [made for one in member.problems if (made := with_swiglu(one)) is not None]
            layouts = {_layout(one): one for one in (*member.problems, *gated)}
            for problem in layouts.values():
                rule = family.illegal(problem, member.solution, environment)
                if rule is None:
                    items.append((place, Item(environment, family, problem, member.solution)))
                else:
                    which = f"{member.solution.id} with swiglu" if problem in gated else member.solution.id
                    notes[f"{which} is left out: {rule}"] = None
    items.sort(key=lambda one: one[0])
    return [item for _, item in items], list(notes)


def precompile(
    items: Sequence[Item],
    cache: BinaryCache,
    jobs: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    pause: Callable[[], bool] = lambda: False,
    turn: AbstractContextManager[Any] | None = None,
) -> Iterator[Compiled]:
    """Compiles the items, `jobs` at a time (None: one a processor), and yields each as it ends. What is in
    the cache is not compiled again, so that a stopped run is taken up by another. It ends early once stop(),
    and begins nothing new during pause(), not even a lookup; compilers in progress end first. Each compiler
    holds `turn` while it runs. The compilers' threads have a low priority."""
    kept, waiting = CompiledOnly(cache.root), []
    for item in items:
        while pause() and not stop():
            time.sleep(_PAUSE_SECONDS)
        if stop():
            return
        try:
            _compile(item, kept)
            yield Compiled(item, cached=True)
        except NotCompiled:
            waiting.append(item)
    most = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(most, initializer=be_nice) as pool:
        running: dict[Future[None], Item] = {}
        while (waiting and not stop()) or running:
            while waiting and len(running) < most and not pause() and not stop():
                item = waiting.pop(0)
                running[pool.submit(_in_turn, turn or nullcontext(), item, cache)] = item
            if not running:
                time.sleep(_PAUSE_SECONDS)
                continue
            done, _ = wait(running, _PAUSE_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                yield _ended(running.pop(future), future)


def _layout(problem: GemmProblem) -> tuple[str, str, int, int, str, int]:
    """What the text of a member's kernel may depend on."""
    p = problem
    columns = min(p.m, p.n)  # either operand may be the streamed one
    few = columns if columns <= FEW_COLUMNS else 0
    return p.trans_a, p.trans_b, p.alignment, few, p.epilogue, p.groups


#: How often stop() and pause() are asked.
_PAUSE_SECONDS = 0.2


def _ended(item: Item, future: Future[None]) -> Compiled:
    try:
        future.result()
    except (CompileError, CompilerMissing) as error:  # one member less; StorageError ends the run
        return Compiled(item, error=str(error))
    return Compiled(item)


def _in_turn(turn: AbstractContextManager[Any], item: Item, cache: BinaryCache) -> None:
    with turn:
        _compile(item, cache)


def _compile(item: Item, cache: BinaryCache) -> None:
    """Compiles a member for its problem and the twins. Raises NotCompiled if the cache does not compile."""
    family, solution, where = item.family, item.solution, item.environment

    def legal(case: Case) -> bool:
        twin = case.problem
        return family.supports(twin) and family.illegal(twin, solution, where) is None

    cases: Mapping[GemmProblem, None] = dict.fromkeys(
        case.problem for case in applicable(screening_cases(item.problem, 0, every=True), legal)
    )
    for problem in cases:
        family.compile(problem, solution, where, cache)
