"""Portfolios built from the database, and compiled for architectures or for a worker's device."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from backends.archs import CPU_ISAS, GPU_TARGETS
from backends.cache import BinaryCache
from backends.cpu.driver import isa_of
from backends.environment import Environment
from backends.errors import GemmtuneError, InvalidProblem, UnknownDevice
from backends.kernel_checks.candidates import environment_of
from backends.problem import GemmProblem
from backends.registry import backend, devices
from backends.solution import Solution
from backends.toolchains.registry import TOOLCHAINS
from db import outcomes
from tuners.budget import StopReason
from tuners.portfolio import file
from tuners.portfolio.cover import WITHIN, build
from tuners.portfolio.precompile import Item, groups_for, plan, precompile
from tuners.portfolio.values import Group, Observed, Portfolio, target_of
from tuners.session_store import Result

_log = logging.getLogger(__name__)
#: Searches whose candidates wait to be compiled, at most, and how often a busy worker is asked again.
_MOST_SEARCHES, _IDLE_SECONDS = 32, 0.2


def from_database(connection: Connection, class_ids: Sequence[str], within: float = WITHIN) -> list[Group]:
    """The cover of what the classes' sessions stored, each candidate's final or screening time. The sessions
    of a class are one source: each timed some of a problem's candidates, and one that was restricted to slow
    ones must not demand a member."""
    found: list[Group] = []
    for class_id in class_ids:
        observed = [
            Observed(one.problem, one.environment, one.seconds)
            for one in outcomes.observed(connection, class_id)
        ]
        source = f"sessions of {len({one.problem for one in observed})} problems on {class_id}"
        found += build(observed, [source], file.compiles, within)
    return found


def merged(kept: Sequence[Group], made: Sequence[Group]) -> list[Group]:
    """The groups that were made, and those of other targets or types that were there before."""
    known = {(group.vendor, group.target, group.types) for group in made}
    return [*made, *(g for g in kept if (g.vendor, g.target, g.types) not in known)]


def environments(archs: Sequence[str]) -> list[Environment]:
    """An environment to compile in for each architecture; without any, those of this machine's devices.
    Raises InvalidProblem for an unknown architecture, UnknownDevice where there is no device."""
    for arch in archs:
        if arch not in GPU_TARGETS and arch != "cpu" and isa_of(arch)[0] is None:
            known = ", ".join(["cpu", *GPU_TARGETS, *(isa.name for isa in CPU_ISAS)])
            raise InvalidProblem(f"architecture {arch!r} is unknown; known: {known}", "arch")
    found, notes = (
        devices("cpu" if list(archs) == ["cpu"] else None) if "cpu" in archs or not archs else ([], [])
    )
    if not archs:
        if not found:
            raise UnknownDevice("any", [], notes)
        here = {target_of(one.environment): one.environment for one in found}
        return list(here.values())
    cpus = [one.environment for one in found if one.environment.vendor == "cpu"]
    return [*(_of_arch(arch) for arch in dict.fromkeys(archs) if arch != "cpu"), *cpus[:1]]


def _of_arch(arch: str) -> Environment:
    """A placeholder device's environment with the compilers that are installed here."""
    isa, _ = isa_of(arch)
    if isa is not None:
        units = os.cpu_count() or 1
        return Environment("cpu", isa.machine, arch, units, 0, "none", partition=arch)
    environment = environment_of(arch)
    toolchain = TOOLCHAINS[environment.vendor]
    build_ = toolchain.build(arch)
    compilers = {} if build_ is None else {toolchain.name: build_}
    return replace(environment, libraries={**environment.libraries, **compilers})


def items_for(portfolio: Portfolio, where: Sequence[Environment]) -> tuple[list[Item], list[str]]:
    """What is to be compiled for these devices, and notes."""
    plans = []
    for environment in where:
        groups = groups_for(portfolio, environment)
        made = plan(groups, backend(environment.vendor), environment)
        if not groups:
            made[1].append(_no_members(portfolio, environment))
        plans.append(made)
    return [item for items, _ in plans for item in items], list(chain(*(notes for _, notes in plans)))


