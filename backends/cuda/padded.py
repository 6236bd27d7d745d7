"""cuBLASLt on copies of misaligned operands: tensor cores load 16 bytes at a time, and a leading dimension
that is no multiple of them costs more than copying the operand, which a launch pays too.

n and k stay as they are: aligned leading dimensions are all that the library's kernels ask of the inputs, so
that nothing has to be filled with zeros along k. Of D they ask whole 16 bytes of rows as well: where D is
copied m is rounded up, and the rows added, of whatever lies there, are not copied back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_cubin
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
_SOURCE, _INTO, _OUT = "pad.cu", "pad", "unpad"
_THREADS, _IN_FLIGHT, _MOST_COPIES = 256, 4, 8
#: Blocks that a large GPU runs at once; and the most of a copy, whose threads then loop.
_ENOUGH_BLOCKS, _MOST_BLOCKS = 264, 2**26
#: Chunks of a line that a warp writes; lines of this many chunks are shared by whole blocks.
_WARP, _LONG = 32, 2**13
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

    #: Copies of version 1 had the least aligned leading dimensions.
    name, version = "cublaslt-padded", 2

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
    return _SOURCE, _defines(problem, copied(problem, pad))


def _defines(problem: GemmProblem, names: Iterable[str]) -> dict[str, str]:
    """Addresses are known to be aligned to the problem's bytes, leading dimensions to an element."""
    found = layouts(problem)
    return {"UNIT": str(min([problem.alignment, *(found[name].dtype.bytes for name in names)]))}


class _Copy(ctypes.Structure):
    """kernels/pad.cu: Copy."""

    _fields_ = (
        ("source", ctypes.c_uint64), ("target", ctypes.c_uint64), ("source_bytes", ctypes.c_int64),
        ("source_pitch", ctypes.c_int64), ("target_pitch", ctypes.c_int64),
        ("source_stride", ctypes.c_int64), ("target_stride", ctypes.c_int64),
        ("width", ctypes.c_int64), ("lines", ctypes.c_int64), ("batch", ctypes.c_int64),
        ("source_step", ctypes.c_int64), ("target_step", ctypes.c_int64), ("apart", ctypes.c_int64),
        ("first", ctypes.c_uint32), ("span_x", ctypes.c_uint32), ("span_y", ctypes.c_uint32),
        ("span_z", ctypes.c_uint32), ("across_log", ctypes.c_uint32), ("along", ctypes.c_int32),
    )  # fmt: skip

    def stepping(self) -> _Copy:
        """This one, its steps those of its spans."""
        if self.along:
            self.apart = self.source_step = self.target_step = (self.span_x << self.across_log) * 16
        else:
            self.apart = self.span_y * (_THREADS >> self.across_log)
            on = self.apart if self.apart < self.lines else 0  # there is no second line
            self.source_step, self.target_step = on * self.source_pitch, on * self.target_pitch
        return self


class Copies(ctypes.Structure):
    """kernels/pad.cu: Copies, the kernel's argument."""

    _fields_ = (("of", _Copy * _MOST_COPIES), ("count", ctypes.c_int32))


@dataclass(frozen=True)
class CopyLaunch:
    """Copies of one launch without their addresses, its blocks, and the kernel."""

    argument: Copies
    blocks: int
    kernel: str

    @property
    def grid(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(grid, block)"""
        return (self.blocks, 1, 1), (_THREADS, 1, 1)

    def at(self, addresses: Iterable[tuple[int, int]]) -> Copies:
        """The argument with each copy's (source, target)."""
        argument = Copies.from_buffer_copy(self.argument)
        for copy, (source, target) in zip(argument.of, addresses, strict=False):
            copy.source, copy.target = source, target
        return argument


def copy_launch(pairs: Sequence[tuple[Layout, Layout]], out: bool = False) -> CopyLaunch:
    """One launch that copies every element between an operand and our buffer for it (with as many columns or
    more); `out`: from there, else to there. A broadcast operand is copied once."""
    argument, blocks = Copies(count=len(pairs)), 0
    for index, (own, ours) in enumerate(pairs):
        copy = _copy(own, ours, out)
        copy.first = blocks
        blocks += copy.span_x * copy.span_y * copy.span_z
        argument.of[index] = copy
    return CopyLaunch(argument, blocks, _OUT if out else _INTO)


def _copy(own: Layout, ours: Layout, out: bool) -> _Copy:
    size = own.dtype.bytes
    width, lines, batch = own.rows * size, own.columns, own.copies
    near, far = (own, ours) if not out else (ours, own)
    if batch > 1 and all(one.stride == one.ld * lines for one in (own, ours)):
        lines, batch = lines * batch, 1
    if lines > 1 and batch == 1 and own.ld == own.rows == ours.ld:
        width, lines = width * lines, 1
    across_log, spans, along = _shape(width, lines, batch, fill=not out)
    return _Copy(
        0, 0, near.bytes, near.ld * size, far.ld * size, near.stride * size, far.stride * size,
        width, lines, batch, 0, 0, 0, 0, *spans, across_log, int(along),
    ).stepping()  # fmt: skip


def _shape(width: int, lines: int, batch: int, fill: bool) -> tuple[int, tuple[int, int, int], bool]:
    """(log2 of the threads along a line, blocks along x, y and z, whether a thread's chunks in flight follow
    one another along the line): as many of those as leave enough blocks."""
    chunks = (width + (15 if fill else 30)) // 16
    along = lines < _IN_FLIGHT and chunks > _THREADS
    across = _THREADS if along or chunks > _LONG else min(_WARP, 1 << (chunks - 1).bit_length())
    x, y = -(-chunks // across), -(-lines // (_THREADS // across))
    if along:
        x = min(x, max(-(-x // _IN_FLIGHT), -(-_ENOUGH_BLOCKS // (y * batch))))
    else:
        y = min(y, max(-(-y // _IN_FLIGHT), -(-_ENOUGH_BLOCKS // (x * batch))))
    y = min(y, max(1, _MOST_BLOCKS // x))
    if not along and y * (_THREADS // across) < lines:  # every so-manieth line starts at the same place
        y = _up(y, max(1, ALIGNMENT * across // _THREADS))
    return across.bit_length() - 1, (x, y, min(batch, max(1, _MOST_BLOCKS // (x * y)))), along


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
            launch.kernel: device.function(_SOURCE, launch.kernel, self._plan.defines)
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
