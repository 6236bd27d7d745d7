"""cuBLASLt on copies of misaligned operands: tensor cores load 16 bytes at a time, and a leading dimension
that is no multiple of them costs more than copying the operand, which a launch pays too.

n and k stay as they are: aligned leading dimensions are all that the library's kernels ask of the inputs, so
that nothing has to be filled with zeros along k. Of D they ask whole 16 bytes of rows as well: where D is
copied m is rounded up, and the rows added, of whatever lies there, are not copied back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_cubin
from backends.cuda.copies import SOURCE, CopyLaunch, copy_launch
from backends.cuda.cublaslt import CublasLt
from backends.cuda.driver import on_heels
from backends.cuda.library import LibraryFamily
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.problem_rules import MAX_SIZE
from backends.protocol import Kernel, Launch
from backends.solution import Solution

#: Bytes that tensor-core kernels load at once.
ALIGNMENT = 16
#: `pad`: every misaligned operand and what m runs along, or misaligned inputs alone (the copy of D costs more
#: than it may bring), likeliest first.
PADS = ("all", "inputs")
#: Of kernels that care for A and B alone.
FACTORS = "factors"
#: Bytes of a cache line; a copy is by at most one so-manieth larger for its columns to start at them.
_CACHE_LINE, _MOST_EXCESS = 128, 16
#: Buffers start at multiples of this many bytes, as allocations do.
_BUFFER = 256


def misaligned(problem: GemmProblem) -> tuple[str, ...]:
    """Operands of which some column does not start at a multiple of 16 bytes."""
    found = layouts(problem)
    if problem.alignment < ALIGNMENT:
        return tuple(found)
    return tuple(
        name for name in ("a", "b", "c", "d") if name in found and not _aligned(found[name], problem.batch)
    )


def _aligned(layout: Layout, batch: int) -> bool:
    size = layout.dtype.bytes
    return layout.ld * size % ALIGNMENT == 0 and (batch == 1 or layout.stride * size % ALIGNMENT == 0)


def _padded_m(problem: GemmProblem) -> int:
    """m in whole 16 bytes of D, and of A where its rows are m's."""
    sizes = [DTYPES[problem.dtype_d].bytes]
    if problem.trans_a == "N":
        sizes.append(DTYPES[problem.dtype_a].bytes)
    m = _up(problem.m, max(1, ALIGNMENT // min(sizes)))
    return m if m <= MAX_SIZE else problem.m


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _along_m(problem: GemmProblem) -> set[str]:
    """Operands with an element or more for every row of D."""
    found = {"a", "c", "d"}
    if problem.bias_axis == "m":
        found.add("bias")
    if problem.scale_a == "outer":
        found.add("scale_a")
    return found


@lru_cache(maxsize=256)
def copied(problem: GemmProblem, pad: str) -> tuple[str, ...]:
    """The operands that `pad` copies; none where it is no choice for this problem."""
    found = misaligned(problem)
    if pad == "all":
        if "d" not in found or _padded_m(problem) == problem.m:
            return found
        wanted = _along_m(problem).union(found)
        return tuple(name for name in layouts(problem) if name in wanted)
    if pad == FACTORS:
        return tuple(name for name in found if name in "ab") if problem.alignment >= ALIGNMENT else ()
    inputs = tuple(name for name in found if name != "d")
    # With addresses misaligned, D is as well: its copy is what makes the twin.
    useful = pad == "inputs" and inputs != found and problem.alignment >= ALIGNMENT
    return inputs if useful else ()


@lru_cache(maxsize=256)
def padded_twin(problem: GemmProblem, pad: str) -> GemmProblem:
    """The same product on the copies, m rounded up where D is one: leading dimensions of whole cache lines
    where those cost little, else the least aligned ones; batches one after another."""
    changed: dict[str, Any] = {"alignment": max(problem.alignment, ALIGNMENT)}
    names, found = copied(problem, pad), layouts(problem)
    more = 0
    if "d" in names:
        changed["m"] = _padded_m(problem)
        more = changed["m"] - problem.m
    for name in names:
        if name in ("a", "b", "c", "d"):
            layout = found[name]
            in_rows = name in ("c", "d") or (name == "a" and problem.trans_a == "N")
            in_columns = name == "a" and not in_rows
            ld = _padded_ld(layout.rows + more * in_rows, layout.dtype.bytes)
            changed[f"ld{name}"] = ld
            columns = layout.columns + more * in_columns
            changed[f"stride_{name}"] = ld * columns if layout.stride else 0
    return replace(problem, **changed)


def _padded_ld(rows: int, size: int) -> int:
    """Tiles are read in cache lines: where columns start within them, one more of every column's part."""
    least, lines = (_up(rows, max(1, unit // size)) for unit in (ALIGNMENT, _CACHE_LINE))
    return lines if lines * _MOST_EXCESS <= least * (_MOST_EXCESS + 1) else least


class PaddedCublasLt(LibraryFamily):
    """cuBLASLt's candidates for the padded twin of a problem with misaligned operands; copying them there,
    and D back, is part of every launch. Parameters: cuBLASLt's, and pad (all | inputs)."""

    #: Copies of version 1 had the least aligned leading dimensions; those of version 2 took longer.
    name, version = "cublaslt-padded", 3

    def __init__(self, inner: CublasLt | None = None) -> None:
        self._inner = CublasLt() if inner is None else inner

    def unavailable(self, environment: Environment) -> str | None:
        return self._inner.unavailable(environment)

    def supports(self, problem: GemmProblem) -> bool:
        return bool(misaligned(problem)) and self._inner.supports(padded_twin(problem, "all"))

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """None: only the library can tell, on its device (listed)."""
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        if not self.supports(problem):
            return f"no operand of {problem.slug} is misaligned, or cuBLASLt cannot multiply their copies"
        if solution.version != self.version:
            return f"version {solution.version} of {self.name} is another launch; this is {self.version}"
        pad = solution.parameters.get("pad")
        if pad not in PADS or not copied(problem, str(pad)):
            useful = [name for name in PADS if copied(problem, name)]
            return f"pad must be {' or '.join(useful)} for {problem.slug}, not {pad!r}"
        inner = self._unwrapped(problem, solution, str(pad))
        return self._inner.illegal(padded_twin(problem, str(pad)), inner, environment)

    def listed(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The library's candidates for each way of padding in turn."""
        asked = []
        for pad in PADS:
            limit = self._limit(problem, pad, max_workspace_bytes)
            if copied(problem, pad) and limit != -1:
                found = self._inner.listed(padded_twin(problem, pad), device, limit)
                asked.append(map(partial(self._wrapped, problem, pad), found))
        while asked:
            for iterator in list(asked):
                solution = next(iterator, None)
                if solution is None:
                    asked.remove(iterator)
                else:
                    yield solution

    def neighbours(
        self, problem: GemmProblem, solution: Solution, device: Any, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The library's neighbours with the same padding, and the same attributes with the other."""
        own = str(solution.parameters["pad"])
        inner = self._unwrapped(problem, solution, own)
        for pad in PADS:
            limit = self._limit(problem, pad, max_workspace_bytes)
            if not copied(problem, pad) or limit == -1:
                continue
            if pad == own:
                near = self._inner.neighbours(padded_twin(problem, pad), inner, device, limit)
                yield from map(partial(self._wrapped, problem, pad), near)
            elif limit is None or inner.workspace_bytes <= limit:
                yield self._wrapped(problem, pad, inner)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """None: the copying kernel is put into the cache, where the device looks for it."""
        source, defines = copying_source(problem, str(solution.parameters["pad"]))
        compile_cubin(source, environment.arch, cache, defines)
        return None

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any
    ) -> PaddedKernel:
        """Raises IllegalSolution for a way of padding that this problem has no use for."""
        pad = str(solution.parameters.get("pad"))
        if not copied(problem, pad):
            raise IllegalSolution(f"pad {pad!r} copies no operand of {problem.slug}")
        inner = self._unwrapped(problem, solution, pad)
        kernel = self._inner.load(padded_twin(problem, pad), inner, binary, device)
        return PaddedKernel(problem, pad, kernel, device)

    def _limit(self, problem: GemmProblem, pad: str, limit: int | None) -> int | None:
        """What a limit leaves to the library; -1 where the copies alone exceed it."""
        return None if limit is None else max(-1, limit - buffers(problem, pad)[1])

    def _wrapped(self, problem: GemmProblem, pad: str, inner: Solution) -> Solution:
        size = buffers(problem, pad)[1] + inner.workspace_bytes
        parameters = {**inner.parameters, "pad": pad}
        return Solution(self.name, self.version, parameters, inner.build, size, inner.deterministic)

    def _unwrapped(self, problem: GemmProblem, solution: Solution, pad: str) -> Solution:
        parameters = {name: value for name, value in solution.parameters.items() if name != "pad"}
        size = max(0, solution.workspace_bytes - buffers(problem, pad)[1])
        inner = self._inner
        return Solution(inner.name, inner.version, parameters, solution.build, size, solution.deterministic)


@lru_cache(maxsize=256)
def buffers(problem: GemmProblem, pad: str) -> tuple[Mapping[str, int], int]:
    """Where each copy starts in the workspace, and the bytes of all of them."""
    starts, at = {}, 0
    found = layouts(padded_twin(problem, pad))
    for name in copied(problem, pad):
        starts[name] = at
        layout = found[name]
        size = layout.copies * max(layout.stride, layout.ld * layout.columns) * layout.dtype.bytes
        at += _up(size, _BUFFER)
    return starts, at


def copying_source(problem: GemmProblem, pad: str) -> tuple[str, Mapping[str, str]]:
    """The kernel that copies for this padding: its file and its macros."""
    return SOURCE, _defines(problem, copied(problem, pad))


def _defines(problem: GemmProblem, names: Iterable[str]) -> dict[str, str]:
    """Addresses are known to be aligned to the problem's bytes, leading dimensions to an element."""
    found = layouts(problem)
    return {"UNIT": str(min([problem.alignment, *(found[name].dtype.bytes for name in names)]))}


@dataclass(frozen=True)
class _Plan:
    """What launches need but addresses: copies in (`names`, in order) and of D back."""

    names: tuple[str, ...]
    into: CopyLaunch | None
    back: CopyLaunch | None
    defines: Mapping[str, str]


@lru_cache(maxsize=64)
def _plan(problem: GemmProblem, pad: str) -> _Plan:
    own, ours, copies = layouts(problem), layouts(padded_twin(problem, pad)), copied(problem, pad)
    names = tuple(name for name in copies if name != "d")
    into = copy_launch([(own[name], ours[name]) for name in names]) if names else None
    back = copy_launch([(own["d"], ours["d"])], out=True) if "d" in copies else None
    return _Plan(names, into, back, _defines(problem, copies))


class PaddedKernel:
    """A product's kernel between copies."""

    def __init__(self, problem: GemmProblem, pad: str, kernel: Kernel, device: Any) -> None:
        self._kernel, self._device, self._plan = kernel, device, _plan(problem, pad)
        self._starts, self._bytes = buffers(problem, pad)
        self.workspace_bytes = self._bytes + kernel.workspace_bytes
        self._functions = {
            launch.kernel: device.function(SOURCE, launch.kernel, self._plan.defines)
            for launch in (self._plan.into, self._plan.back)
            if launch is not None
        }

    @property
    def partial_sums(self) -> int:
        return self._kernel.partial_sums

    def prepare(self) -> None:
        self._kernel.prepare()

    def bind(self, operands: Operands, workspace: int) -> Launch:
        steps = tuple(step for step in self.steps(operands, workspace).values() if step is not None)

        def launch() -> None:
            for step in steps:
                step()

        return launch

    def steps(self, operands: Operands, workspace: int) -> dict[str, Launch | None]:
        """What a launch consists of, in order: the copies into the workspace, the product, the copy of D
        back; None for what this padding does not need."""
        plan, own = self._plan, operands
        inside = {name: workspace + start for name, start in self._starts.items()}
        at = inside.get
        ours = Operands(
            at("a", own.a), at("b", own.b), at("c", own.c), at("d", own.d), at("bias", own.bias),
            own.alpha, own.beta,
            at("scale_a", own.scale_a), at("scale_b", own.scale_b), at("scale_d", own.scale_d),
        )  # fmt: skip
        return {
            "into": self._copying(plan.into, [(getattr(own, name), inside[name]) for name in plan.names]),
            "product": self._kernel.bind(ours, workspace + self._bytes),
            "back": self._copying(plan.back, [(ours.d, own.d)]),
        }

    def _copying(self, launch: CopyLaunch | None, addresses: Iterable[tuple[int, int]]) -> Launch | None:
        if launch is None:
            return None
        function = self._functions[launch.kernel]
        arguments = function.pack(launch.at(addresses))
        return on_heels(function, self._device, *launch.grid, arguments)  # pad.cu waits itself