def _no_members(portfolio: Portfolio, environment: Environment) -> str:
    # A CPU could run the members of a lower level, which are legal on it. Their register tiles are those of
    # narrower vectors, and its own families' first candidates are faster.
    vendor = environment.vendor
    there = sorted({group.target for group in portfolio.groups if group.vendor == vendor})
    has = f"its {vendor} members are for {', '.join(there)}" if there else f"it has none for {vendor} devices"
    return (
        f"the portfolio has no members for {target_of(environment)}; {has}, and what is fast on one target "
        "is not on another. Tune problems on such a device, make a portfolio of what was measured (gemmtune "
        "portfolio build --output FILE), and give it with --file FILE, or to workers with "
        "GEMMTUNE_PORTFOLIO=FILE"
    )


class Warming:
    """Compiles a portfolio (that of `path`, else the shipped one) for a worker's device in a thread, one
    kernel at a time, while the worker is idle; then the candidates that searches ended without (add), so that
    the next tuning of their problems finds them compiled. If the device is the host, a job that begins waits
    for the compiler in progress, which would disturb its measurements; else it runs beside it."""

    def __init__(
        self,
        environment: Environment,
        cache: BinaryCache,
        busy: Callable[[], bool],
        path: Path | None = None,
    ) -> None:
        self._path = path
        self._environment, self._cache, self._busy = environment, cache, busy
        self._turn, self._stop, self._more = threading.Lock(), threading.Event(), threading.Event()
        #: What each search ended without, the newest last. Nobody takes it while the worker is never idle.
        self._added: deque[list[tuple[GemmProblem, Solution]]] = deque(maxlen=_MOST_SEARCHES)
        self._host = not backend(environment.vendor).traits.compiles_beside
        self._thread = threading.Thread(target=self._run, name="portfolio", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Begins no further kernel."""
        self._stop.set()
        self._more.set()

    def add(self, candidates: Iterable[tuple[GemmProblem, Solution]]) -> None:
        """The candidates that a search ended without, the likeliest first, and their problem: they are
        compiled after the portfolio, those of the newest search first. At most the newest 32 searches'
        wait."""
        self._added.append(list(candidates))
        self._more.set()

    def after(self, result: Result | None, candidates: Sequence[tuple[GemmProblem, Solution]]) -> None:
        """The candidates that a session's search ended without: they are compiled only if it ended because
        its compilers were too slow."""
        ended = None if result is None else result.counts.get("search_ended")
        if candidates and ended == StopReason.COMPILERS.value:
            self.add(candidates)

    def job(self) -> AbstractContextManager[Any]:
        """What a job holds while it measures."""
        return self._turn if self._host else nullcontext()

    def _run(self) -> None:
        """A portfolio that cannot be read or compiled is logged: tunings run without it."""
        try:
            items, _ = items_for(file.chosen(self._path), [self._environment])
            self._compile(items, "portfolio", logging.WARNING)
        except GemmtuneError as error:
            _log.warning("the portfolio is not compiled: %s", error)
        while not self._stop.is_set():
            self._more.wait()
            self._more.clear()
            while self._added and not self._stop.is_set():
                if self._busy():
                    self._stop.wait(_IDLE_SECONDS)
                    continue
                try:
                    # That a candidate does not compile is an outcome of its problem's next tuning.
                    items = self._legal(self._added.pop())
                    self._compile(items, "candidates that a search ended without", logging.DEBUG)
                except Exception:  # the worker goes on, and so do the candidates of other searches
                    _log.exception("the candidates that a search ended without are not compiled")

    def _legal(self, candidates: Iterable[tuple[GemmProblem, Solution]]) -> list[Item]:
        families, here = backend(self._environment.vendor).families(), self._environment
        items = (Item(here, families[one.family], problem, one) for problem, one in candidates)
        return [one for one in items if one.family.illegal(one.problem, one.solution, here) is None]

    def _compile(self, items: Sequence[Item], what: str, level: int) -> None:
        """Compiles what is not in the cache. Failures of single kernels are logged at `level`."""
        made = failed = 0
        for one in precompile(items, self._cache, 1, self._stop.is_set, self._busy, self._turn):
            if one.error is not None:
                _log.log(level, "%s is not compiled: %s", one.item.solution.id, one.error)
            failed += one.error is not None
            made += one.error is None and not one.cached
        if made or failed:
            _log.info("%s: %d kernels are compiled, %d failed", what, made, failed)
