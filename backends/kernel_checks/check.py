"""Compiles a sample of every family's legal candidates for an architecture and reports what each kernel takes
and contains: registers, shared memory, spills, occupancy, matrix instructions. Needs compilers but no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, TypeVar

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing, InvalidProblem
from backends.kernel_checks import disassembly
from backends.kernel_checks.candidates import (
    GPU_FAMILIES,
    Candidate,
    CompiledKernel,
    environment_of,
    missing,
    sampled,
    vendors,
)
from backends.kernel_checks.occupancy import Occupancy, occupancy
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
    """The result of compiling a candidate: its resource usage, or the compile error. `matrix_instructions`
    counts them by name; None where no disassembler reads the architecture's code, or, with the reason in
    `note`, this kernel's."""

    candidate: Candidate
    resources: Resources | None
    error: str = ""
    log: str = ""
    matrix_instructions: Mapping[str, int] | None = None
    note: str = ""

    @property
    def occupancy(self) -> Occupancy | None:
        """What a multiprocessor holds of it at a time; None if the registers are unknown."""
        taken, one = self.resources, self.candidate
        if taken is None or taken.registers is None:
            return None
        return occupancy(GPU_TARGETS[one.arch], one.threads, taken.registers, taken.shared_bytes)

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
        one, taken, resident = self.candidate, self.resources, self.occupancy
        return {
            "arch": one.arch,
            "family": one.family,
            "problem": {**problem_to_wire(one.problem), "id": one.problem.id},
            "solution": one.solution.id,
            "parameters": dict(one.solution.parameters),
            "status": "failed" if taken is None else "compiled",
            "threads": one.threads,
            **(dict.fromkeys(_RESOURCES) if taken is None else asdict(taken)),
            "waves_per_simd": None if resident is None else resident.waves,
            "occupancy_limit": None if resident is None else resident.limit,
            "matrix_instructions": self.matrix_instructions,
            "unfit": self.unfit or None,
            "note": self.note or None,
            "error": self.error or None,
            "log": self.log or None,
        }


@dataclass(frozen=True)
class Summary:
    """A family's kernels for an architecture. Registers, shared memory and occupancy are (least, median,
    most), None if no compiler reported them. `spilling` counts kernels that spill; `worst_spill_bytes` is the
    largest spill, and `worst_scratch_bytes` the most scratch memory of a thread. Matrix instructions are the
    names that any kernel has, None if no code was disassembled."""

    arch: str
    family: str
    compiled: int
    failed: int
    unfit: int
    registers: tuple[int, float, int] | None
    shared_bytes: tuple[int, float, int] | None
    spilling: int
    worst_spill_bytes: int | None
    accumulation_registers: tuple[int, float, int] | None = None
    scalar_registers: tuple[int, float, int] | None = None
    worst_scratch_bytes: int | None = None
    waves_per_simd: tuple[float, float, float] | None = None
    matrix_instructions: tuple[str, ...] | None = None


#: Names of the figures that a compiler reports.
_RESOURCES = tuple(field.name for field in fields(Resources))


def plan(arch: str, families: Sequence[str] = (), limit: int = LIMIT) -> Plan:
    """A sample of these families (default: all), at most `limit` candidates, taken round-robin. Raises
    InvalidProblem; CompilerMissing if none of the requested families can be compiled."""
    known_archs([arch])
    _known("family", families, GPU_FAMILIES)
    environment = environment_of(arch)
    reasons: dict[str, str] = {}
    usable: list[str] = []
    for name in dict.fromkeys(families or GPU_FAMILIES):
        why = missing(GPU_FAMILIES[name], environment.vendor, arch)
        if why is None:
            usable.append(name)
        elif families or environment.vendor in vendors(GPU_FAMILIES[name]):
            reasons[name] = why
    if not usable:
        raise CompilerMissing(
            f"nothing can be compiled for {arch}: {'; '.join(dict.fromkeys(reasons.values()))}"
        )
    if limit < len(usable):
        raise InvalidProblem(
            f"limit {limit} is less than a compile for each of {len(usable)} families; "
            "raise it, or name some",
            "limit",
        )
    taken = _take_turns({name: iter(sampled(GPU_FAMILIES[name], arch)) for name in usable}, limit)
    reasons |= dict.fromkeys(
        (name for name, found in taken.items() if not found), "no legal candidate was found"
    )
    notes = [f"{arch}: nothing of {name} is compiled: {why}" for name, why in reasons.items()]
    if (why := disassembly.missing(arch)) is not None:
        notes.append(f"{arch}: matrix instructions are not counted: {why}")
    return Plan(tuple(one for found in taken.values() for one in found), tuple(notes))


def known_archs(given: Sequence[str]) -> None:
    """Raises InvalidProblem if one of them is no architecture of a GPU."""
    _known("arch", given, GPU_TARGETS)


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
            made = candidate.compile(cache)
        except CompileError as error:
            return Checked(candidate, None, str(error), error.log)
        return _disassembled(candidate, made)

    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    try:
        yield from pool.map(one, candidates)
    finally:
        pool.shutdown(cancel_futures=True)


def _disassembled(candidate: Candidate, made: CompiledKernel) -> Checked:
    found, note = None, ""
    try:
        found = disassembly.matrix_instructions(made.binary, made.entry, candidate.arch)
    except CompilerMissing:
        pass  # the plan's notes say why
    except ValueError as error:
        note = f"matrix instructions are not counted: {error}"
    return Checked(candidate, made.resources, matrix_instructions=found, note=note)


def summaries(found: Sequence[Checked]) -> list[Summary]:
    """One summary per family and architecture."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for one in found:
        groups.setdefault((one.candidate.arch, one.candidate.family), []).append(one)
    return [_summary(*of, group) for of, group in groups.items()]


def _summary(arch: str, family: str, found: Sequence[Checked]) -> Summary:
    taken = [one.resources for one in found if one.resources is not None]

    def reported(name: str) -> list[int]:
        values = [getattr(one, name) for one in taken]
        return [value for value in values if value is not None]

    spills = reported("spill_bytes")
    resident = [one.occupancy for one in found]
    counted = [one.matrix_instructions for one in found if one.matrix_instructions is not None]
    return Summary(
        arch, family, len(taken), len(found) - len(taken), sum(bool(one.unfit) for one in found),
        _range(reported("registers")), _range(reported("shared_bytes")),
        sum(size > 0 for size in spills), max(spills, default=None),
        _range(reported("accumulation_registers")), _range(reported("scalar_registers")),
        max(reported("scratch_bytes"), default=None),
        _range([one.waves for one in resident if one is not None]),
        tuple(sorted({name for one in counted for name in one})) if counted else None,
    )  # fmt: skip


Number = TypeVar("Number", int, float)


def _range(values: Sequence[Number]) -> tuple[Number, float, Number] | None:
    return (min(values), median(values), max(values)) if values else None
