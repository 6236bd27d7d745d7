"""The Triton family of quantised weights: the same kernel on NVIDIA's and AMD's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from backends.dtypes import FP8_WEIGHT
from backends.environment import Environment
from backends.kernels.legality import arch_of
from backends.kernels.triton.dequant_configuration import DequantConfig, scaled_weights
from backends.kernels.triton.family import TILE, TritonFamily, Values
from backends.kernels.triton.framework_families import unsupported_halves
from backends.kernels.triton.legality import MOST_SIZE
from backends.kernels.weights import unsupported_weights
from backends.problem import GemmProblem
from backends.solution import Parameter

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class TritonDequant(TritonFamily):
    """Quantised weights times bf16 or fp16, dequantised in registers to the activations' type; k may be split
    into slices, whose sums a second launch adds in order."""

    name = "triton-dequant"
    source: ClassVar[str] = "weight_kernels.py"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {**TILE, "split_k": _SPLITS}

    def tile_config(self, problem: GemmProblem, values: Values) -> DequantConfig:
        """See TritonFamily."""
        return DequantConfig.of(problem, values)

    def config(self, problem: GemmProblem, parameters: Mapping[str, Parameter]) -> DequantConfig:
        """See TritonFamily."""
        return DequantConfig.of(problem, parameters)

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """The whole of k, and slices of at least two steps if the tiles alone leave multiprocessors idle.
        Nothing of a tile that is likely to spill."""
        one = self.tile_config(problem, {**values, "split_k": 1})
        if one.spills(arch_of(environment)):
            return
        for slices in _SPLITS:
            idle = one.tiles < environment.units and one.tiles * slices <= 4 * environment.units
            if slices == 1 or (idle and one.steps >= 2 * slices):
                yield {**values, "split_k": slices}

    def _proposed(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        """Nothing: NVIDIA's heuristics know no quantised weights."""
        yield from ()

    def notes(self, problem: GemmProblem, environment: Environment) -> tuple[str, ...]:
        """Nothing: see _proposed()."""
        return ()

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why the kernel does not support the problem's types, layout or scales, or None."""
        p = problem
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.dtype_a == FP8_WEIGHT:
            return f"the kernel multiplies weights of integers or MXFP4, not {p.dtype_a}"
        if p.trans_b != "N":
            return f"trans_b {p.trans_b}: activations are contiguous along k here (F.linear's x[m,k])"
        if p.mx and p.dtype_b != "bf16":
            return f"weights are multiplied by their scales here, whose range bf16 alone has, not {p.dtype_b}"
        if scaled_weights(p) and p.dtype_b == "fp16" and p.scale_dtype != "fp16":
            return (
                f"weights are multiplied by their scales here: products by {p.scale_dtype} may be beyond "
                "fp16, and scales beside fp16 are fp16"
            )
        if max(p.m, p.n, p.k) > MOST_SIZE:
            return f"sizes up to {MOST_SIZE}, not {p.m} x {p.n} x {p.k}"
        return None

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """See TritonFamily."""
        return unsupported_halves(environment)
