"""Problems and configurations that the suites of our kernels share: small, ragged, and of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from backends.archs import GPU_ARCHS
from backends.environment import Environment
from backends.kernels.family import KernelFamily
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter, Solution

#: Rows that tests take parameters on: where it does not matter, and by their warps.
SM_90 = GPU_ARCHS["sm_90"]
OF_WARP = {32: SM_90, 64: GPU_ARCHS["gfx942"]}

#: Sizes of 1, of no whole tile, of whole 16 bytes and of none; every transpose, epilogue, bias axis and type.
PROBLEMS: Mapping[str, GemmProblem] = {
    "one": from_mm(1, 1, 1),
    "nn": from_blas(37, 21, 45, trans_a="N", trans_b="N", lda=40, ldb=48, beta=1.0),
    "nt": from_blas(40, 35, 24, trans_a="N", trans_b="T", alpha=2.0, beta=3.0, ldc=41, ldd=43),
    "tn": from_blas(33, 36, 52, trans_a="T", trans_b="N", bias="fp32", activation="gelu"),
    "tt": from_blas(70, 19, 33, trans_a="T", trans_b="T", bias="fp32", bias_axis="n", activation="silu"),
    "bf16 linear": from_linear(35, 40, 80, "bf16", bias="bf16", activation="relu"),
    "bf16 odd": from_linear(21, 43, 37, "bf16", dtype_d="fp32", beta=1.0),
    "fp16 batch": from_bmm(3, 20, 37, 41, "fp16", stride_b=0, beta=1.0),
    "fp16 nt": from_blas(48, 24, 40, "fp16", trans_b="T", bias="fp32", bias_axis="n"),
    "one column": from_linear(1, 75, 1160, "bf16", bias="bf16", activation="silu"),
    "one column, odd": from_linear(1, 70, 523, "fp16", ldb=525, alignment=2, beta=1.0),
    "one row": from_blas(1, 66, 300, "fp32", trans_a="T", trans_b="N", beta=2.0, ldd=3),
    "one column across k": from_mm(1, 136, 77, "bf16"),
    "one column across k, odd": from_mm(1, 133, 77, "fp32", bias="fp32"),
    "one column with gaps": from_blas(40, 1, 66, "bf16", trans_a="T", trans_b="T", ldb=3),
    "two columns": from_linear(2, 65, 648, "bf16", beta=1.0),
    "three columns across k": from_mm(3, 136, 130, "fp16", bias="fp16", activation="gelu"),
    "five columns, odd": from_linear(5, 37, 267, "bf16", ldb=269, bias="bf16"),
    "seven columns batch": from_bmm(2, 7, 40, 64, "bf16", trans_b="T", activation="relu"),
    "nine columns across k": from_mm(9, 100, 50, "fp32", beta=1.0),
    "sixteen columns": from_linear(16, 100, 320, "fp16", dtype_d="fp32", bias="fp16"),
    "eleven rows": from_blas(11, 80, 96, "bf16", trans_a="T", beta=1.0, bias="bf16", bias_axis="n", ldd=13),
    "thirty columns": from_linear(30, 50, 200, "bf16", beta=1.0),
}


def sizes_of_one() -> list[GemmProblem]:
    """Every way that m, n and k may be one."""
    return [from_mm(m, n, k) for m, n, k in product((1, 6), repeat=3)]


def every_value(family: KernelFamily) -> list[dict[str, Parameter]]:
    """The whole space of a family, legal or not."""
    names = list(family.choices)
    rows = product(*(family.choices[name] for name in names))
    return [dict(zip(names, row, strict=True)) for row in rows]


def legal_values(
    family: KernelFamily, problem: GemmProblem, environment: Environment, most: int, seed: int = 0
) -> list[dict[str, Parameter]]:
    """At most so many configurations of the whole legal space, drawn at random: those worth trying on a GPU
    are of little variety."""
    if not family.supports(problem):
        return []
    rng = np.random.default_rng(seed)
    places, size = [], 1  # of each parameter, how far its next value lies in every_value()
    for name, known in reversed(list(family.choices.items())):
        places.append((name, known, size))
        size *= len(known)
    places.reverse()
    found: list[dict[str, Parameter]] = []
    for index in rng.permutation(size).tolist():
        values = {name: known[index // step % len(known)] for name, known, step in places}
        if family.rule(problem, values, environment) is None:
            # What is made of a family's choices is well-formed, and so all of its rules are kept.
            solution = Solution(family.name, family.version, values)
            assert family.illegal(problem, solution, environment) is None
            found.append(values)
            if len(found) == most:
                break
    return found
