"""Compiles a sample of every family's legal candidates for an architecture and reports the resource usage of
each kernel: registers, shared memory, spills. Needs compilers but no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing, InvalidProblem
from backends.kernel_checks.candidates import (
    GPU_FAMILIES,
    Candidate,
    environment_of,
    missing,
    sampled,
    vendors,
)
from backends.resources import Resources
from backends.wire import problem_to_wire

#: Default limit on the number of candidates compiled for an architecture.
LIMIT = 100


@dataclass(frozen=True)
class Plan:
    """The candidates to compile, family by family, and notes on why some families have none."""

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """The result of compiling a candidate: its resource usage, or the compile error."""

    candidate: Candidate
    resources: Resources | None
    error: str = ""
    log: str = ""

    @property
    def unfit(self) -> str:
        """Why no device of the architecture could launch the compiled kernel; "" if one could."""
        taken, one = self.resources, self.candidate
        arch = GPU_TARGETS[one.arch]
        if taken is None:
            return ""
        if taken.shared_bytes > arch.block_shared_bytes:
            return (
                f"it takes {taken.shared_bytes} bytes of shared memory; a block has {arch.block_shared_bytes}"
            )
        granule = arch.register_granule
        used = -(-(taken.registers or 0) // granule) * granule * one.threads
        if used > arch.unit_registers:
            return (
                f"its {one.threads} threads take {used} registers; a multiprocessor has {arch.unit_registers}"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        one, taken = self.candidate, self.resources
        return {
            "arch": one.arch,
            "family": one.family,
            "problem": {**problem_to_wire(one.problem), "id": one.problem.id},
            "solution": one.solution.id,
            "parameters": dict(one.solution.parameters),
            "status": "failed" if taken is None else "compiled",
            "threads": one.threads,
            "registers": None if taken is None else taken.registers,
            "shared_bytes": None if taken is None else taken.shared_bytes,
            "spill_bytes": None if taken is None else taken.spill_bytes,
            "unfit": self.unfit or None,
            "error": self.error or None,
            "log": self.log or None,
        }


@dataclass(frozen=True)
class Summary:
    """A family's kernels for an architecture. Registers and shared memory are (least, median, most), None if
    no compiler reported them. `spilling` counts kernels that spill; `worst_spill_bytes` is the largest
    spill."""

    arch: str
    family: str
    compiled: int
    failed: int
    unfit: int
    registers: tuple[int, float, int] | None
    shared_bytes: tuple[int, float, int] | None
    spilling: int
    worst_spill_bytes: int | None


def plan(arch: str, families: Sequence[str] = (), limit: int = LIMIT) -> Plan:
    """A sample of these families (default: all), at most `limit` candidates, taken round-robin. Raises
    InvalidProblem; CompilerMissing if none of the requested families can be compiled."""
    _known("arch", [arch], GPU_TARGETS)
    _known("family", families, GPU_FAMILIES)
    environment = environment_of(arch)
    reasons: dict[str, str] = {}
    pools = {}
    for name in dict.fromkeys(families or GPU_FAMILIES):
        why = missing(GPU_FAMILIES[name], environment.vendor, arch)
        if why is None:
            pools[name] = sampled(GPU_FAMILIES[name], environment)
        elif families or environment.vendor in vendors(GPU_FAMILIES[name]):
            reasons[name] = why
    if not pools:
        raise CompilerMissing(
            f"nothing can be compiled for {arch}: {'; '.join(dict.fromkeys(reasons.values()))}"
        )
    if limit < len(pools):
        raise InvalidProblem(
            f"limit {limit} is less than a compile for each of {len(pools)} families; raise it, or name some",
            "limit",
        )
    taken = _take_turns(pools, limit)
    reasons |= dict.fromkeys(
        (name for name, found in taken.items() if not found), "no legal candidate was found"
    )
    notes = tuple(f"{arch}: nothing of {name} is compiled: {why}" for name, why in reasons.items())
    return Plan(tuple(one for found in taken.values() for one in found), notes)


def _known(field: str, given: Sequence[str], known: Mapping[str, object]) -> None:
    for name in given:
        if name not in known:
            raise InvalidProblem(f"{field} {name[:80]!r} is unknown; known: {', '.join(known)}", field)


def _take_turns(pools: Mapping[str, Iterator[Candidate]], limit: int) -> dict[str, list[Candidate]]:
    """Takes candidates round-robin from the pools, `limit` in total."""
    taken: dict[str, list[Candidate]] = {name: [] for name in pools}
    left = dict(pools)
    while left:
        for name in list(left):
            if sum(map(len, taken.values())) == limit:
                return taken
            found = next(left[name], None)
            if found is None:
                del left[name]
            else:
                taken[name].append(found)
    return taken


def check(
    candidates: Sequence[Candidate], cache: BinaryCache, threads: int | None = None
) -> Iterator[Checked]:
    """Compiles the candidates on `threads` threads (default: one per processor of this process) and yields
    the results in order. Raises StorageError if the cache cannot be written."""

    def one(candidate: Candidate) -> Checked:
        try:
            return Checked(candidate, candidate.compile(cache))
        except CompileError as error:
            return Checked(candidate, None, str(error), error.log)

    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    try:
        yield from pool.map(one, candidates)
    finally:
        pool.shutdown(cancel_futures=True)


def summaries(found: Sequence[Checked]) -> list[Summary]:
    """One summary per family and architecture."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for one in found:
        groups.setdefault((one.candidate.arch, one.candidate.family), []).append(one)
    return [_summary(*of, group) for of, group in groups.items()]


def _summary(arch: str, family: str, found: Sequence[Checked]) -> Summary:
    taken = [one.resources for one in found if one.resources is not None]
    spills = [one.spill_bytes for one in taken if one.spill_bytes is not None]
    return Summary(
        arch, family, len(taken), len(found) - len(taken), sum(bool(one.unfit) for one in found),
        _range([one.registers for one in taken if one.registers is not None]),
        _range([one.shared_bytes for one in taken]),
        sum(size > 0 for size in spills), max(spills, default=None),
    )  # fmt: skip


def _range(values: Sequence[int]) -> tuple[int, float, int] | None:
    return (min(values), median(values), max(values)) if values else None
