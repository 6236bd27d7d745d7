"""cuBLASLt on copies of misaligned operands: tensor cores load 16 bytes at a time, and a leading dimension
that is no multiple of them costs more than copying the operand, which a launch pays too.

Sizes stay as they are: aligned leading dimensions are all that the library's kernels ask for, so that
nothing has to be filled with zeros along k.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_cubin
from backends.cuda.cublaslt import CublasLt
from backends.cuda.library import LibraryFamily
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution

#: Bytes that tensor-core kernels load at once.
ALIGNMENT = 16
#: `pad`: every misaligned operand, or all but D (whose copy costs more than it may bring), likeliest first.
PADS = ("all", "inputs")
_SOURCE, _KERNEL = "pad.cu", "pad"
_THREADS, _IN_FLIGHT, _MOST_BLOCKS = 256, 4, 65535
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


def copied(problem: GemmProblem, pad: str) -> tuple[str, ...]:
    """The operands that `pad` copies; none where it is no choice for this problem."""
    found = misaligned(problem)
    if pad == "all":
        return found
    inputs = tuple(name for name in found if name != "d")
    # With addresses misaligned, D is as well: its copy is what makes the twin.
    useful = pad == "inputs" and inputs != found and problem.alignment >= ALIGNMENT
    return inputs if useful else ()


def padded_twin(problem: GemmProblem, pad: str) -> GemmProblem:
    """The same product on the copies: the least aligned leading dimensions, batches one after another."""
    changed: dict[str, Any] = {"alignment": max(problem.alignment, ALIGNMENT)}
    found = layouts(problem)
    for name in copied(problem, pad):
        if name in ("a", "b", "c", "d"):
            layout = found[name]
            unit = max(1, ALIGNMENT // layout.dtype.bytes)
            ld = -(-layout.rows // unit) * unit
            changed[f"ld{name}"] = ld
            changed[f"stride_{name}"] = ld * layout.columns if layout.stride else 0
    return replace(problem, **changed)


class PaddedCublasLt(LibraryFamily):
    """cuBLASLt's candidates for the padded twin of a problem with misaligned operands; copying them there,
    and D back, is part of every launch. Parameters: cuBLASLt's, and pad (all | inputs)."""

    name = "cublaslt-padded"

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
        pad = solution.parameters.get("pad")
        if not isinstance(pad, str) or not copied(problem, pad):
            useful = [name for name in PADS if copied(problem, name)]
            return f"pad must be {' or '.join(useful)} for {problem.slug}, not {pad!r}"
        inner = self._unwrapped(problem, solution, pad)
        return self._inner.illegal(padded_twin(problem, pad), inner, environment)

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
        """None: the copying kernels are put into the cache, where the device looks for them."""
        found = layouts(problem)
        for name in copied(problem, str(solution.parameters["pad"])):
            compile_cubin(_SOURCE, environment.arch, cache, _defines(problem, found[name]))
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


def buffers(problem: GemmProblem, pad: str) -> tuple[Mapping[str, int], int]:
    """Where each copy starts in the workspace, and the bytes of all of them."""
    starts, at = {}, 0
    found = layouts(padded_twin(problem, pad))
    for name in copied(problem, pad):
        starts[name] = at
        layout = found[name]
        size = layout.copies * max(layout.stride, layout.ld * layout.columns) * layout.dtype.bytes
        at += -(-size // _BUFFER) * _BUFFER
    return starts, at


def _defines(problem: GemmProblem, layout: Layout) -> dict[str, str]:
    """Addresses are known to be aligned to the problem's bytes, leading dimensions to an element."""
    return {"UNIT": str(min(problem.alignment, layout.dtype.bytes))}


class _Copy(ctypes.Structure):
    """kernels/pad.cu: Copy."""

    _fields_ = (
        ("source", ctypes.c_uint64), ("target", ctypes.c_uint64), ("source_bytes", ctypes.c_int64),
        ("source_pitch", ctypes.c_int64), ("target_pitch", ctypes.c_int64),
        ("source_stride", ctypes.c_int64), ("target_stride", ctypes.c_int64),
        ("width", ctypes.c_int64), ("lines", ctypes.c_int64), ("batch", ctypes.c_int64),
        ("fill", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """An operand's layout and the address that it lies at."""

    layout: Layout
    address: int


def copy_argument(source: Place, target: Place, fill: bool) -> _Copy:
    """The kernel's argument: every element of `source` to its place in `target`; a broadcast operand once.
    `fill`: the target is one of our buffers, whose lines have room up to the next 16 bytes."""
    a, b, size = source.layout, target.layout, source.layout.dtype.bytes
    return _Copy(
        source.address, target.address, a.bytes, a.ld * size, b.ld * size, a.stride * size, b.stride * size,
        a.rows * size, a.columns, a.copies, int(fill),
    )  # fmt: skip


def launch_shape(width: int, lines: int, batch: int, fill: bool) -> tuple[tuple[int, int, int], ...]:
    """(grid, block): 16-byte chunks of a line along x, lines along y, so that short lines share a block and
    few long ones spread over all of it."""
    chunks = (width + (15 if fill else 30)) // 16
    across = min(32, 1 << (chunks - 1).bit_length())
    down = _THREADS // across
    while down > 1 and down // 2 * _IN_FLIGHT >= lines:
        down //= 2
    across = min(_THREADS // down, max(across, 1 << (chunks - 1).bit_length()))
    grid = (
        -(-chunks // across),
        min(_MOST_BLOCKS, -(-lines // (down * _IN_FLIGHT))),
        min(_MOST_BLOCKS, batch),
    )
    return grid, (across, down, 1)


class PaddedKernel:
    """A cuBLASLt kernel between copies."""

    def __init__(self, problem: GemmProblem, pad: str, kernel: Kernel, device: Any) -> None:
        self._problem, self._kernel, self._device = problem, kernel, device
        self._from, self._to = layouts(problem), layouts(padded_twin(problem, pad))
        self._starts, self._bytes = buffers(problem, pad)
        self.workspace_bytes = self._bytes + kernel.workspace_bytes
        self._functions = {
            name: device.function(_SOURCE, _KERNEL, _defines(problem, self._from[name]))
            for name in self._starts
        }

    def prepare(self) -> None:
        self._kernel.prepare()

    def bind(self, operands: Operands, workspace: int) -> Launch:
        inside = {name: workspace + start for name, start in self._starts.items()}
        before = [self._copy(name, operands, at, out=False) for name, at in inside.items() if name != "d"]
        after = [self._copy("d", operands, inside["d"], out=True)] if "d" in inside else []
        multiply = self._kernel.bind(replace(operands, **inside), workspace + self._bytes)
        steps = [*before, multiply, *after]

        def launch() -> None:
            for step in steps:
                step()

        return launch

    def _copy(self, name: str, operands: Operands, buffer: int, out: bool) -> Callable[[], None]:
        own = Place(self._from[name], getattr(operands, name))
        ours = Place(self._to[name], buffer)
        source, target = (ours, own) if out else (own, ours)
        argument = copy_argument(source, target, fill=not out)
        grid, block = launch_shape(argument.width, argument.lines, argument.batch, fill=not out)
        function = self._functions[name]
        return partial(function.launch, grid, block, function.pack(argument), self._device.stream)
