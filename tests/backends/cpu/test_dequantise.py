"""Quantised weights on the CPU: the baseline and every case of it."""

from __future__ import annotations

import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.problem import GemmProblem
from tests.backends.weight_samples import fp8, mx_product, mxfp4, weights
from tuners.inputs import cases
from tuners.verify import Verifier


@pytest.mark.parametrize(
    "problem",
    [
        weights(5, 72, 512, zero_b="uint4", bias="bf16"), weights(3, 72, 512, "int8", scale_b="outer"),
        fp8(5, 300, 512, scale_b="block_128x128", scale_dtype="fp32"),
        fp8(3, 72, 512, dtype_a="fp16", scale_b="tensor", activation="silu"), mxfp4(3, 72, 512),
        mx_product(3, 72, 512),
        mx_product(5, 33, 96, dtype_d="fp16", bias="fp16", activation="silu", lda=100),
        mx_product(2, 40, 1056, dtype_d="fp32", alpha=2.0, beta=1.0),
    ],
    ids=lambda p: f"{p.dtype_a} {p.scale_a}",
)  # fmt: skip
def test_the_baseline_computes_right(problem: GemmProblem, cache: BinaryCache) -> None:
    backend = CpuBackend()
    environment = backend.probe().devices[0]
    assert [one.name for one in backend.baselines(problem, environment)][:1] == ["numpy dequantise"]
    family = backend.families()["dequantise"]
    device = backend.open(0, cache)
    verifier, solution = Verifier(device), next(iter(family.solutions(problem, environment)))
    for case in cases(problem, 3, 5):
        finding = verifier.check(device.load(case.problem, solution, None), case)
        assert finding.wrong == "", case
