"""Quantised weights, and both operands of MXFP4, on the CPU: dequantised in single precision, then numpy's
own product, as numpy code runs them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from backends.cpu.blas import LibraryFamily, LibraryKernel, set_blas_threads, thread_counts
from backends.cpu.host import HostOperands, array_at, finish
from backends.dtypes import DTYPES, FLOAT
from backends.environment import Environment
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.quantisation import dequantised, groups_of, mx_numbers
from backends.solution import Solution


class DequantiseMatmul(LibraryFamily):
    """Quantised weights, or both operands of MXFP4, dequantised in single precision, then multiplied by
    numpy's BLAS and rounded to D's type. Parameters: threads."""

    name = "dequantise"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether A is a quantised weight matrix, or both operands MXFP4, and D a float."""
        return (
            (problem.weight_only or problem.mx_product)
            and not problem.groups
            and problem.compute == "fp32"
            and DTYPES[problem.dtype_d].kind == FLOAT
        )

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """One candidate for each thread count, all cores first."""
        if self.supports(problem):
            build = environment.libraries.get("blas")
            for threads in thread_counts(environment.units):
                yield Solution(self.name, 1, {"threads": threads}, build, 0, True)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The call, ready to bind. Dequantised weights, activations and sums are in the workspace."""
        p = problem
        shapes = {"weights": (p.m, p.k), "inputs": (p.n, p.k), "product": (1, p.n, p.m)}
        sizes = {name: 4 * int(np.prod(shape)) for name, shape in shapes.items()}

        def make(o: HostOperands, operands: Operands, workspace: int) -> Launch:
            arrays, at = {}, workspace
            for name, shape in shapes.items():
                raw = (ctypes.c_char * sizes[name]).from_address(at)
                arrays[name] = np.frombuffer(memoryview(raw), dtype=np.float32).reshape(shape)
                at += sizes[name]
            fill = _filling(p, operands, arrays["weights"])
            weights, inputs, product = arrays["weights"], arrays["inputs"], arrays["product"]
            fill_inputs = _filling_inputs(p, operands, o, inputs)

            def launch() -> None:
                fill()
                fill_inputs()
                np.matmul(inputs, weights.T, out=product[0])
                finish(p, o, product)

            return launch

        threads = int(solution.parameters["threads"] or 1)
        return LibraryKernel(p, set_blas_threads, threads, make, sum(sizes.values()))


def _filling_inputs(p: GemmProblem, operands: Operands, o: HostOperands, out: Any) -> Launch:
    """What writes the activations' numbers to `out` [n, k]."""
    if p.mx_product:
        return _filling_mx(p, operands, "b", out)

    def fill() -> None:
        np.copyto(out, o.left[0])

    return fill


def _filling_mx(p: GemmProblem, operands: Operands, name: str, out: Any) -> Launch:
    """What writes the numbers of an MXFP4 operand to `out` [rows, k]."""
    found = layouts(p)
    stored, scales = (array_at(getattr(operands, one), found[one])[0] for one in (name, f"scale_{name}"))

    def fill() -> None:
        out[...] = mx_numbers(stored, scales)

    return fill


def _filling(p: GemmProblem, operands: Operands, out: Any) -> Launch:
    """What writes the dequantised weights to `out` [m, k]."""
    if p.mx_product:
        return _filling_mx(p, operands, "a", out)
    found = layouts(p)
    views = {
        name: array_at(getattr(operands, name), found[name])[0]
        for name in ("a", "scale_a", "zero_a")
        if name in found
    }
    scales, zeros = views["scale_a"].reshape(-1, groups_of(p)), views.get("zero_a")

    def fill() -> None:
        out[...] = dequantised(p, views["a"], scales, zeros)

    return fill
