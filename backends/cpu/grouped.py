"""Grouped products on the CPU: a loop of torch's or numpy's own calls over the groups that have rows. 4-bit
weights are dequantised in single precision before numpy's. swiglu follows the products, by numpy in single
precision, by torch in the type of the rows, as its users have it.

The counts are read from the offsets at every launch, as any call may have others.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from backends.cpu.blas import LibraryFamily, LibraryKernel, set_blas_threads, thread_counts
from backends.cpu.host import Array, HostOperands, array_at, gated
from backends.cpu.torch_gemm import import_torch, set_torch_threads, tensor
from backends.environment import Environment
from backends.grouping import TYPES, check_ends, quantised_groups
from backends.grouping import gated as is_gated
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.quantisation import dequantised
from backends.solution import Solution


class GroupedLoop(LibraryFamily):
    """What both loops share. Parameters: threads."""

    library = ""

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the problem is a grouped product of 16-bit floats whose output has their type."""
        return problem.groups > 0 and problem.dtype_a in TYPES and problem.dtype_d == problem.dtype_a

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """One candidate for each thread count, all cores first."""
        if self.supports(problem):
            build = environment.libraries.get(self.library)
            for threads in thread_counts(environment.units):
                yield Solution(self.name, 1, {"threads": threads}, build, 0, True)

    @abstractmethod
    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """See Family."""


class TorchGrouped(GroupedLoop):
    """torch.mm of every group that has rows. Parameters: threads."""

    name = "torch-grouped"
    library = "torch"

    def unavailable(self, environment: Environment) -> str | None:
        """None if the environment has torch, else a message that it is not installed."""
        return None if environment.libraries.get("torch") else "torch is not installed"

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The calls, ready to bind."""

        def make(o: HostOperands, operands: Operands, _workspace: int) -> Launch:
            torch, offsets = import_torch(), _offsets(problem, operands)
            left, right, d = (tensor(torch, one) for one in (o.left[0], o.right, o.d[0]))
            # Rows of no group are left alone.
            product = torch.empty((problem.n, problem.m), dtype=d.dtype) if is_gated(problem) else d

            def launch() -> None:
                with torch.inference_mode():
                    last = 0
                    for group, start, last in _spans(offsets, problem.n):
                        torch.mm(left[start:last], right[group], out=product[start:last])
                    if product is not d:
                        gate, up = product[:last].chunk(2, dim=-1)
                        torch.mul(torch.nn.functional.silu(gate), up, out=d[:last])

            return launch

        return LibraryKernel(problem, set_torch_threads, int(solution.parameters["threads"] or 1), make)


class NumpyGrouped(GroupedLoop):
    """Every group that has rows upcast, multiplied by numpy's BLAS, and cast down. Parameters: threads."""

    name = "numpy-grouped"
    library = "blas"

    def supports(self, problem: GemmProblem) -> bool:
        """16-bit floats or 4-bit weights beside 16-bit rows, whose output is of the rows' type or fp32."""
        known = quantised_groups(problem) or (problem.groups > 0 and problem.dtype_a in TYPES)
        return known and problem.dtype_d in (problem.dtype_b, "fp32")

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The calls, ready to bind. Upcast copies are in the workspace."""
        p = problem
        shapes = {"weights": (p.m, p.k), "rows": (p.n, p.k), "product": (p.n, p.m)}
        sizes = {name: 4 * int(np.prod(shape)) for name, shape in shapes.items()}

        def make(o: HostOperands, operands: Operands, workspace: int) -> Launch:
            arrays, at = {}, workspace
            for name, shape in shapes.items():
                raw = (ctypes.c_char * sizes[name]).from_address(at)
                arrays[name] = np.frombuffer(memoryview(raw), dtype=np.float32).reshape(shape)
                at += sizes[name]
            fill = _filling(p, o, operands, arrays["weights"])
            own = arrays["weights"], arrays["rows"], arrays["product"]
            return _upcast(o, _offsets(p, operands), fill, *own, gated if is_gated(p) else _stored)

        threads = int(solution.parameters["threads"] or 1)
        return LibraryKernel(p, set_blas_threads, threads, make, sum(sizes.values()))


def _filling(p: GemmProblem, o: HostOperands, operands: Operands, out: Array) -> Callable[[int], None]:
    """What writes the weights of a group to `out` [m, k]."""
    if not p.weight_only:
        return lambda group: np.copyto(out, o.right[group].T)
    views = {
        name: array_at(getattr(operands, name), layout)
        for name, layout in layouts(p).items()
        if name in ("a", "scale_a", "zero_a")
    }

    def fill(group: int) -> None:
        zeros = views["zero_a"][group] if "zero_a" in views else None
        out[...] = dequantised(p, views["a"][group], views["scale_a"][group], zeros)

    return fill


def _stored(product: Array, out: Array) -> None:
    np.copyto(out, product, casting="unsafe")


def _upcast(
    o: HostOperands,
    offsets: Array,
    fill: Callable[[int], None],
    weights: Array,
    rows: Array,
    product: Array,
    finish: Callable[[Array, Array], None],
) -> Launch:
    left, d = o.left[0], o.d[0]

    def launch() -> None:
        for group, start, end in _spans(offsets, len(rows)):
            fill(group)
            np.copyto(rows[start:end], left[start:end])
            np.matmul(rows[start:end], weights.T, out=product[start:end])
            finish(product[start:end], d[start:end])

    return launch


def _offsets(p: GemmProblem, operands: Operands) -> Array:
    found: Array = array_at(operands.offsets, layouts(p)["offsets"])[0, 0]
    return found


def _spans(offsets: Array, rows: int) -> Iterator[tuple[int, int, int]]:
    """(group, first row, end) of every group that has rows, as the offsets say now. Raises InvalidProblem as
    check_ends() does."""
    ends, start = offsets.tolist(), 0
    check_ends(ends, rows)
    for group, end in enumerate(ends):
        if end > start:
            yield group, start, end
        start = end
