"""What the contract suite writes in every format: found beside each format's own tests.

A tool's folder has `contract.py` with `WRITTEN`: format -> Input. A format without one fails the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path

from backends.environment import Environment
from backends.kernels.triton.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution

Problems = Callable[[int], Iterator[GemmProblem]]

H200 = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 150754820096, "GPU-1", driver="580.82", runtime="13.2",
    libraries={"cublaslt": "130200", "torch": "2.15.0+cu132"},
)  # fmt: skip
MI300X = Environment(
    "hip", "gfx942", "AMD Instinct MI300X", 304, 206141652992, "GPU-2", runtime="7.2.53211",
    libraries={
        "rocblas": "5.2.0.dabb6df2b9", "hipblaslt": "100202-dabb6df2b9", "rocm": "7.2.0-43",
        "gcn_arch": "gfx942:sramecc+:xnack-", "torch": "2.10.0+rocm7.2",
    },
)  # fmt: skip
CUBLASLT = Solution(
    "cublaslt", 1,
    {"algo_id": 66, "tile_id": 20, "stages_id": 35, "splitk_num": 1, "reduction_scheme": 0,
     "cta_swizzling": 0, "custom_option": 0, "inner_shape_id": 0, "cluster_shape_id": 2},
    "130200", 2**19, True,
)  # fmt: skip
TORCH = Solution("torch", 1, {}, "2.15.0+cu132")
HIPBLASLT = Solution("hipblaslt", 1, {"solution_index": 477479}, "100202-dabb6df2b9")
ROCBLAS = Solution("rocblas", 1, {"solution_index": -621294427}, "5.2.0.dabb6df2b9")


def linears(count: int) -> Iterator[GemmProblem]:
    """Distinct linear layers of bf16."""
    made = 0
    for n in range(512, 20481, 512):
        for k in range(512, 8193, 512):
            for m in (*range(1, 513), *range(1024, 8193, 512)):
                yield from_linear(m, n, k, "bf16")
                made += 1
                if made == count:
                    return


def block_scaled(count: int) -> Iterator[GemmProblem]:
    """Distinct linear layers of block-scaled fp8."""
    for p in linears(count):
        yield from_linear(
            p.n, p.m, p.k, "fp8_e4m3", dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128"
        )


def candidate(family: str, problem: GemmProblem) -> Solution:
    """A candidate of a Triton family on an H200 that is not the framework's own configuration."""
    here = replace(H200, libraries={**H200.libraries, "triton": "3.6.0"})
    return next(islice(FAMILIES[family].solutions(problem, here), 1, None))


BLOCK_FP8 = candidate("triton-block-fp8", next(block_scaled(1)))
FUSED_MOE = candidate("triton-fused-moe", from_linear(8, 64, 64, "bf16", groups=2, routing="uniform"))
INDUCTOR_MM = candidate("triton-inductor-mm", next(linears(1)))


@dataclass(frozen=True)
class Input:
    """Where a file's rows were measured, what won, for whom the file is written, and which problems it has.
    `streamed`: rows are handed on as they come (other formats hold one row a key until the last).
    `every_family`: it writes solutions of every family, not only those that a tool can name.
    `of_candidates`: it chooses among candidates of several rows, which its own suite makes."""

    environment: Environment
    winner: Solution
    target: str | None = None
    problems: Problems = linears
    streamed: bool = False
    every_family: bool = False
    of_candidates: bool = False


def written() -> Mapping[str, Input]:
    """Every format's input, as its folder declares it."""
    found: dict[str, Input] = {}
    for path in sorted(Path(__file__).parent.glob("*/contract.py")):
        found |= import_module(f"tests.service.formats.{path.parent.name}.contract").WRITTEN
    return found
